"""Sampling: the generator's published vectors, the filters as transformers applies them, and frequencies."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from ensemble_decode.kernels.reference.philox import gumbel, philox
from ensemble_decode.kernels.reference.sampling import filtered
from hypothesis import given, settings
from hypothesis import strategies as st
from support import kernel_cases as cases
from support import kernel_oracle as oracle
from support.kernel_oracle import noise_by_hand, philox_by_hand

from ensemble_decode import kernels

OPERATIONS = {"fuse_step": kernels.fuse_step, "fuse_full": kernels.fuse_full}
TARGETS = [
    pytest.param(operator, *target.values, marks=target.marks, id=f"{operator}-{target.id}")
    for operator in OPERATIONS
    for target in cases.targets(operator)
]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    """The vectors that Random123 publishes."""
    tensors = [torch.tensor([w]) for w in counter], [torch.tensor([w]) for w in key]
    assert [int(w) for w in philox(tuple(tensors[0]), tuple(tensors[1]))] == words
    assert philox_by_hand(counter, key) == words


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40),
)
def test_noise_uses_every_word(cid, seed, row, step):
    got = gumbel(torch.tensor([[cid]]), torch.tensor([seed]), torch.tensor([row]), torch.tensor([step]))
    assert got.dtype == torch.float64
    assert got.item() == pytest.approx(noise_by_hand(cid, seed, row, step), rel=1e-13, abs=1e-13)


def test_noise_is_finite_at_both_ends(monkeypatch):
    """The smallest and the largest uniform numbers give finite noise."""
    module = sys.modules[gumbel.__module__]
    for word in (0, 0xFFFFFFFF):
        monkeypatch.setattr(module, "philox", lambda counter, key, word=word: (torch.full((1, 1), word),))
        one = torch.zeros(1, dtype=torch.int64)
        assert gumbel(torch.tensor([[0]]), one, one, one).isfinite().all()


def transformers_filter(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What transformers keeps, by its own processors."""
    from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = logits.clone()
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p > 0:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return scores > -math.inf


@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 0.0])
@pytest.mark.parametrize("min_p", [0.0, 0.1, 1.0])
def test_filters_keep_what_transformers_keeps(top_k, top_p, min_p):
    logits = torch.randn(20, 40, generator=torch.Generator().manual_seed(top_k)) * 2
    log = logits.log_softmax(-1)
    s = kernels.FuseSettings.make(20, 1, sample_top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.equal(filtered(log, s), transformers_filter(logits, top_k, top_p, min_p))


def test_filters_at_the_edges():
    """Ties at the k-th stay in top-k; top-p takes the smaller index first; probability 0 is never kept."""
    tie = torch.tensor([[0.4, 0.2, 0.2, 0.2, 0.0]]).log()

    def kept(**options):
        return filtered(tie, kernels.FuseSettings.make(1, 1, **options))[0].tolist()

    assert kept() == [True, True, True, True, False]
    assert kept(sample_top_k=2) == [True, True, True, True, False]
    assert kept(top_p=0.5) == [True, True, False, False, False]
    assert kept(top_p=0.0) == [True, False, False, False, False]
    assert kept(min_p=0.6) == [True, False, False, False, False]
    assert kept(sample_top_k=1, top_p=1.0) == [True, False, False, False, False]
    nothing = torch.full((1, 3), -math.inf)
    assert not filtered(nothing, kernels.FuseSettings.make(1, 1, top_p=0.5, sample_top_k=2)).any()


def shared_vocab(size: int) -> oracle.Vocab:
    """Two models with the same `size` strings on the same ids and one EOS id."""
    strings = [bytes([97 + i]) for i in range(size)]
    return oracle.Vocab([[*strings, None]] * 2, [[size]] * 2)


def draw(operator, implementation, device, count, logits, **options):
    """`count` draws of one row, and its distribution before temperature and filters."""
    vocab = shared_vocab(logits[0].shape[1] - 1)
    made = kernels.FuseSettings.make(count, 2, device, row=torch.arange(count), temperature=1.0, **options)
    rows = [x.expand(count, -1).to(device) for x in logits]
    return OPERATIONS[operator](
        rows, cases.vocab_tensors(vocab, device), made, logits[0].shape[1], implementation=implementation
    )


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda e: e),
        ({"temperature": 0.5}, lambda e: e**2),
        ({"top_p": 0.7}, lambda e: np.where(np.isin(np.arange(len(e)), nucleus(e, 0.7)), e, 0)),
        ({"sample_top_k": 3}, lambda e: np.where(e >= np.sort(e)[-3], e, 0)),
        ({"min_p": 0.5}, lambda e: np.where(e >= e.max() / 2, e, 0)),
        ({"weights": (3, 1)}, None),
    ],
    ids=["plain", "temperature", "top_p", "top_k", "min_p", "weights"],
)
def test_frequencies_follow_e(operator, implementation, device, options, expected):
    """Chi-square at 99.99 %; seeds are fixed, so the verdict never changes.

    The interpreter is too slow for frequencies: its draws are the reference's, one by one.
    """
    count = 3 if cases.slow(implementation, device) else 20_000
    g = torch.Generator().manual_seed(4)
    logits = [torch.randn(1, 7, generator=g), torch.randn(1, 7, generator=g)]
    weights = np.array(options.get("weights", (1, 1)), dtype=float)
    e = sum(w * oracle.softmax(x[0].double().numpy()) for w, x in zip(weights / weights.sum(), logits, strict=True))
    want = e if expected is None else expected(e)
    want = want / want.sum()
    made = {"temperature": 1.0} | options
    vocab = shared_vocab(6)
    settings_ = kernels.FuseSettings.make(count, 2, device, seed=11, row=torch.arange(count), **made)
    rows = [x.expand(count, -1).to(device) for x in logits]
    got = OPERATIONS[operator](rows, cases.vocab_tensors(vocab, device), settings_, 7, implementation=implementation)
    if cases.slow(implementation, device):
        reference = OPERATIONS[operator](rows, cases.vocab_tensors(vocab), settings_, 7, implementation="reference")
        assert got.cid.tolist() == reference.cid.tolist()
        return
    seen = np.bincount(got.cid.cpu().numpy(), minlength=7)
    assert seen[want == 0].sum() == 0
    used = want > 0
    chi = ((seen[used] - count * want[used]) ** 2 / (count * want[used])).sum()
    limits = {2: 15.2, 3: 18.5, 4: 21.2, 5: 23.6, 6: 25.8, 7: 27.9}
    assert chi < limits.get(int(used.sum()), 15.2)


