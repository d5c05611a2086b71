"""Reference of `topk_stats`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import (
    MAX_FLOAT,
    NEG_INF,
    below_max,
    masked,
    row_max,
    select_top,
    tree_sum,
)
from ensemble_decode.kernels.types import FLAG_EMPTY, FLAG_NAN, TopkStats
from torch import Tensor


def topk_stats(
    logits: Tensor, k: int, allowed: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> TopkStats:
    """See `ensemble_decode.kernels.topk_stats`."""
    x, nan = masked(logits, allowed, dtype)
    values, ids = select_top(x, k)
    logsumexp, entropy = softmax_stats(x)
    flags = nan * FLAG_NAN + (logsumexp == NEG_INF) * FLAG_EMPTY
    return TopkStats(values, ids.to(torch.int32), logsumexp, entropy, flags.to(torch.int32))


def softmax_stats(x: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and entropy of each row of masked logits: H = log Z − Σ e^(x−m) (x−m) / Z."""
    top = row_max(x)
    delta, alive = below_max(x.clamp(max=MAX_FLOAT))
    weight = torch.where(alive, delta.exp(), 0.0)
    total = tree_sum(weight)
    empty = top == NEG_INF
    safe = torch.where(empty, 1.0, total)
    entropy = safe.log() - tree_sum(weight * delta) / safe
    logsumexp = torch.where(empty, NEG_INF, torch.where(empty, 0.0, top) + safe.log())
    return logsumexp, torch.where(empty, 0.0, entropy.clamp(min=0.0))
