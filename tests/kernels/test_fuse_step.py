"""`fuse_step`, `fuse_candidates` and `fuse_full` against float64 brute force over random byte vocabularies."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
from ensemble_decode.kernels import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support import kernel_cases as cases
from support import kernel_oracle as oracle

from ensemble_decode import kernels

OPERATIONS = {"fuse_step": (kernels.fuse_step, oracle.step), "fuse_full": (kernels.fuse_full, oracle.full)}
TARGETS = [
    pytest.param(operator, *target.values, marks=target.marks, id=f"{operator}-{target.id}")
    for operator in OPERATIONS
    for target in cases.targets(operator)
]
INTERPRETED = [target for target in TARGETS if cases.slow(*target.values[1:])]


def random_settings(rng: np.random.Generator, models: int) -> oracle.Settings:
    """Any combination of settings, thresholds where both outcomes are likely."""
    weights = rng.random(models) + 0.05
    if models > 1 and rng.random() < 0.15:
        weights[int(rng.integers(models))] = 0.0
    return oracle.Settings(
        weights=(weights / weights.sum()).tolist(),
        top_k=int(rng.choice([1, 2, 4, 10**6])),
        aggregate=str(rng.choice(["arithmetic", "geometric"])),
        oov=str(rng.choice(["first_piece", "exclude"])),
        sharpen=str(rng.choice(["none", "prefix", "geometric", "temperature"])),
        trigger=str(rng.choice(["max_prob", "entropy"])),
        threshold=float(rng.choice([0.2, 0.5, 0.9])),
        min_prob=float(rng.choice([0.0, 0.1, 0.3])),
        tau=float(rng.choice([0.5, 2.0])),
        gate=str(rng.choice(["none", "none", "max_prob", "kl", "js"])),
        gate_threshold=float(rng.choice([0.05, 0.3, 0.6])),
    )


def random_logits(rng: np.random.Generator, vocab: oracle.Vocab, batch: int) -> list[torch.Tensor]:
    """Logits with ties, −inf, +inf, NaN and rows without anything, seldom enough that most rows are plain."""
    result = []
    for model in vocab.models:
        x = rng.normal(size=(batch, len(model))) * float(rng.choice([1.0, 3.0]))
        if rng.random() < 0.3:
            x = np.round(x)
        for b in range(batch):
            kind = rng.random()
            if kind < 0.05:
                x[b] = -math.inf
            elif kind < 0.15:
                x[b, rng.random(len(model)) < 0.6] = -math.inf
            elif kind < 0.2:
                x[b, int(rng.integers(len(model)))] = math.inf
            elif kind < 0.25:
                x[b, rng.random(len(model)) < 0.2] = math.nan
        result.append(torch.tensor(x, dtype=torch.float32))
    return result


def check(got: kernels.FuseStep, b: int, want: oracle.Decision, logits, vocab: oracle.Vocab, is_step: bool) -> bool:
    """Compare one row; returns whether the comparison was exact about the choice (no tie within rounding)."""
    close = {"abs": 2e-5, "rel": 1e-5}
    assert got.max_prob[b].item() == pytest.approx(want.max_prob, **close)
    assert got.entropy[b].item() == pytest.approx(want.entropy, **close)
    assert got.kl[:, b].tolist() == pytest.approx(want.kl, **close)
    assert got.js[b].item() == pytest.approx(want.js, **close)
    expected_flags = 0
    for m, x in enumerate(logits):
        row = x[b].double().tolist()
        _, _, logsumexp, entropy, flags = oracle.topk(row, 1, vocab.allowed(m))
        expected_flags |= flags
        assert got.logsumexp[m, b].item() == pytest.approx(logsumexp, **close)
        assert got.model_entropy[m, b].item() == pytest.approx(entropy, **close)
        _, top_cid, top_prob = oracle.own_top(vocab, m, row)
        assert got.top_cid[m, b].item() == top_cid
        assert got.top_prob[m, b].item() == pytest.approx(top_prob, **close)
    assert got.flags[b].item() == expected_flags | (0 if want.max_prob > 0 else kernels.FLAG_EMPTY)
    if want.near:
        return False
    assert got.ensembled[b].item() == want.ensembled
    assert got.sharpened[b].item() == want.sharpened
    if is_step:
        cids = got.cids[b].tolist()
        assert cids == want.cids + [-1] * (len(cids) - len(want.cids))
        assert got.count[b].item() == len(want.cids)
        assert got.probs[b, : len(want.cids)].tolist() == pytest.approx(want.probs.tolist(), **close)
        assert not got.probs[b, len(want.cids) :].any()
    else:
        probs = dict(zip(want.cids, want.probs.tolist(), strict=True))
        listed = [c for c in got.cids[b].tolist() if c >= 0]
        assert len(listed) == min(got.cids.shape[1], sum(p > 0 for p in probs.values())) == got.count[b].item()
        values = got.probs[b, : len(listed)].tolist()
        assert values == pytest.approx([probs[c] for c in listed], **close)
        assert all(
            p > q or (p == q and c < d) for p, q, c, d in zip(values, values[1:], listed, listed[1:], strict=False)
        )
        left_out = [p for c, p in probs.items() if c not in listed]
        assert not listed or max(left_out, default=0) <= values[-1] + 1e-6
    if want.margin > 1e-5 or not want.ensembled:
        assert got.cid[b].item() == want.cid
        assert got.primary_id[b].item() == want.primary_id
        return True
    return False


@pytest.mark.parametrize(
    ("operator", "implementation", "device"), [target for target in TARGETS if target not in INTERPRETED]
)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_brute_force(operator, implementation, device, seed):
    """Random vocabularies, settings that differ from row to row, all edges of the logits."""
    compare_with_brute_force(operator, implementation, device, seed)


@pytest.mark.parametrize(("operator", "implementation", "device"), INTERPRETED)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_brute_force_interpreted(operator, implementation, device, seed):
    """The same with fewer examples and rows, since a row takes a good part of a second."""
    compare_with_brute_force(operator, implementation, device, seed, most_rows=2)


@pytest.mark.parametrize("models", [5, 8])
@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_many_models_equal_brute_force(operator, implementation, device, models):
    """Of many models the Triton kernels take a chunk of candidates in parts; here several parts are filled."""
    sizes = [1200] + [60] * (models - 1)
    for seed in range(2 if cases.slow(implementation, device) else 6):
        size = compare_with_brute_force(operator, implementation, device, seed, most_rows=2, sizes=sizes)
        assert size > 512


def compare_with_brute_force(operator, implementation, device, seed, most_rows=5, sizes=None):
    ours, brute = OPERATIONS[operator]
    rng = np.random.default_rng(seed)
    if sizes is None:
        vocab = cases.random_vocab(rng, [int(n) for n in rng.integers(5, 40, size=int(rng.integers(1, 4)))])
    else:
        vocab = cases.random_vocab(rng, sizes, letters=b"abcdefg ")
    batch, k = int(rng.integers(1, most_rows + 1)), int(rng.choice([1, 3, 10, 50]))
    logits = random_logits(rng, vocab, batch)
    rows = [random_settings(rng, len(vocab.models)) for _ in range(batch)]
    got = ours(
        cases.on(logits, device),
        cases.vocab_tensors(vocab, device),
        cases.settings_tensors(rows, device),
        k,
        implementation=implementation,
    )
    for b in range(batch):
        row_logits = [x[b].double().tolist() for x in logits]
        check(got, b, brute(vocab, row_logits, rows[b], k), logits, vocab, operator == "fuse_step")
    return cases.vocab_tensors(vocab).size


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(("implementation", "device"), cases.targets("fuse_step"))
def test_probabilities_err_at_most_twice_as_much_as_torch_in_that_type(implementation, device, dtype):
    """E of the union against float64, beside torch's softmax and weighted sum in the type of the logits."""
    rng = np.random.default_rng(11)
    vocab = cases.random_vocab(rng, [90, 300], letters=b"abcdefg ")
    batch = 8 if cases.slow(implementation, device) else 200
    logits = [torch.tensor(rng.normal(size=(batch, len(model))) * 3, dtype=dtype) for model in vocab.models]
    rows = [oracle.Settings(weights=[0.3, 0.7])] * batch
    got = kernels.fuse_step(
        cases.on(logits, device),
        cases.vocab_tensors(vocab, device),
        cases.settings_tensors(rows, device),
        10,
        implementation=implementation,
    )
    ours = theirs = 0.0
    for b, settings_ in enumerate(rows):
        values = [x[b].double().tolist() for x in logits]
        want = oracle.step(vocab, values, settings_, 10)
        assert got.cids[b, : len(want.cids)].tolist() == want.cids
        scores = [[oracle.score(vocab, m, v, c, settings_.oov) for c in want.cids] for m, v in enumerate(values)]
        p = torch.tensor(scores, dtype=dtype).softmax(-1)
        mean = (torch.tensor(settings_.weights, dtype=dtype).unsqueeze(1) * p).sum(0)
        exact = torch.tensor(want.probs, dtype=torch.float64)
        ours = max(ours, float((got.probs[b, : len(want.cids)].cpu().double() - exact).abs().max()))
        theirs = max(theirs, float((mean.double() - exact).abs().max()))
    assert 0 < ours <= 2 * theirs


