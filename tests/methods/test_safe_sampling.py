"""Samples: UniTE's and SAFE's follow E (arXiv 2510.15346, appendix H)."""

import pytest
import torch
from support.ensembles import MIXED, byte_ensemble, next_distribution, same
from support.oracle.fusion import Gate
from support.oracle.model import Model, align
from support.oracle.safe import sampled_distribution

import ensemble_decode as ed

NONE = ed.Sharpen("none")
EVERYWHERE = ed.GaC(threshold=1)


def chi_square_p(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """P-value of a chi-square test; bins that expect fewer than 5 are put together."""
    small = expected < 5
    counts = torch.cat([counts[~small], counts[small].sum().reshape(1)]).double()
    expected = torch.cat([expected[~small], expected[small].sum().reshape(1)]).double()
    assert expected[-1] > 0 or counts[-1] == 0, "a sample of probability 0"
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    return float(torch.special.gammaincc((keep.sum().double() - 1) / 2, statistic / 2))


SAMPLES = 1200


@pytest.mark.parametrize(
    "method",
    [
        ed.UniTE(top_k=8),
        ed.SAFE(base=ed.UniTE(top_k=8), draft_length=2, sharpen=NONE),
        ed.SAFE(base=ed.UniTE(top_k=8), draft_length=2, sharpen=ed.Sharpen("temperature", threshold=1.0)),
    ],
    ids=["unite", "safe", "safe, sharpened"],
)
def test_samples_follow_e(method):
    """Over many seeds the first token follows E, and given the likeliest first one the second follows E there."""
    ensemble = byte_ensemble(2, spread=0.6)
    base = method.base if isinstance(method, ed.SAFE) else method
    rows = ensemble.generate(
        ["abcd"] * SAMPLES,
        method=method,
        max_new_tokens=2,
        sampling=ed.Sampling(temperature=1.0, seed=17),
        batch_size=400,
    )
    sharpen = 2.0 if isinstance(method, ed.SAFE) and method.sharpen.kind == "temperature" else 1.0

    def check(text: str, drawn: list[bytes]) -> None:
        e = next_distribution(ensemble, base, text)
        total = sum(p**sharpen for p in e.values())
        assert set(drawn) <= set(e)
        keys = sorted(e)
        counts = torch.tensor([drawn.count(k) for k in keys])
        expected = torch.tensor([e[k] ** sharpen / total for k in keys]) * len(drawn)
        assert chi_square_p(counts, expected) > 1e-3

    first = [row.data[:1] for row in rows]
    check("abcd", first)
    letters = [c for c in set(first) if c and c.isascii() and c.decode().isprintable()]
    common = max(letters, key=first.count)
    second = [row.data[1:2] for row in rows if row.data[:1] == common]
    assert len(second) > 60
    check("abcd" + common.decode(), second)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1e6], ids=["open", "between", "closed"])
def test_a_gate_as_the_test_chooses_between_e_and_the_primary(threshold):
    """The first token follows the oracle's rule: P_0 where the gate is closed there, E where it is open."""
    ensemble = byte_ensemble(2, spread=0.6)
    method = ed.SAFE(base=ed.UniTE(top_k=8), draft_length=2, sharpen=NONE, test=ed.KL(threshold))
    models = align([Model(r.model, t) for r, t in zip(ensemble.runners, ensemble.tokenizers, strict=True)])
    opened = set()
    for prompt in ("abcd", "xyz", "The"):
        rows = ensemble.generate(
            [prompt] * SAMPLES,
            method=method,
            max_new_tokens=1,
            sampling=ed.Sampling(temperature=1.0, seed=21),
            batch_size=400,
        )
        e, acts = sampled_distribution(models, prompt, [0.5, 0.5], Gate("kl", threshold), top_k=8)
        drawn = [None if row.ended else row.data for row in rows]
        assert set(drawn) <= {c for c, p in e.items() if p > 0}
        keys = list(e)
        counts = torch.tensor([drawn.count(c) for c in keys])
        assert chi_square_p(counts, torch.tensor([e[c] for c in keys]) * SAMPLES) > 1e-3
        opened.add(acts)
    assert opened == {0.0: {True}, 0.3: {True, False}, 1e6: {False}}[threshold]


def test_samples_of_whole_vocabularies_follow_e():
    """SAFE over GaC(1): the paper's statement, with the mean of whole softmaxes computed here."""
    ensemble = byte_ensemble(2, spread=0.6, weights=(0.7, 0.3))
    method = ed.SAFE(base=EVERYWHERE, draft_length=2, sharpen=NONE)
    rows = ensemble.generate(
        ["abcd"] * SAMPLES,
        method=method,
        max_new_tokens=1,
        sampling=ed.Sampling(temperature=1.0, seed=3),
        batch_size=400,
    )
    ids = torch.tensor([ensemble.vocab.models[0].encode(b"abcd")])
    with torch.no_grad():
        p = [runner.model(ids).logits[0, -1].double().softmax(-1) for runner in ensemble.runners]
    expected = (0.7 * p[0] + 0.3 * p[1]) * SAMPLES
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=len(expected))
    assert chi_square_p(counts, expected) > 1e-3
    far = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=len(expected)).double()
    assert chi_square_p(far, p[0] * SAMPLES) < 1e-3, "E and P_0 are too alike for this test to tell them apart"


def test_case_28_equal_models_have_an_empty_residual():
    """E equals P_0: every draft token stands, nothing divides by zero, and the text is the primary's own sample."""
    ensemble = byte_ensemble(2, spread=0.6, twins=True)
    sampling = ed.Sampling(temperature=1.0, seed=1)
    method = ed.SAFE(base=EVERYWHERE, draft_length=3, sharpen=NONE)
    rows = ensemble.generate(["abcd"] * 20, method=method, max_new_tokens=8, sampling=sampling)
    alone = ensemble.generate(["abcd"] * 20, method=ed.Single(), max_new_tokens=8, sampling=sampling)
    agree = sum(one.token_ids == other.token_ids for one, other in zip(rows, alone, strict=True))
    assert agree >= 19  # rounding may leave E a hair under P_0
    assert all(row.error is None for row in rows)


def test_case_28_temperature_near_zero_is_greedy():
    """Methods without drafts write their greedy text; SAFE, whose sampled variant knows no unanimity, that of its base
    at every token."""
    ensemble = byte_ensemble(2, spread=0.6)

    def cold(method):
        return ensemble.generate(MIXED, method=method, max_new_tokens=10, sampling=ed.Sampling(1e-4, seed=2))

    for method in (ed.UniTE(), ed.GaC(), ed.Single()):
        zero = ensemble.generate(MIXED, method=method, max_new_tokens=10)
        assert all(same(one, other) for one, other in zip(cold(method), zero, strict=True)), method
    every = ensemble.generate(MIXED, method=ed.UniTE(), max_new_tokens=10)
    drafted = cold(ed.SAFE(sharpen=NONE))
    assert [row.token_ids for row in drafted] == [row.token_ids for row in every]
    assert [row.token_ids for row in drafted] != [row.token_ids for row in cold(ed.Single())]
