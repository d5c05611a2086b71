"""Cases from the field on combining distributions, each with its right value, and hand-computed gates and
sharpening."""

from __future__ import annotations

import math

import pytest
import torch
from support import kernel_cases as cases
from support import kernel_oracle as oracle

from ensemble_decode import kernels

STEP = pytest.mark.parametrize(("implementation", "device"), cases.targets("fuse_step"))
FULL = pytest.mark.parametrize(("implementation", "device"), cases.targets("fuse_full"))


def letters(count: int, models: int = 2) -> oracle.Vocab:
    """Models that share the ids of the first letters."""
    return oracle.Vocab([[bytes([97 + i]) for i in range(count)]] * models, [[]] * models)


def logits(*distributions):
    """Per model one row whose softmax is the given distribution."""
    return [torch.tensor([d]).log() for d in distributions]


def run(rows, vocab, implementation, device, operator=kernels.fuse_step, k=10, **options):
    made = kernels.FuseSettings.make(rows[0].shape[0], len(rows), device, **options)
    return operator(cases.on(rows, device), cases.vocab_tensors(vocab, device), made, k, implementation=implementation)


def values(tensor):
    return pytest.approx(tensor, abs=1e-6)


@STEP
def test_case_1_mean_of_two(implementation, device):
    got = run(logits([0.6, 0.4, 0.0], [0.1, 0.8, 0.1]), letters(3), implementation, device)
    assert got.probs[0, :3].tolist() == values([0.35, 0.6, 0.05])
    assert (got.cid.item(), got.primary_id.item()) == (1, 1)


@STEP
def test_case_2_weights(implementation, device):
    g = torch.Generator().manual_seed(0)
    interpreted = implementation == "triton" and device == "cpu"
    rows = [torch.randn(12 if interpreted else 50, 9, generator=g) for _ in range(2)]
    vocab = letters(9)
    first = run(rows, vocab, implementation, device, weights=(1, 0))
    assert first.cid.tolist() == rows[0].argmax(-1).tolist()
    second = run(rows, vocab, implementation, device, weights=(0, 1))
    assert second.cid.tolist() == rows[1].argmax(-1).tolist()
    cases.assert_equal(
        run(rows, vocab, implementation, device, weights=(2, 2)),
        run(rows, vocab, implementation, device, weights=(0.5, 0.5)),
    )


@STEP
def test_case_3_modes_sum_to_one(implementation, device):
    rows = logits([0.9, 0.1], [0.2, 0.8])
    arithmetic = run(rows, letters(2), implementation, device)
    assert arithmetic.probs[0, :2].tolist() == values([0.55, 0.45])
    geometric = run(rows, letters(2), implementation, device, aggregate="geometric")
    assert geometric.probs[0, :2].tolist() == values([0.6, 0.4])


@STEP
def test_case_4_outside_one_models_top_k(implementation, device):
    rows = logits([0.5, 0.3, 0.1, 0.1], [0.05, 0.6, 0.2, 0.15])
    got = run(rows, letters(4), implementation, device, top_k=2)
    assert got.cids[0, :3].tolist() == [0, 1, 2]
    want = [(0.5 / 0.9 + 0.05 / 0.85) / 2, (0.3 / 0.9 + 0.6 / 0.85) / 2, (0.1 / 0.9 + 0.2 / 0.85) / 2]
    assert got.probs[0, :3].tolist() == values(want)
    assert want == pytest.approx([0.307, 0.520, 0.173], abs=5e-4)
    assert got.cid.item() == 1


@STEP
@pytest.mark.parametrize(("oov", "score"), [("first_piece", 1.0), ("exclude", -math.inf)])
def test_case_5_a_token_that_the_other_spells(implementation, device, oov, score):
    """B has "xy"; A scores it through its first piece "x", or not at all where told so."""
    vocab = oracle.Vocab([[b"x", b"y"], [b"xy", b"x", b"y"]], [[], []])
    rows = [torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 0.0, 0.0]])]
    got = run(rows, vocab, implementation, device, oov=oov)
    a, b = oracle.softmax([1.0, score, 0.0]), oracle.softmax([0.0, 4.0, 0.0])
    assert got.probs[0, :3].tolist() == values(((a + b) / 2).tolist())
    assert vocab.strings[got.cid.item()] == b"xy"
    assert got.primary_id.item() == 0


