# mypy: allow-untyped-defs
"""cids = sorted(⋃_m to_cid_m[ids_m]) of every row, −1 padded, and their number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.candidates import store_cids, union
from ensemble_decode.kernels.triton_.launch import FINISH_OPTIONS, next_power_of_two
from torch import Tensor


@triton.jit
def union_topk_kernel(
    ids,
    widths,
    to_cid,
    vocab,
    found_ptr,
    cids_ptr,
    count_ptr,
    n,
    MODELS: tl.constexpr,
    K: tl.constexpr,
    UNION: tl.constexpr,
):
    """One program per row: map, sort, drop repeats."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K)
    found_ptr += row * n
    start = 0
    for m in tl.static_range(MODELS):
        inside = column < widths[m]
        best = tl.load(ids[m] + row * widths[m] + column, mask=inside, other=-1)
        store_cids(best, inside, to_cid[m], vocab[m], found_ptr + start, column, widths[m])
        start += widths[m]
    tl.store(count_ptr + row, union(found_ptr, n, cids_ptr + row * n, UNION))


def union_topk(ids: Sequence[Tensor], to_cid: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """See `ensemble_decode.kernels.union_topk`."""
    batch, device = ids[0].shape[0], ids[0].device
    widths = tuple(x.shape[1] for x in ids)
    cids = torch.empty((batch, sum(widths)), dtype=torch.int32, device=device)
    count = torch.empty(batch, dtype=torch.int32, device=device)
    if batch == 0 or sum(widths) == 0:
        return cids, count.zero_()
    union_topk_kernel[(batch,)](
        tuple(x.contiguous() for x in ids),
        widths,
        tuple(table.contiguous() for table in to_cid),
        tuple(table.shape[0] for table in to_cid),
        torch.empty_like(cids),
        cids,
        count,
        sum(widths),
        MODELS=len(ids),
        K=next_power_of_two(max(widths)),
        UNION=next_power_of_two(sum(widths)),
        **FINISH_OPTIONS,
    )
    return cids, count