def batch_of(seed: int, batch: int):
    rng = np.random.default_rng(seed)
    vocab = cases.random_vocab(rng, [33, 200], letters=b"abc ")
    logits = [torch.tensor(rng.normal(size=(batch, len(model))) * 3, dtype=torch.bfloat16) for model in vocab.models]
    rows = [random_settings(rng, 2) for _ in range(batch)]
    more = {"temperature": [0.0, 0.7] * (batch // 2), "top_p": 0.9, "seed": 3, "row": list(range(batch)), "step": 5}
    return vocab, logits, cases.settings_tensors(rows, **more)


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_row_does_not_depend_on_its_batch(operator, implementation, device):
    """Bitwise, with methods that differ from row to row, sampling rows among greedy ones."""
    ours, _ = OPERATIONS[operator]
    batch = 4 if cases.slow(implementation, device) else 16
    vocab, logits, settings_ = batch_of(0, batch)
    tensors = cases.vocab_tensors(vocab, device)
    settings_ = kernels.FuseSettings(*(f.to(device) for f in settings_))
    logits = cases.on(logits, device)
    per_model = {"kl", "top_cid", "top_prob", "logsumexp", "model_entropy"}

    def run(rows):
        return ours([x[rows] for x in logits], tensors, settings_.rows(rows), 10, implementation=implementation)

    whole = run(list(range(batch)))
    cases.assert_equal(whole, run(list(range(batch))))
    assert 0 < whole.sharpened.sum() < batch
    assert 0 < whole.ensembled.sum() < batch
    for rows in ([0], [3, 2]) if batch < 16 else ([0], [7], [15, 2], [1, 3, 5, 7, 9]):
        part = [f[:, rows] if name in per_model else f[rows] for name, f in zip(whole._fields, whole, strict=True)]
        cases.assert_equal(run(rows), kernels.FuseStep(*part))


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_empty_batch(operator, implementation, device):
    ours, _ = OPERATIONS[operator]
    vocab, logits, settings_ = batch_of(1, 2)
    got = ours(
        cases.on([x[:0] for x in logits], device),
        cases.vocab_tensors(vocab, device),
        kernels.FuseSettings(*(f[:0].to(device) for f in settings_)),
        4,
        implementation=implementation,
    )
    shapes = {name: tuple(getattr(got, name).shape) for name in got._fields}
    assert shapes["cid"] == (0,)
    assert shapes["kl"] == (2, 0)
    assert shapes["cids"] == ((0, 8) if operator == "fuse_step" else (0, 4))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("fuse_step"))
def test_case_6_step_equals_its_parts(implementation, device):
    """The fused call and the four operators one after another agree: field case 6, on 1 000 random unions."""
    vocab, logits, settings_ = batch_of(2, 1000 if not cases.slow(implementation, device) else 10)
    tensors = cases.vocab_tensors(vocab, device)
    logits = cases.on(logits, device)
    settings_ = kernels.FuseSettings(*(f.to(device) for f in settings_))._replace(
        oov=torch.zeros_like(settings_.oov, device=device), top_k=torch.full_like(settings_.top_k, 10, device=device)
    )
    step = kernels.fuse_step(logits, tensors, settings_, 10, implementation=implementation)

    stats = [kernels.topk_stats(x, 10, a) for x, a in zip(logits, tensors.allowed, strict=True)]
    cids, count = kernels.union_topk([s.ids for s in stats], tensors.to_cid)
    scores = torch.stack(
        [
            kernels.gather_candidates(x, cids, piece, eos, a)
            for x, piece, eos, a in zip(logits, tensors.piece_id, tensors.eos_ids, tensors.allowed, strict=True)
        ]
    )
    tops = tensors.to_cid[0][stats[0].ids.long()]
    fused = kernels.fuse_candidates(
        scores, cids, torch.stack([s.logsumexp for s in stats]), tops, stats[0].values[:, 0].contiguous(), tops[:, 0],
        tensors.prefix_end, tensors.space_cid, settings_,
    )  # fmt: skip
    assert torch.equal(step.cids, cids)
    assert torch.equal(step.count, count)
    assert torch.equal(step.cid, fused.choice)
    assert torch.equal(step.ensembled, fused.ensembled)
    assert torch.equal(step.sharpened, fused.sharpened)
    torch.testing.assert_close(step.probs, fused.probs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("which", ["primary", "others", "all"])
@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_masked_steps_equal_brute_force(operator, implementation, device, which):
    """Random masks of single rows on the primary alone, on the others alone, on all: greedy and sampled.

    Whatever the method, the primary never writes an id that its mask bans.
    """
    ours, brute = OPERATIONS[operator]
    steps, batch = (2, 2) if cases.slow(implementation, device) else (40, 5)
    chosen = 0
    for seed in range(steps):
        rng = np.random.default_rng([seed, 77])
        vocab = cases.random_vocab(rng, rng.integers(8, 40, size=2).tolist())
        logits = random_logits(rng, vocab, batch)
        rows = [random_settings(rng, 2) for _ in range(batch)]
        k = int(rng.choice([3, 10]))
        masked = {"primary": (True, False), "others": (False, True), "all": (True, True)}[which]
        vocabs = []
        for _ in range(batch):
            banned = [
                {i for i in range(len(model)) if masked[m] and rng.random() < 0.5}
                for m, model in enumerate(vocab.models)
            ]
            vocabs.append(dataclasses.replace(vocab, banned=banned))
        allowed = [cases.pack(torch.tensor([own.allowed(m) for own in vocabs])).to(device) for m in range(2)]
        tensors = cases.vocab_tensors(vocab, device)._replace(allowed=allowed)
        for more in ({}, {"temperature": 1.0, "seed": seed, "row": list(range(batch))}):
            made = cases.settings_tensors(rows, device, **more)
            got = ours(cases.on(logits, device), tensors, made, k, implementation=implementation)
            for b, own in enumerate(vocabs):
                if not more:
                    values = [x[b].double().tolist() for x in logits]
                    check(got, b, brute(own, values, rows[b], k), logits, own, operator == "fuse_step")
                cid, written = got.cid[b].item(), got.primary_id[b].item()
                assert written < 0 or own.allowed(0)[written]
                assert cid < 0 or not got.ensembled[b] or own.reachable(cid)
                chosen += written >= 0
    assert chosen > steps * batch / 2


@pytest.mark.parametrize(("implementation", "device"), cases.targets("fuse_step"))
def test_a_candidate_whose_only_id_is_banned_has_probability_zero(implementation, device):
    """Both models prefer "a", which the primary may not write: the choice is "b", by every method."""
    vocab = oracle.Vocab([[b"a", b"b", None], [b"a", b"b", None]], [[2], [2]])
    tensors = cases.vocab_tensors(vocab, device)
    tensors = tensors._replace(allowed=[cases.pack(torch.tensor([[False, True, True]])).to(device), tensors.allowed[1]])
    logits = [torch.tensor([[9.0, 1.0, 0.0]], device=device), torch.tensor([[9.0, 1.0, 0.0]], device=device)]
    for operator in (kernels.fuse_step, kernels.fuse_full):
        for fields in ({}, {"oov": "exclude"}, {"aggregate": "geometric"}, {"temperature": 1.0, "sample_top_k": 1}):
            made = kernels.FuseSettings.make(1, 2, device, **fields)
            got = operator(logits, tensors, made, 3, implementation=implementation)
            assert (got.cid.item(), got.primary_id.item()) == (1, 1)
            probs = dict(zip(got.cids[0].tolist(), got.probs[0].tolist(), strict=True))
            assert probs.get(0, 0.0) == 0.0
    # END, whose EOS ids are all banned, is as little in reach.
    ends = [torch.tensor([[0.0, 1.0, 9.0]], device=device)] * 2
    masks = [cases.pack(torch.tensor([[True, True, False]])).to(device), tensors.allowed[1]]
    for operator in (kernels.fuse_step, kernels.fuse_full):
        made = kernels.FuseSettings.make(1, 2, device)
        got = operator(ends, tensors._replace(allowed=masks), made, 3, implementation=implementation)
        assert (got.cid.item(), got.primary_id.item()) == (1, 1)


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_a_grammar_masks_rows_apart(operator, implementation, device):
    """`allowed` with one row per row of the batch equals running each row with its own mask."""
    ours, _ = OPERATIONS[operator]
    vocab, logits, settings_ = batch_of(3, 4)
    tensors = cases.vocab_tensors(vocab, device)
    g = torch.Generator().manual_seed(0)
    masks = [torch.rand(4, x.shape[1], generator=g) < 0.5 for x in logits]
    masks = [m & torch.tensor([vocab.allowed(i)]) for i, m in enumerate(masks)]
    packed = [cases.pack(m).to(device) for m in masks]
    settings_ = kernels.FuseSettings(*(f.to(device) for f in settings_))
    logits = cases.on(logits, device)
    got = ours(logits, tensors._replace(allowed=packed), settings_, 5, implementation=implementation)
    per_model = {"kl", "top_cid", "top_prob", "logsumexp", "model_entropy"}
    for b in range(4):
        own = tensors._replace(allowed=[mask[b : b + 1] for mask in packed])
        alone = ours([x[b : b + 1] for x in logits], own, settings_.rows([b]), 5, implementation=implementation)
        part = [f[:, [b]] if name in per_model else f[[b]] for name, f in zip(got._fields, got, strict=True)]
        cases.assert_equal(alone, kernels.FuseStep(*part))


def test_full_works_in_blocks_of_rows(monkeypatch):
    """Blocks bound the memory and change nothing."""

    from ensemble_decode.kernels.reference import fuse_full as function  # noqa: F401

    vocab, logits, settings_ = batch_of(4, 10)
    tensors = cases.vocab_tensors(vocab)
    whole = kernels.fuse_full(logits, tensors, settings_, 5, implementation="reference")
    monkeypatch.setattr(sys.modules[reference.fuse_full.__module__], "BLOCK", 3 * tensors.size)
    cases.assert_equal(whole, kernels.fuse_full(logits, tensors, settings_, 5, implementation="reference"))
