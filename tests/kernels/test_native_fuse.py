"""The C++ union, gather, fusion and verification at real vocabulary sizes, against the reference, on every path."""

from __future__ import annotations

import pytest
import torch
from ensemble_decode.kernels import FuseSettings, VocabTensors, native_, reference

pytestmark = pytest.mark.skipif(
    native_.unavailable_reason() is not None, reason=f"no C++ extension: {native_.unavailable_reason()}"
)

ISAS = native_.available_isas() if native_.unavailable_reason() is None else []
SIZES = (49_152, 60_001)
N = 70_001
K = 10


@pytest.fixture(params=ISAS)
def isa(request):
    native_.set_isa(request.param)
    yield request.param
    native_.set_isa("auto")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def make_vocab(seed: int = 0) -> VocabTensors:
    """Two models whose ids are random, overlapping subsets of N − 1 candidates; first pieces are any other id."""
    g = torch.Generator().manual_seed(seed)
    to_cid, exact, piece, allowed, eos = [], [], [], [], []
    for size in SIZES:
        cids = torch.randperm(N - 1, generator=g)[:size].to(torch.int32)
        banned = torch.rand(size, generator=g) < 0.002
        banned[:8] = True
        eos_ids = torch.tensor([2, 5], dtype=torch.int32)
        banned[eos_ids.long()] = False
        table = torch.full((N,), -1, dtype=torch.int32)
        ids = torch.arange(size, dtype=torch.int32)
        usable = ~banned
        usable[eos_ids.long()] = False
        table[cids[usable].long()] = ids[usable]
        first = torch.randint(8, size, (N,), generator=g).to(torch.int32)
        cids = torch.where(usable, cids, -1)
        cids[eos_ids.long()] = N - 1
        to_cid.append(cids)
        exact.append(table)
        piece.append(torch.where(table >= 0, table, first))
        bits = torch.zeros((size + 31) // 32 * 32, dtype=torch.bool)
        bits[:size] = ~banned
        word = (bits.view(-1, 32).long() << torch.arange(32)).sum(1)
        allowed.append(torch.where(word >= 2**31, word - 2**32, word).to(torch.int32).unsqueeze(0))
        eos.append(eos_ids)
    # Prefix ranges nest: every 7th candidate is a prefix of the next 40, every 70th of the next 600.
    index = torch.arange(N)
    reach = torch.where(index % 70 == 0, 600, torch.where(index % 7 == 0, 40, 0))
    prefix_end = (index + 1 + reach).clamp(max=N - 1).to(torch.int32)
    return VocabTensors(to_cid, exact, piece, allowed, eos, prefix_end, space_cid=77, size=N)


def make_logits(vocab: VocabTensors, rows: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Rows on which the two models agree to very different degrees; END and single rows dominate here and there."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(rows, N, generator=g) * 3
    result = []
    for cids in vocab.to_cid:
        own = torch.randn(rows, len(cids), generator=g) * 3
        share = torch.rand(rows, 1, generator=g)
        x = share * common[:, cids.clamp(min=0).long()] + (1 - share) * own
        x[0, 2] = 14.0
        x[1, 700:720] = 16.0
        result.append(x.to(dtype))
    return result


def every_setting(rows: int, seed: int, temperature: float | None = None) -> FuseSettings:
    """Rows that all differ in method: aggregate, oov, sharpening, trigger, gate, weights, top_k and sampling."""
    g = torch.Generator().manual_seed(seed)

    def pick(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=g)]

    return FuseSettings.make(
        rows,
        2,
        weights=torch.rand(rows, 2, generator=g) + 0.05,
        top_k=pick(1, 3, 10, 10_000).int(),
        aggregate=pick(0, 1).int(),
        oov=pick(0, 1).int(),
        sharpen=pick(0, 1, 2, 3).int(),
        trigger=pick(0, 1).int(),
        threshold=pick(0.1, 0.3, 0.6, 1.0),
        min_prob=pick(0.0, 0.01, 0.1),
        tau=pick(0.5, 2.0),
        gate=pick(0, 0, 1, 2, 3).int(),
        gate_threshold=pick(0.05, 0.3, 0.6),
        temperature=pick(0.0, 0.7, 1.0, 1.5) if temperature is None else temperature,
        sample_top_k=pick(0, 0, 5).int(),
        top_p=pick(1.0, 0.95, 0.5),
        min_p=pick(0.0, 0.0, 0.05),
        seed=torch.randint(-(2**62), 2**62, (rows,), generator=g),
        row=torch.arange(rows) + 2**33,
        step=torch.arange(rows) * 3,
    )


def compare(got, want, exact: set[str], skip: str = "") -> None:
    for name in got._fields:
        if name == skip:
            continue
        a, b = getattr(got, name), getattr(want, name)
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        if name in exact:
            assert torch.equal(a, b), (name, (a != b).nonzero()[:5], a, b)
        else:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=4e-6, msg=lambda m, n=name: f"{n}: {m}")