@STEP
def test_case_27_a_nan_row_leaves_the_others_alone(implementation, device):
    g = torch.Generator().manual_seed(0)
    rows = [torch.randn(3, 9, generator=g) for _ in range(2)]
    clean = run(rows, letters(9), implementation, device)
    bad = [rows[0].clone(), rows[1].clone()]
    bad[1][1] = math.nan
    got = run(bad, letters(9), implementation, device)
    assert got.flags.tolist() == [0, kernels.FLAG_NAN | kernels.FLAG_EMPTY, 0]
    for name in ("cid", "probs", "js"):
        assert torch.equal(getattr(got, name)[[0, 2]], getattr(clean, name)[[0, 2]])
    assert got.cid[1].item() == rows[0][1].argmax().item()


@STEP
def test_case_28_equal_distributions_have_no_divergence(implementation, device):
    rows = logits([0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
    got = run(rows, letters(3), implementation, device, gate="kl", gate_threshold=0.0)
    assert got.kl.flatten().tolist() == values([0.0, 0.0])
    assert got.js.item() == values(0.0)
    residual = (got.probs[0, :3] - torch.softmax(rows[0][0].to(device), -1)).clamp(min=0)
    assert residual.isfinite().all()


@STEP
def test_gates_by_hand(implementation, device):
    """P = (.8, .2), Q = (.2, .8): mixture (.5, .5), KL .19274 each, JS .19274; the primary's top probability is .8."""
    rows = logits([0.8, 0.2], [0.2, 0.8])
    kl = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    for gate, threshold, is_open in [
        ("none", 0.0, True),
        ("max_prob", 0.81, True),
        ("max_prob", 0.79, False),
        ("kl", kl - 1e-4, True),
        ("kl", kl + 1e-4, False),
        ("js", kl - 1e-4, True),
        ("js", kl + 1e-4, False),
    ]:
        got = run(rows, letters(2), implementation, device, gate=gate, gate_threshold=threshold, weights=(0.5, 0.5))
        assert got.ensembled.item() == is_open, (gate, threshold)
        assert got.kl[:, 0].tolist() == values([kl, kl])
        assert got.js.item() == values(kl)


@STEP
def test_divergence_keeps_a_bucket_for_the_rest(implementation, device):
    """With top-1 the union is {a, b}; both models leave .1 to it."""
    rows = logits([0.6, 0.3, 0.1], [0.3, 0.6, 0.1])
    got = run(rows, letters(3), implementation, device, top_k=1)
    want = 0.6 * math.log(0.6 / 0.45) + 0.3 * math.log(0.3 / 0.45)
    assert got.kl[:, 0].tolist() == values([want, want])


@STEP
def test_a_closed_gate_emits_the_primarys_own_id(implementation, device):
    """Not the exact id of its candidate: the twin that the primary itself preferred."""
    vocab = oracle.Vocab([[b"a", b"a", b"b"], [b"a", b"b"]], [[], []])
    rows = [torch.tensor([[0.0, 5.0, 1.0]]), torch.tensor([[0.0, 9.0]])]
    closed = run(rows, vocab, implementation, device, gate="max_prob", gate_threshold=0.5)
    assert (closed.cid.item(), closed.primary_id.item(), closed.ensembled.item()) == (0, 1, False)
    # Open, the candidate "a" scores through its exact id 0, so "b" wins.
    opened = run(rows, vocab, implementation, device)
    assert (opened.cid.item(), opened.primary_id.item(), opened.ensembled.item()) == (1, 2, True)


@STEP
def test_end_is_one_candidate_for_every_eos_id(implementation, device):
    """END scores the log-sum-exp of the EOS logits, and the primary emits its likeliest EOS id."""
    vocab = oracle.Vocab([[b"a", None, None], [b"a", None]], [[1, 2], [1]])
    rows = [torch.tensor([[1.0, 0.5, 0.9]]), torch.tensor([[0.0, 0.2]])]
    got = run(rows, vocab, implementation, device)
    q = oracle.softmax([1.0, oracle.logsumexp([0.5, 0.9])])
    assert got.probs[0, :2].tolist() == values(((q + oracle.softmax([0.0, 0.2])) / 2).tolist())
    assert got.cid.item() == vocab.end
    assert got.primary_id.item() == 2
    assert got.top_cid[:, 0].tolist() == [0, vocab.end]


PREFIXES = oracle.Vocab([[b"a", b"ab", b"abc", b"b", b" ", b" x"]] * 2, [[]] * 2)
"""Candidates in order: " ", " x", "a", "ab", "abc", "b"."""


@STEP
@pytest.mark.parametrize(
    ("distribution", "options", "chosen", "boosted"),
    [
        # a + ab + abc = .54 beats b = .3
        ([0.2, 0.18, 0.16, 0.3, 0.1, 0.06], {}, b"a", [0.1, 0.06, 0.54, 0.34, 0.16, 0.3]),
        # nothing fires: the largest probability is not below the threshold
        ([0.2, 0.18, 0.16, 0.3, 0.1, 0.06], {"threshold": 0.29}, b"b", None),
        # of those with continuations, none is above min_prob
        ([0.2, 0.18, 0.16, 0.3, 0.1, 0.06], {"min_prob": 0.2}, b"b", [0.1, 0.06, 0.2, 0.18, 0.16, 0.3]),
        # " " never collects " x"
        ([0.05, 0.05, 0.05, 0.3, 0.29, 0.26], {}, b"b", [0.29, 0.26, 0.05, 0.05, 0.05, 0.3]),
    ],
    ids=["prefix-wins", "not-triggered", "min-prob", "space"],
)
def test_prefix_sharpening_by_hand(implementation, device, distribution, options, chosen, boosted):
    settings = {"sharpen": "prefix", "threshold": 0.5, "min_prob": 0.1} | options
    got = run(logits(distribution, distribution), PREFIXES, implementation, device, **settings)
    assert PREFIXES.strings[got.cid.item()] == chosen
    assert got.sharpened.item() == (boosted is not None)
    assert got.max_prob.item() == values(max(distribution))
    if boosted is not None:
        assert got.probs[0, :6].tolist() == values([b / sum(boosted) for b in boosted])


@STEP
def test_prefix_sharpening_raises_only_the_primarys_top_k(implementation, device):
    """ "a" is the other model's choice alone: it stays, though "ab" continues it."""
    primary, other = [0.05, 0.3, 0.05, 0.5, 0.05, 0.05], [0.5, 0.3, 0.05, 0.05, 0.05, 0.05]
    got = run(logits(primary, other), PREFIXES, implementation, device, top_k=2, sharpen="prefix", threshold=1.0)
    assert [PREFIXES.strings[c] for c in got.cids[0, :3].tolist()] == [b"a", b"ab", b"b"]
    want = [(p / 0.85 + q / 0.85) / 2 for p, q in zip([0.05, 0.3, 0.5], [0.5, 0.3, 0.05], strict=True)]
    assert got.sharpened.item()
    assert got.probs[0, :3].tolist() == values(want)


@STEP
def test_prefix_sharpening_takes_unsharpened_probabilities_and_counts_twins_once(implementation, device):
    """abc is added to a once, not also through the raised ab; a twin id of "a" does not add it again."""
    vocab = oracle.Vocab([[b"a", b"a", b"ab", b"abc", b"b"], [b"a", b"ab", b"abc", b"b"]], [[], []])
    d = [0.3, 0.2, 0.2, 0.3]
    rows = [torch.tensor([[d[0], d[0], *d[1:]]]).log(), torch.tensor([d]).log()]
    got = run(rows, vocab, implementation, device, sharpen="prefix", threshold=1.0, min_prob=0.0)
    raised = [0.3 + 0.2 + 0.2, 0.2 + 0.2, 0.2, 0.3]
    assert got.probs[0, :4].tolist() == values([r / sum(raised) for r in raised])


@STEP
def test_geometric_and_temperature_sharpening_by_hand(implementation, device):
    rows = logits([0.9, 0.1], [0.2, 0.8])
    options = {"threshold": 0.6, "tau": 0.5}
    geometric = run(rows, letters(2), implementation, device, sharpen="geometric", **options)
    assert geometric.probs[0, :2].tolist() == values([0.6, 0.4])
    assert geometric.max_prob.item() == values(0.55)
    temperature = run(rows, letters(2), implementation, device, sharpen="temperature", **options)
    squares = [0.55**2, 0.45**2]
    assert temperature.probs[0, :2].tolist() == values([s / sum(squares) for s in squares])
    assert geometric.sharpened.item()
    assert temperature.sharpened.item()


@STEP
def test_entropy_trigger_by_hand(implementation, device):
    """H(.5, .5) / log 2 = 1; one candidate never fires."""
    even = logits([0.5, 0.5], [0.5, 0.5])
    options = {"sharpen": "temperature", "trigger": "entropy"}
    assert run(even, letters(2), implementation, device, threshold=0.99, **options).sharpened.item()
    assert not run(even, letters(2), implementation, device, threshold=1.01, **options).sharpened.item()
    assert not run(even, letters(2), implementation, device, threshold=-1.0, top_k=1, **options).sharpened.item()


@STEP
def test_ties_go_to_the_smaller_candidate(implementation, device):
    """Candidates are ordered by bytes, not by id."""
    vocab = oracle.Vocab([[b"c", b"b", b"a"]] * 2, [[]] * 2)
    got = run([torch.zeros(1, 3)] * 2, vocab, implementation, device)
    assert (got.cid.item(), got.primary_id.item()) == (0, 2)


@STEP
def test_nothing_to_choose_from(implementation, device):
    nothing = [torch.full((1, 3), -math.inf)] * 2
    got = run(nothing, letters(3), implementation, device)
    assert (got.cid.item(), got.primary_id.item(), got.count.item()) == (-1, -1, 0)
    assert got.flags.item() == kernels.FLAG_EMPTY
    assert not got.ensembled.item()
    assert not torch.cat([t.flatten().float() for t in got]).isnan().any()


@STEP
def test_plus_inf_is_uniform_over_its_entries(implementation, device):
    rows = [torch.tensor([[math.inf, 0.0, math.inf]]), torch.tensor([[0.0, 0.0, math.log(2.0)]])]
    got = run(rows, letters(3), implementation, device)
    assert got.probs[0, :3].tolist() == values([0.375, 0.125, 0.5])
    assert got.top_prob[:, 0].tolist() == values([1.0, 0.5])
    assert got.cid.item() == 2


@FULL
def test_gac_by_hand(implementation, device):
    """A candidate that a model lacks counts 0 there; END sums the EOS ids; the gate leaves the rest to the primary."""
    vocab = oracle.Vocab([[b"a", b"b", None], [b"a", b"bc", None, None]], [[2], [2, 3]])
    rows = logits([0.45, 0.35, 0.2], [0.1, 0.5, 0.2, 0.2])
    got = run(rows, vocab, implementation, device, kernels.fuse_full, gate="max_prob", gate_threshold=0.5, k=4)
    want = {0: 0.275, 1: 0.175, 2: 0.25, 3: 0.3}
    order = [3, 0, 2, 1]
    assert got.cids.tolist() == [order]
    assert got.probs[0].tolist() == values([want[c] for c in order])
    assert (got.cid.item(), got.primary_id.item(), got.ensembled.item()) == (3, 2, True)
    closed = run(rows, vocab, implementation, device, kernels.fuse_full, gate="max_prob", gate_threshold=0.45 - 1e-4)
    assert (closed.cid.item(), closed.primary_id.item(), closed.ensembled.item()) == (0, 0, False)


@FULL
def test_gac_sees_what_no_top_k_holds(implementation, device):
    """The best candidate is second in both models: a union of top-1 sets would miss it."""
    rows = logits([0.4, 0.0, 0.35, 0.25], [0.0, 0.4, 0.35, 0.25])
    assert run(rows, letters(4), implementation, device, kernels.fuse_full).cid.item() == 2
    assert run(rows, letters(4), "reference", device, top_k=1).cid.item() == 0