def nucleus(e: np.ndarray, p: float) -> list[int]:
    """Ids of the shortest run of the most probable that holds p."""
    order, total, kept = np.argsort(-e), 0.0, []
    for i in order:
        if total >= p:
            break
        kept.append(int(i))
        total += e[i]
    return kept


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_choices_equal_gumbel_max_by_hand(operator, implementation, device):
    """Seed, row and step pick the noise; each draw equals argmax of log E + g in Python."""
    count = 6 if cases.slow(implementation, device) else 200
    g = torch.Generator().manual_seed(5)
    logits = [torch.randn(count, 7, generator=g), torch.randn(count, 7, generator=g)]
    seed, row, step = [torch.randint(-(2**62), 2**62, (count,), generator=g) for _ in range(3)]
    settings_ = kernels.FuseSettings.make(count, 2, device, seed=seed, row=row, step=step, temperature=0.8)
    vocab = cases.vocab_tensors(shared_vocab(6), device)
    got = OPERATIONS[operator]([x.to(device) for x in logits], vocab, settings_, 7, implementation=implementation)
    for b in range(count):
        e = sum(0.5 * oracle.softmax(x[b].double().numpy()) for x in logits)
        score = [
            math.log(e[c]) / 0.8 + noise_by_hand(c, int(seed[b]), int(row[b]), int(step[b])) for c in range(len(e))
        ]
        best = sorted(score)[-2:]
        if best[1] - best[0] > 1e-5:
            assert got.cid[b].item() == int(np.argmax(score))


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_probability_zero_is_never_drawn_and_temperature_zero_is_greedy(operator, implementation, device):
    """Field case 28."""
    count = 6 if cases.slow(implementation, device) else 3000
    x = torch.tensor([[0.0, -math.inf, -1.0, -math.inf, -200.0, -math.inf, -math.inf]])
    hot = draw(operator, implementation, device, count, [x, x])
    assert set(hot.cid.tolist()) == {0, 2}
    vocab = cases.vocab_tensors(shared_vocab(6), device)
    cold = kernels.FuseSettings.make(count, 2, device, row=torch.arange(count), seed=1)
    rows = [x.expand(count, -1).to(device)] * 2
    got = OPERATIONS[operator](rows, vocab, cold, 7, implementation=implementation)
    assert set(got.cid.tolist()) == {0}


@pytest.mark.parametrize(("operator", "implementation", "device"), TARGETS)
def test_a_closed_gate_keeps_the_primary_when_sampling(operator, implementation, device):
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    count = 3 if cases.slow(implementation, device) else 40
    got = draw(operator, implementation, device, count, [x, x], gate="max_prob", gate_threshold=0.3)
    assert set(got.cid.tolist()) == {0}
    assert not got.ensembled.any()
