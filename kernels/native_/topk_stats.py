"""C++ implementation of `topk_stats`: one read of the logits, then exact selection from a few groups per row."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.native_.cuda import topk_stats as topk_stats_on_cuda
from ensemble_decode.kernels.native_.extension import core, shared
from ensemble_decode.kernels.types import TopkStats
from torch import Tensor


def topk_stats(logits: Tensor, k: int, allowed: Tensor | None = None) -> TopkStats:
    """See `ensemble_decode.kernels.topk_stats`; CPU tensors, and CUDA tensors where that stage was compiled."""
    if logits.is_cuda:
        return topk_stats_on_cuda(logits, k, allowed)
    rows = logits.shape[0]
    out = TopkStats(
        values=torch.empty((rows, k), dtype=torch.float32),
        ids=torch.empty((rows, k), dtype=torch.int32),
        logsumexp=torch.empty(rows, dtype=torch.float32),
        entropy=torch.empty(rows, dtype=torch.float32),
        flags=torch.empty(rows, dtype=torch.int32),
    )
    source, mask, *written = shared((logits, None if allowed is None else allowed.contiguous(), *out))
    core().topk_stats(source, k, mask, *written, torch.get_num_threads())
    return out
