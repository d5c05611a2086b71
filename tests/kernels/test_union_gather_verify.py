"""`union_topk`, `gather_candidates` and `verify_draft` against brute force and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import kernel_cases as cases
from support import kernel_oracle as oracle

from ensemble_decode import kernels

INF = math.inf


def i32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize(("implementation", "device"), cases.targets("union_topk"))
def test_union_by_hand(implementation, device):
    """Duplicates across and within models, −1 ids, ids without a candidate, an empty row."""
    ids = [i32([[0, 1, -1], [2, 3, 0], [-1, -1, -1]], device), i32([[1, 0], [2, 2], [-1, 2]], device)]
    to_cid = [i32([5, 2, 7, 7], device), i32([2, 0, -1], device)]
    cids, count = kernels.union_topk(ids, to_cid, implementation=implementation)
    assert cids.dtype == count.dtype == torch.int32
    assert cids.tolist() == [[0, 2, 5, -1, -1], [5, 7, -1, -1, -1], [-1] * 5]
    assert count.tolist() == [3, 2, 0]


@pytest.mark.parametrize(("implementation", "device"), cases.targets("union_topk"))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_union_equals_python_sets(implementation, device, seed):
    rng = np.random.default_rng(seed)
    batch, models = int(rng.integers(0, 5)), int(rng.integers(1, 5))
    sizes = rng.integers(1, 60, models)
    to_cid = [rng.integers(-1, 40, size).astype(np.int32) for size in sizes]
    ids = [rng.integers(-1, size, (batch, int(rng.integers(1, 20)))).astype(np.int32) for size in sizes]
    cids, count = kernels.union_topk(
        [torch.from_numpy(x).to(device) for x in ids],
        [torch.from_numpy(x).to(device) for x in to_cid],
        implementation=implementation,
    )
    for b in range(batch):
        found = {int(t[i]) for x, t in zip(ids, to_cid, strict=True) for i in x[b] if i >= 0} - {-1}
        assert count[b].item() == len(found)
        assert cids[b].tolist() == sorted(found) + [-1] * (cids.shape[1] - len(found))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("gather_candidates"))
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_gather_by_hand(implementation, device, dtype):
    """Copies bitwise; padding, no id, banned and NaN score −inf; END is the log-sum-exp of the EOS logits."""
    logits = torch.tensor([[0.1, math.nan, 3.0, INF, 1.0], [0.2, 0.3, -INF, 1e4, 2.0]]).to(dtype)
    ids_of = i32([2, 0, -1, 1, 3, 4, -1], device)
    cids = i32([[0, 1, 2, 3, 4, 6, -1], [6, 5, 0, 1, -1, -1, -1]], device)
    allowed = cases.pack(torch.tensor([[True, True, True, True, False]])).to(device)
    args = (logits.to(device), cids, ids_of, i32([0, 4], device))
    got = kernels.gather_candidates(*args, implementation=implementation).cpu()
    x = logits.float()
    ends = [oracle.logsumexp([row[0].item(), row[4].item()]) for row in x]
    assert got[0, :5].tolist() == [3.0, x[0, 0].item(), -INF, -INF, INF]
    assert got[0, 5].item() == pytest.approx(ends[0], abs=1e-6)
    assert got[1, 0].item() == pytest.approx(ends[1], abs=1e-6)
    assert got[1, 1:4].tolist() == [2.0, -INF, x[1, 0].item()]
    assert (got[:, 6] == -INF).all()
    banned = kernels.gather_candidates(*args, allowed, implementation=implementation).cpu()
    assert banned[0, 5].item() == x[0, 0].item()
    assert banned[1, 1].item() == -INF


@pytest.mark.parametrize(("implementation", "device"), cases.targets("gather_candidates"))
@pytest.mark.parametrize(
    ("eos", "expected"), [([], -INF), ([1], 3.0), ([2], -INF), ([0], INF), ([0, 1], INF), ([2, 3], -INF)]
)
def test_gather_end_at_the_edges(implementation, device, eos, expected):
    logits = torch.tensor([[INF, 3.0, -INF, math.nan]], device=device)
    got = kernels.gather_candidates(
        logits, i32([[0]], device), i32([-1], device), i32(eos, device), implementation=implementation
    )
    assert got.item() == expected


@pytest.mark.parametrize(("implementation", "device"), cases.targets("gather_candidates"))
@pytest.mark.parametrize("builder", ["padded_stride", "misaligned", "same_row_twice"])
def test_gather_follows_strides(implementation, device, builder):
    logits = cases.BUILDERS[builder](4, 111, torch.bfloat16, torch.Generator().manual_seed(0))
    cids = torch.arange(111, dtype=torch.int32).flip(0).expand(4, 111).contiguous()
    ids_of = i32([*range(111), -1])
    args = cases.on([logits, cids, ids_of, i32([])], device)
    got = kernels.gather_candidates(*args, implementation=implementation).cpu()
    assert torch.equal(got, logits.float().flip(1))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("verify_draft"))
@pytest.mark.parametrize("builder", list(cases.BUILDERS))
@pytest.mark.parametrize("size", [1, 7, 111, 8193])
@pytest.mark.parametrize("mask", [False, True], ids=["all", "masked"])
def test_verify_equals_brute_force(implementation, device, builder, size, mask):
    """Ordinary targets, END, nothing to check, EOS ids as plain targets; argmax is the smallest id among equals."""
    if cases.slow(implementation, device):
        turn = list(cases.BUILDERS).index(builder) + (1, 7, 111, 8193).index(size)
        if (turn + mask) % 4 or (size > 111 and turn % 3):
            pytest.skip("the interpreter takes every fourth case, one in twelve of the largest size")
    g = torch.Generator().manual_seed(size)
    rows = 12
    logits = cases.BUILDERS[builder](rows, size, torch.bfloat16, g)
    eos = sorted({0, size // 2})
    targets = torch.randint(0, size, (rows,), generator=g).tolist()
    targets[2], targets[3], targets[4] = -1, -2, eos[0]
    targets[6:9] = [-2, -2, -2]
    for b in (0, 1, 5, 9):
        best = oracle.order(oracle.clean(logits[b].double().numpy())[0])
        targets[b] = best[0] if best else 0
    allowed = cases.masks(rows, size, g) if mask else torch.ones(rows, size, dtype=torch.bool)
    args = cases.on([logits, i32(targets), cases.pack(allowed), i32(eos)], device)
    got = kernels.verify_draft(args[0], args[1], args[2] if mask else None, args[3], implementation=implementation)
    for b, target in enumerate(targets):
        x, nan = oracle.clean(logits[b].double().numpy(), allowed[b].numpy())
        best, z = oracle.order(x), oracle.logsumexp(x)
        top = best[0] if best else -1
        ids = eos if target == -2 else [target] if target >= 0 else []
        value = oracle.logsumexp([x[i] for i in ids])
        assert got.argmax[b].item() == top
        assert got.is_argmax[b].item() == (top in ids)
        assert got.target_prob[b].item() == pytest.approx(oracle.probability(value, z), abs=1e-5)
        assert got.logsumexp[b].item() == pytest.approx(z, abs=1e-5, rel=1e-6)
        assert got.flags[b].item() == int(nan) + 2 * (not best)
    for dtype, field in zip((torch.float32, torch.bool, torch.int32, torch.float32, torch.int32), got, strict=True):
        assert (field.dtype, field.shape) == (dtype, (rows,))


@pytest.mark.parametrize(("implementation", "device"), cases.targets("verify_draft"))
def test_verify_ignores_targets_outside_the_vocabulary(implementation, device):
    logits = torch.tensor([[1.0, 2.0]] * 3, device=device)
    got = kernels.verify_draft(
        logits, i32([2, -3, 2**31 - 1], device), None, i32([], device), implementation=implementation
    )
    assert got.target_prob.tolist() == [0.0] * 3
    assert got.is_argmax.tolist() == [False] * 3


@pytest.mark.parametrize(("implementation", "device"), cases.targets("verify_draft"))
def test_verify_without_rows_and_without_eos(implementation, device):
    none = kernels.verify_draft(
        torch.zeros(0, 9, device=device), i32([], device), None, i32([], device), implementation=implementation
    )
    assert all(field.shape == (0,) for field in none)
    end = kernels.verify_draft(
        torch.zeros(1, 9, device=device), i32([-2], device), None, i32([], device), implementation=implementation
    )
    assert (end.target_prob.item(), end.is_argmax.item()) == (0.0, False)


@pytest.mark.parametrize(("implementation", "device"), cases.targets("verify_draft"))
def test_verify_row_does_not_depend_on_its_batch(implementation, device):
    logits = cases.on(cases.heavy_tail(16, 9001, torch.bfloat16, torch.Generator().manual_seed(1)), device)
    targets = torch.arange(16, dtype=torch.int32, device=device) * 100 - 2
    eos = i32([3, 5], device)
    whole = kernels.verify_draft(logits, targets, None, eos, implementation=implementation)
    for rows in ([0], [15], [3, 2], list(range(7))):
        part = kernels.verify_draft(logits[rows], targets[rows], None, eos, implementation=implementation)
        cases.assert_equal(part, kernels.VerifyDraft(*(field[rows] for field in whole)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.union_topk([], []), "one entry per model"),
        (lambda: kernels.union_topk([i32([[0]])], [i32([0]), i32([0])]), "one entry per model, got 1 and 2"),
        (
            lambda: kernels.union_topk([i32([[0]]), i32([[0], [0]])], [i32([0])] * 2),
            r"ids\[1\] must have shape \[1, any\]",
        ),
        (lambda: kernels.union_topk([torch.zeros(1, 1)], [i32([0])]), r"ids\[0\] must be torch.int32"),
        (
            lambda: kernels.gather_candidates(torch.zeros(2, 3), i32([[0]]), i32([0]), i32([])),
            r"cids must have shape \[2",
        ),
        (lambda: kernels.gather_candidates(torch.zeros(1, 3), i32([[0]]), i32([0]), [1]), "eos_ids must be a tensor"),
        (lambda: kernels.verify_draft(torch.zeros(2, 3), i32([0]), None, i32([])), r"targets must have shape \[2\]"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
