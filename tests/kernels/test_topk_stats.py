"""`topk_stats` against float64 brute force, on every implementation."""

from __future__ import annotations

import math

import pytest
import torch
from support import kernel_cases as cases
from support import kernel_oracle as oracle

from ensemble_decode import kernels


def check(result, logits, k, mask=None, rows=None):
    """Ids exactly, values bitwise, statistics within 1e-5 of float64."""
    assert result.values.dtype == result.logsumexp.dtype == result.entropy.dtype == torch.float32
    assert result.ids.dtype == result.flags.dtype == torch.int32
    assert result.ids.shape == result.values.shape == (logits.shape[0], k)
    assert all(t.is_contiguous() for t in result)
    for b in range(logits.shape[0]) if rows is None else rows:
        allowed = None if mask is None else mask[b if mask.shape[0] > 1 else 0].numpy()
        values, ids, logsumexp, entropy, flags = oracle.topk(logits[b].double().numpy(), k, allowed)
        assert result.ids[b].tolist() == ids
        assert result.values[b].tolist() == values
        assert result.logsumexp[b].item() == pytest.approx(logsumexp, abs=1e-5, rel=1e-6)
        assert result.entropy[b].item() == pytest.approx(entropy, abs=1e-5)
        assert result.flags[b].item() == flags
        assert not any(math.isnan(v) for v in result.values[b].tolist())


