"""`sample_tokens`, `token_probs`, `uniform` and `full_distribution` against brute force and against each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from support import kernel_cases as cases
from support import kernel_oracle as oracle
from support.kernel_oracle import noise_by_hand

from ensemble_decode import kernels

FILTERS = (
    {},
    {"top_p": 0.9},
    {"top_p": 0.3, "sample_top_k": 9},
    {"sample_top_k": 40},
    {"min_p": 0.2},
    {"top_p": 0.95, "min_p": 0.01, "sample_top_k": 700},
    {"top_p": 0.0},
)
WIDE = {
    "flat": lambda g: torch.randn(2, 40_000, generator=g) * 0.1,
    "normal": lambda g: torch.randn(2, 40_000, generator=g) * 3,
    "peaked": lambda g: torch.randn(2, 40_000, generator=g).index_fill_(1, torch.tensor([777]), 20.0),
    "equal": lambda g: torch.zeros(2, 40_000),
    "few": lambda g: torch.where(torch.rand(2, 40_000, generator=g) < 1e-3, 1.0, -math.inf),
}


def settings_of(count: int, device: str, temperature: float, filters: dict) -> kernels.SampleSettings:
    rows = list(range(count))
    return kernels.SampleSettings.make(count, device, temperature=temperature, seed=7, row=rows, step=3, **filters)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize(("implementation", "device"), cases.targets("sample_tokens"))
def test_draws_equal_gumbel_max_over_a_full_sort(implementation, device, filters, temperature):
    """Small rows with every edge, by the rule in Python: masks, NaN, infinities, ties."""
    g = torch.Generator().manual_seed(1)
    size = 300
    for name in ("normal", "ties_at_rank_k", "minus_inf_rows", "plus_inf", "nan_rows", "all_equal"):
        logits = cases.BUILDERS[name](6, size, torch.float32, g)
        mask = cases.masks(6, size, g)
        args = (cases.on(logits, device), cases.pack(mask).to(device), settings_of(6, device, temperature, filters))
        got = kernels.sample_tokens(*args, implementation=implementation).tolist()
        probs = kernels.token_probs(*args, implementation=implementation).cpu()
        for b in range(6):
            p = dict(filters)
            want = oracle.kept(logits[b].tolist(), mask[b].tolist(), temperature, p.pop("sample_top_k", 0), **p)
            noise = [noise_by_hand(i, 7, b, 3) for i in range(size)]
            choice, lead = oracle.drawn(want, noise)
            if want.margin < 1e-6:
                continue
            assert set(probs[b].nonzero()[:, 0].tolist()) == {i for i in want.ids if want.log[i] > -80}, (name, b)
            assert probs[b].sum().item() == pytest.approx(1.0 if want.ids else 0.0, abs=1e-5)
            if lead > 1e-5:
                assert got[b] == choice, (name, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("build", WIDE)
@pytest.mark.parametrize(("implementation", "device"), cases.targets("token_probs"))
def test_a_selected_nucleus_equals_a_full_sort(implementation, device, build, dtype):
    """Wide rows, where nothing is sorted: the head alone, the whole row by radix, and ties across the end of either."""
    logits = WIDE[build](torch.Generator().manual_seed(2)).to(dtype)
    values = logits.double().numpy()
    for top_p, top_k, temperature in itertools.product((0.5, 0.95, 0.999), (0, 30, 5000), (0.7, 1.0, 1.4)):
        filters = {"top_p": top_p, "sample_top_k": top_k}
        made = settings_of(2, device, temperature, filters)
        probs = kernels.token_probs(logits.to(device), None, made, implementation=implementation).cpu()
        drawn = kernels.sample_tokens(logits.to(device), None, made, implementation=implementation)
        for b in range(2):
            want = oracle.kept(values[b], None, temperature, top_k, top_p)
            assert probs[b, drawn[b]] > 0
            missed = set(probs[b].nonzero()[:, 0].tolist()) ^ want.ids
            # Where the mass before a member comes within rounding of top_p, that member may fall on either side.
            assert not missed if want.margin > 2e-6 else len(missed) <= 1, (filters, temperature, b)


@pytest.mark.parametrize(("implementation", "device"), cases.targets("sample_tokens"))
def test_rounding_does_not_change_draws(implementation, device):
    """Rows of 130 000 nearly equal candidates, and the same with what another batch size adds: no draw changes.

    Inverting a cumulative sum would change many: the sum before a candidate drifts with every summand.
    """
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(48, 130_000, generator=g) * 0.1
    drift = (torch.rand(48, 130_000, generator=g) - 0.3) * 2e-7
    made = settings_of(48, device, 1.0, {})
    one, other = (
        kernels.sample_tokens(x.to(device), None, made, implementation=implementation) for x in (logits, logits + drift)
    )
    assert torch.equal(one, other)
    assert len(set(one.tolist())) > 40
    part = kernels.SampleSettings(*(f[5:6] for f in made))
    alone = kernels.sample_tokens(logits[5:6].to(device), None, part, implementation=implementation)
    assert torch.equal(alone, one[5:6])


@pytest.mark.parametrize(("implementation", "device"), cases.targets("sample_tokens"))
def test_frequencies_follow_the_softmax(implementation, device):
    """Chi-square at 99.99 % over 20 000 rows; fixed seeds."""
    logits = torch.randn(1, 7, generator=torch.Generator().manual_seed(5)).expand(20_000, -1).to(device)
    got = kernels.sample_tokens(logits, None, settings_of(20_000, device, 1.0, {}), implementation=implementation)
    want = logits[0].cpu().double().softmax(-1).numpy() * 20_000
    seen = np.bincount(got.cpu().numpy(), minlength=7)
    assert ((seen - want) ** 2 / want).sum() < 27.9


@pytest.mark.parametrize(("implementation", "device"), cases.targets("sample_tokens"))
def test_numbers_choose_the_noise_and_temperature_zero_is_greedy(implementation, device):
    g = torch.Generator().manual_seed(6)
    logits = torch.randn(40, 900, generator=g).to(device)
    numbers = torch.stack([torch.randperm(900, generator=g) for _ in range(40)]).int().to(device)
    made = settings_of(40, device, 1.0, {})
    got = kernels.sample_tokens(logits, None, made, numbers, implementation=implementation)
    shuffled = torch.zeros_like(logits).scatter_(1, numbers.long(), logits)
    same = kernels.sample_tokens(shuffled, None, made, implementation=implementation)
    assert torch.equal(numbers.gather(1, got.long().unsqueeze(1))[:, 0], same)
    greedy = made._replace(temperature=torch.zeros_like(made.temperature))
    got = kernels.sample_tokens(logits, None, greedy, implementation=implementation)
    assert torch.equal(got, kernels.topk_stats(logits, 1).ids[:, 0])


def test_uniform_is_the_number_behind_the_noise():
    seed, row, step = (torch.tensor([x]) for x in (2**40 + 3, 2**33 + 5, 9))
    r = kernels.uniform(seed, row, step, 0xFFFFFFFE).item()
    assert -math.log(-math.log(r)) == pytest.approx(noise_by_hand(0xFFFFFFFE, 2**40 + 3, 2**33 + 5, 9), rel=1e-12)
    with pytest.raises(ValueError, match="word must lie between 0 and"):
        kernels.uniform(seed, row, step, -1)


@pytest.mark.parametrize(("implementation", "device"), cases.targets("full_distribution"))
def test_the_full_distribution_is_what_fuse_full_lists(implementation, device):
    rng = np.random.default_rng(8)
    vocab = cases.random_vocab(rng, [40, 60])
    tensors = cases.vocab_tensors(vocab, device)
    logits = [torch.tensor(rng.normal(size=(5, len(m))) * 2, dtype=torch.float32, device=device) for m in vocab.models]
    made = kernels.FuseSettings.make(5, 2, device, sharpen="prefix", gate="max_prob", gate_threshold=0.6)
    probs, ensembled = kernels.full_distribution(logits, tensors, made, 10, implementation=implementation)
    step = kernels.fuse_full(logits, tensors, made, 10, implementation="reference")
    assert torch.equal(ensembled, step.ensembled)
    listed = probs.gather(1, step.cids.clamp_min(0).long()).where(step.cids >= 0, 0.0)
    torch.testing.assert_close(listed, step.probs)
