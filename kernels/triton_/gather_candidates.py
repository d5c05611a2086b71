# mypy: allow-untyped-defs
"""score(u) = logits[ids_of[u]]; at END log Σ exp logits[eos_ids]; −inf where the model has no id for u."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.candidates import candidate_scores
from ensemble_decode.kernels.triton_.launch import FINISH_OPTIONS, next_power_of_two
from torch import Tensor


@triton.jit
def gather_candidates_kernel(
    logits_ptr,
    stride,
    vocab,
    allowed_ptr,
    allowed_stride,
    cids_ptr,
    cids_stride,
    ids_of_ptr,
    size,
    eos_ptr,
    eos_count,
    scores_ptr,
    n,
    MASKED: tl.constexpr,
    EOS: tl.constexpr,
    UNION: tl.constexpr,
):
    """The scores of one block of candidates."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * UNION + tl.arange(0, UNION)
    cids = tl.load(cids_ptr + row * cids_stride + at, mask=at < n, other=-1)
    scores = candidate_scores(
        logits_ptr + row * stride,
        cids,
        ids_of_ptr,
        size,
        eos_ptr,
        eos_count,
        vocab,
        allowed_ptr + row * allowed_stride,
        MASKED,
        EOS,
    )
    tl.store(scores_ptr + row * n + at, scores, mask=at < n)


def gather_candidates(
    logits: Tensor, cids: Tensor, ids_of: Tensor, eos_ids: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """See `ensemble_decode.kernels.gather_candidates`."""
    batch, width = cids.shape
    scores = torch.empty((batch, width), dtype=torch.float32, device=logits.device)
    if scores.numel() == 0:
        return scores
    cids = cids.contiguous()
    block = min(1024, next_power_of_two(width))
    gather_candidates_kernel[(batch, (width + block - 1) // block)](
        logits,
        logits.stride(0),
        logits.shape[1],
        logits if allowed is None else allowed,
        0 if allowed is None or allowed.shape[0] == 1 else allowed.stride(0),
        cids,
        cids.stride(0),
        ids_of.contiguous(),
        ids_of.shape[0],
        eos_ids.contiguous(),
        eos_ids.shape[0],
        scores,
        width,
        MASKED=allowed is not None,
        EOS=next_power_of_two(max(1, eos_ids.shape[0])),
        UNION=block,
        **FINISH_OPTIONS,
    )
    return scores