def covering():
    """Every builder with every vocabulary; batch, k and type run through their values at coprime paces."""
    for i, builder in enumerate(cases.BUILDERS):
        for j, size in enumerate(cases.VOCABULARIES):
            n = i * len(cases.VOCABULARIES) + j
            batch = cases.BATCHES[(n + i) % 4]
            if size > 32_000 and batch == 64 and i % 4:
                batch = 3
            k = (*cases.KS, min(size + 3, 1024))[n % 6]
            yield pytest.param(builder, size, batch, k, cases.DTYPES[n % 3], id=f"{builder}-{size}-b{batch}-k{k}")


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
@pytest.mark.parametrize(("builder", "size", "batch", "k", "dtype"), list(covering()))
def test_equals_brute_force(implementation, device, builder, size, batch, k, dtype):
    if cases.slow(implementation, device):
        if size > 32_000:
            pytest.skip("too large for the interpreter")
        batch, k = min(batch, 3 if size < 32_000 else 1), min(k, 120 if size < 32_000 else 16)
    logits = cases.BUILDERS[builder](batch, size, dtype, torch.Generator().manual_seed(size + batch))
    result = kernels.topk_stats(cases.on(logits, device), k, implementation=implementation)
    rows = range(batch) if size * batch <= 200_000 else sorted({0, 1 % batch, batch // 2, batch - 1})
    check(result, logits, k, rows=rows)


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
@pytest.mark.parametrize("size", [1, 7, 31, 32, 33, 111, 8191, 8192, 8193, 50_257])
@pytest.mark.parametrize("shared", [False, True], ids=["per-row", "one-row"])
def test_masked_rows(implementation, device, size, shared):
    """Banned ids are gone before top-k, log-sum-exp and entropy; a NaN among them is no NaN; bits past V are
    ignored."""
    batch, k = 5, 10
    if cases.slow(implementation, device):
        if size > 10_000:
            pytest.skip("too large for the interpreter")
        batch = 4
    g = torch.Generator().manual_seed(size)
    logits = cases.normal(batch, size, torch.bfloat16, g)
    mask = cases.masks(batch, size, g)
    mask = mask[2:3] if shared else mask
    logits[:, ::3] = torch.where(mask[:, ::3], logits[:, ::3], math.nan)
    args = cases.on([logits, cases.pack(mask)], device)
    result = kernels.topk_stats(args[0], k, args[1], implementation=implementation)
    check(result, logits, k, mask)
    if not shared:
        assert result.flags[0].item() == kernels.FLAG_EMPTY


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
@pytest.mark.parametrize("size", [111, 8192, 50_257])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_row_does_not_depend_on_its_batch(implementation, device, size, dtype):
    """Bitwise: alone, in batches of several sizes, at several places, and run to run."""
    interpreted = cases.slow(implementation, device)
    if interpreted and size > 10_000 and dtype != torch.bfloat16:
        pytest.skip("one type is enough of the largest size in the interpreter")
    batch = 3 if interpreted else 64
    logits = cases.on(cases.heavy_tail(batch, size, dtype, torch.Generator().manual_seed(1)), device)
    whole = kernels.topk_stats(logits, 16, implementation=implementation)
    cases.assert_equal(whole, kernels.topk_stats(logits, 16, implementation=implementation))
    for rows in ([0], [2, 1]) if interpreted else ([0], [1], [batch - 1], [2, 1], list(range(17))):
        part = kernels.topk_stats(logits[rows], 16, implementation=implementation)
        cases.assert_equal(part, kernels.TopkStats(*(field[rows] for field in whole)))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
def test_offsets_past_two_to_the_31(implementation, device):
    """The last row of a view whose row stride carries it past 2³¹ elements is read in the right place."""
    if device == "cpu":
        # 4 GiB of address space, of which only the touched pages become memory.
        memory = torch.empty(2**31 + 4096, dtype=torch.bfloat16)
    else:
        memory = torch.zeros(2**31 + 4096, dtype=torch.bfloat16, device=device)
    logits = memory.as_strided((2, 111), (2**31 + 64, 1))
    logits[0] = torch.arange(111.0)
    logits[1] = -torch.arange(111.0)
    result = kernels.topk_stats(logits, 3, implementation=implementation)
    assert result.ids.tolist() == [[110, 109, 108], [0, 1, 2]]


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
def test_flags_are_per_row(implementation, device):
    """Field case 27: one NaN row is flagged and counted as −inf there, its neighbours keep every bit."""
    logits = torch.tensor([[1.0, 2.0, 0.5], [math.nan, 1.0, 0.0], [-math.inf] * 3, [0.0, 1.0, 2.0]])
    result = kernels.topk_stats(logits.to(device), 2, implementation=implementation)
    assert result.flags.tolist() == [0, kernels.FLAG_NAN, kernels.FLAG_EMPTY, 0]
    assert result.ids.tolist() == [[1, 0], [1, 2], [-1, -1], [2, 1]]
    clean = kernels.topk_stats(logits[[0, 3]].to(device), 2, implementation=implementation)
    cases.assert_equal(clean, kernels.TopkStats(*(field[[0, 3]] for field in result)))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("topk_stats"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_any_magnitude(implementation, device, dtype):
    """From 1e-30 to nearly the largest float32, both signs: what rounding the maximum leaves over must not overflow."""
    tops = torch.tensor(
        [s * m * (1 + i / 13) for m in 10.0 ** torch.arange(-30, 38).double() for s in (1, -1) for i in (0, 5)]
    )
    if cases.slow(implementation, device):
        tops = tops[::15]
    two = (-4 * tops.abs()).unsqueeze(1).repeat(1, 9000).to(dtype)
    two[:, [7, 8500]] = tops.unsqueeze(1).to(dtype)
    equal = tops.to(dtype).unsqueeze(1).repeat(1, 9000)
    for logits in (two, equal):
        result = kernels.topk_stats(logits.to(device), 3, implementation=implementation)
        exact = logits.double()
        log_p = exact.log_softmax(-1)
        torch.testing.assert_close(result.logsumexp.cpu().double(), exact.logsumexp(-1), rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(result.entropy.cpu().double(), -(log_p.exp() * log_p).sum(-1), rtol=0, atol=1e-5)


def test_float64_reference_is_an_oracle():
    """In float64 the reference's statistics equal brute force to 1e-12."""
    logits = torch.randn(2, 5000, dtype=torch.float64) * 10
    from ensemble_decode.kernels.reference import topk_stats

    result = topk_stats(logits, 300, dtype=torch.float64)
    for b in range(2):
        _, ids, logsumexp, entropy, _ = oracle.topk(logits[b].tolist(), 300)
        assert result.ids[b].tolist() == ids
        assert result.logsumexp[b].item() == pytest.approx(logsumexp, abs=1e-12)
        assert result.entropy[b].item() == pytest.approx(entropy, abs=1e-12)


@pytest.mark.parametrize(
    ("logits", "k", "allowed", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), 1, None, "float32, bfloat16 or float16"),
        (torch.zeros(3), 1, None, r"shape \[rows, vocabulary\]"),
        (torch.zeros(2, 0), 1, None, "at least one id"),
        (torch.zeros(3, 2).t(), 1, None, "stride 1"),
        (torch.zeros(2, 3), 0, None, "k must be within"),
        (torch.zeros(2, 3), 1025, None, "k must be within"),
        (torch.zeros(2, 3), 1, torch.zeros(2, 1), "int32"),
        (torch.zeros(2, 33), 1, torch.zeros(2, 1, dtype=torch.int32), r"shape \[any, 2\]"),
        (torch.zeros(3, 3), 1, torch.zeros(2, 1, dtype=torch.int32), "1 or 3 rows"),
    ],
)
def test_errors_name_what_is_wrong(logits, k, allowed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kernels.topk_stats(logits, k, allowed)