STEP_EXACT = {
    "cid", "primary_id", "cids", "count", "ensembled", "sharpened", "top_cid", "flags"
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fuse_step_equals_the_reference(isa, dtype):
    vocab = make_vocab()
    logits = make_logits(vocab, 48, dtype, seed=1)
    settings = every_setting(48, seed=2)
    got = native_.fuse_step(logits, vocab, settings, K)
    compare(got, reference.fuse_step(logits, vocab, settings, K), STEP_EXACT)
    assert 5 < got.ensembled.sum() < 48
    assert 3 < got.sharpened.sum() < 45


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fuse_full_equals_the_reference(isa, dtype):
    vocab = make_vocab(3)
    logits = make_logits(vocab, 12, dtype, seed=4)
    settings = every_setting(12, seed=5)
    got = native_.fuse_full(logits, vocab, settings, K)
    want = reference.fuse_full(logits, vocab, settings, K)
    compare(got, want, STEP_EXACT, skip="cids")
    # The list is cut at rank k of 70 001 candidates, where neighbours can lie within one rounding of each other.
    differ = got.cids != want.cids
    assert differ.float().mean() < 0.05
    torch.testing.assert_close(got.probs[differ], want.probs[differ], rtol=1e-6, atol=0)


def test_greedy_and_sampled_choices_agree_over_many_rows(isa):
    vocab = make_vocab(6)
    logits = make_logits(vocab, 80, torch.float32, seed=7)
    for temperature in (0.0, 1.0):
        settings = every_setting(80, seed=8, temperature=temperature)
        got = native_.fuse_step(logits, vocab, settings, K)
        want = reference.fuse_step(logits, vocab, settings, K)
        assert torch.equal(got.cid, want.cid)
        assert torch.equal(got.primary_id, want.primary_id)


def test_fuse_candidates_union_and_gather_in_turn_equal_fuse_step(isa):
    vocab = make_vocab()
    logits = make_logits(vocab, 16, torch.bfloat16, seed=9)
    settings = every_setting(16, seed=10)._replace(top_k=torch.full((16,), 7, dtype=torch.int32))
    settings = settings._replace(oov=torch.zeros(16, dtype=torch.int32))
    step = native_.fuse_step(logits, vocab, settings, 7)
    stats = [native_.topk_stats(x, 7, a) for x, a in zip(logits, vocab.allowed, strict=True)]
    cids, count = native_.union_topk([s.ids for s in stats], vocab.to_cid)
    assert torch.equal(cids, step.cids)
    assert torch.equal(count, step.count)
    scores = torch.stack(
        [
            native_.gather_candidates(x, cids, vocab.piece_id[m], vocab.eos_ids[m], vocab.allowed[m])
            for m, x in enumerate(logits)
        ]
    )
    tops = vocab.to_cid[0][stats[0].ids.long()]
    logsumexp = torch.stack([s.logsumexp for s in stats])
    fused = native_.fuse_candidates(
        scores, cids, logsumexp, tops, stats[0].values[:, 0].contiguous(), step.top_cid[0],
        vocab.prefix_end, 77, settings
    )  # fmt: skip
    assert torch.equal(fused.choice, step.cid)
    for name in ("probs", "max_prob", "entropy", "kl", "js", "ensembled", "sharpened"):
        assert torch.equal(getattr(fused, name), getattr(step, name)), name


@pytest.mark.parametrize("operator", ["fuse_step", "fuse_full"])
def test_bits_do_not_depend_on_threads_or_neighbours(isa, threads, operator):
    run = getattr(native_, operator)
    vocab = make_vocab()
    rows = 6
    logits = make_logits(vocab, rows, torch.bfloat16, seed=11)
    settings = every_setting(rows, seed=12)
    threads(1)
    alone = [run([x[r : r + 1] for x in logits], vocab, settings.rows(slice(r, r + 1)), K) for r in range(rows)]
    for count in (1, 2, 5):
        threads(count)
        together = run(logits, vocab, settings, K)
        for r, single in enumerate(alone):
            for name in single._fields:
                whole, part = getattr(together, name), getattr(single, name)
                axis = 1 if name in ("kl", "top_cid", "top_prob", "logsumexp", "model_entropy") else 0
                assert torch.equal(whole.narrow(axis, r, 1), part), (name, r, count)


def test_verify_draft_equals_the_reference(isa):
    vocab = make_vocab()
    logits = make_logits(vocab, 40, torch.bfloat16, seed=13)[1]
    logits[7] = float("-inf")
    logits[8, 100] = float("nan")
    logits[9, 2] = float("inf")
    best = logits.float().argmax(1).int()
    targets = torch.randint(0, SIZES[1], (40,), generator=torch.Generator().manual_seed(14)).int()
    targets[::3] = best[::3]
    targets[1], targets[4], targets[9], targets[10], targets[13] = -1, -2, -2, SIZES[1], -7
    for allowed in (None, vocab.allowed[1]):
        got = native_.verify_draft(logits, targets, allowed, vocab.eos_ids[1])
        want = reference.verify_draft(logits, targets, allowed, vocab.eos_ids[1])
        compare(got, want, {"is_argmax", "argmax", "flags"})
        assert got.is_argmax.any()


def test_settings_and_vocabularies_that_do_not_fit_are_refused():
    vocab = make_vocab()
    logits = make_logits(vocab, 2, torch.float32, seed=15)
    settings = FuseSettings.make(2, 2)
    with pytest.raises(ValueError, match="exact_id needs 70001"):
        native_.fuse_step(logits, vocab._replace(exact_id=[t[:-1] for t in vocab.exact_id]), settings, K)
    with pytest.raises(ValueError, match=r"settings\.tau has shape \[1\]"):
        native_.fuse_step(logits, vocab, settings._replace(tau=settings.tau[:1]), K)
    with pytest.raises(ValueError, match=r"settings\.seed has the wrong type"):
        native_.fuse_step(logits, vocab, settings._replace(seed=settings.seed.int()), K)
