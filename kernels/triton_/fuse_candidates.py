# mypy: allow-untyped-defs
"""E = aggregate of q_m = softmax_U(s_m) over models; gate, sharpen, choose: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.fuse import fuse
from ensemble_decode.kernels.triton_.launch import FINISH_OPTIONS, contiguous, next_power_of_two
from ensemble_decode.kernels.types import Fused, FuseSettings
from torch import Tensor


@triton.jit(do_not_specialize=["batch"])
def fuse_candidates_kernel(
    scores_ptr,
    cids_ptr,
    logsumexp_ptr,
    tops_ptr,
    tops,
    primary_max_ptr,
    primary_cid_ptr,
    prefix_end_ptr,
    size,
    space_cid,
    settings,
    out,
    batch,
    width,
    models,
    MODELS: tl.constexpr,
    UNION: tl.constexpr,
):
    """One program per row: aggregate, gate, sharpen, choose."""
    row = tl.program_id(0).to(tl.int64)
    model = tl.arange(0, MODELS)
    at = tl.arange(0, UNION)
    cell = model[:, None].to(tl.int64) * batch + row
    live = (model < models)[:, None] & (at < width)[None, :]
    choice, _, flags = fuse(
        tl.load(scores_ptr + cell * width + at[None, :], mask=live, other=float("-inf")),
        tl.load(cids_ptr + row * width + at, mask=at < width, other=-1),
        tl.load(logsumexp_ptr + model * batch + row, mask=model < models, other=float("-inf")),
        tops_ptr + row * tops,
        tops,
        tl.load(primary_max_ptr + row),
        tl.load(primary_cid_ptr + row),
        prefix_end_ptr,
        size,
        space_cid,
        settings,
        out,
        row,
        batch,
        width,
        models,
        MODELS,
        UNION,
    )
    tl.store(out.choice + row, choice)
    tl.store(out.flags + row, flags)


def fuse_candidates(
    scores: Tensor,
    cids: Tensor,
    logsumexp: Tensor,
    primary_topk_cids: Tensor,
    primary_max: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: FuseSettings,
) -> Fused:
    """See `ensemble_decode.kernels.fuse_candidates`."""
    models, batch, width = scores.shape
    f32, i32, flag = torch.float32, torch.int32, torch.bool
    rows = dict.fromkeys(("max_prob", "entropy", "js"), f32) | {"choice": i32, "flags": i32}
    rows |= dict.fromkeys(("ensembled", "sharpened"), flag)
    out = Fused(
        probs=scores.new_empty((batch, width)),
        kl=scores.new_empty((models, batch)),
        **{name: scores.new_empty(batch, dtype=dtype) for name, dtype in rows.items()},
    )
    if batch == 0:
        return out
    fuse_candidates_kernel[(batch,)](
        scores.contiguous(),
        cids.contiguous(),
        logsumexp.contiguous(),
        primary_topk_cids.contiguous(),
        primary_topk_cids.shape[1],
        primary_max.contiguous(),
        primary_cid.contiguous(),
        prefix_end.contiguous(),
        prefix_end.shape[0],
        space_cid,
        contiguous(settings),
        out,
        batch,
        width,
        models,
        MODELS=next_power_of_two(models),
        UNION=next_power_of_two(max(width, 1)),
        **FINISH_OPTIONS,
    )
    return out
