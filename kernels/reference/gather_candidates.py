"""Reference of `gather_candidates`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import MAX_FLOAT, NEG_INF, allowed_bits, partition
from torch import Tensor


def gather_candidates(
    logits: Tensor,
    cids: Tensor,
    ids_of: Tensor,
    eos_ids: Tensor,
    allowed: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """See `ensemble_decode.kernels.gather_candidates`."""
    size = ids_of.shape[0]
    valid = (cids >= 0) & (cids < size)
    ids = torch.where(valid, ids_of[torch.where(valid, cids, 0)], -1)
    return gather_ids(logits, ids, valid & (cids == size - 1), eos_ids, allowed, dtype)


def gather_ids(
    logits: Tensor, ids: Tensor, is_end: Tensor, eos_ids: Tensor, allowed: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Logits of `ids` [B, U], −inf where an id is −1, not allowed or NaN; the score of END where `is_end`."""
    scores = read(logits, ids, allowed, dtype)
    end = end_score(logits, eos_ids, allowed, dtype)
    return torch.where(is_end, end.unsqueeze(-1), scores)


def read(logits: Tensor, ids: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Logits of `ids` [B, U]; −inf where an id is out of range, not allowed or NaN."""
    valid = (ids >= 0) & (ids < logits.shape[1])
    ids = torch.where(valid, ids, 0).to(torch.int64)
    if allowed is not None:
        valid = valid & allowed_bits(allowed, ids)
    scores = logits.gather(1, ids).to(dtype)
    return torch.where(valid & ~torch.isnan(scores), scores, NEG_INF)


def end_score(logits: Tensor, eos_ids: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Log-sum-exp [B] of the logits of the EOS ids; −inf where there are none."""
    scores = read(logits, eos_ids.unsqueeze(0).expand(logits.shape[0], -1), allowed, dtype)
    top, total = partition(scores.clamp(max=MAX_FLOAT))
    end = torch.where(total == 0, NEG_INF, top + torch.where(total == 0, 1.0, total).log())
    return torch.where((scores == float("inf")).any(-1), float("inf"), end)
