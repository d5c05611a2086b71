"""`topk_stats` of CUDA tensors: the streaming stage in CUDA C++, the selection from its group maxima in torch."""

from __future__ import annotations

import math

import torch
from ensemble_decode.kernels.native_.extension import cuda_stage
from ensemble_decode.kernels.reference.gather_candidates import read
from ensemble_decode.kernels.reference.numerics import MAX_FLOAT, NEG_INF, select_top
from ensemble_decode.kernels.types import FLAG_EMPTY, FLAG_NAN, TopkStats
from torch import Tensor

CHUNK = 8192
GROUP = 128
_LOG2E = 1.0 / math.log(2.0)


def topk_stats(logits: Tensor, k: int, allowed: Tensor | None = None) -> TopkStats:
    """See `ensemble_decode.kernels.topk_stats`; CUDA tensors."""
    stage = cuda_stage()
    if stage is None:
        raise RuntimeError("the native topk_stats cannot run on CUDA tensors: the package was built without nvcc")
    rows, chunks = logits.shape[0], -(-logits.shape[1] // CHUNK)
    partials = torch.empty((rows, chunks, 4), dtype=torch.float32, device=logits.device)
    maxima = torch.empty((rows, chunks * (CHUNK // GROUP)), dtype=torch.float32, device=logits.device)
    mask = None if allowed is None else allowed.contiguous()
    with torch.cuda.device(logits.device):
        stage.topk_stream(logits.detach(), mask, partials, maxima, torch.cuda.current_stream().cuda_stream)
    return finish(logits, k, allowed, partials, maxima)


def finish(logits: Tensor, k: int, allowed: Tensor | None, partials: Tensor, maxima: Tensor) -> TopkStats:
    """Stage 2, on any device: statistics from the chunks' sums, the k best entries from the best groups alone.

    `partials` f32 [B, C, 4] holds per chunk (max m, Σ 2^z, Σ 2^z z, NaN seen) with z = (x − m) log₂e; `maxima` f32
    [B, C · 64] the maximum of every 128 logits. A group that is not among the k best by (maximum descending, group
    ascending) cannot hold one of the k best entries.
    """
    top, total, weighted, nan = partials.to(torch.float64).unbind(-1)
    bounded = top.clamp(-MAX_FLOAT, MAX_FLOAT)
    best = bounded.amax(-1, keepdim=True)
    step = (bounded - best).clamp(min=-1000.0) * _LOG2E
    factor = torch.exp2(step)
    total = torch.where(top == NEG_INF, 0.0, factor * total)
    weighted = torch.where(top == NEG_INF, 0.0, factor * weighted + step * total)
    empty = (top == NEG_INF).all(-1)
    z = torch.where(empty, 1.0, total.sum(-1))
    logsumexp = torch.where(empty, NEG_INF, top.amax(-1) + z.log())
    entropy = (z.log() - math.log(2.0) * weighted.sum(-1) / z).clamp(min=0.0)
    flags = (nan > 0).any(-1) * FLAG_NAN + empty * FLAG_EMPTY

    groups = select_top(maxima, min(k, maxima.shape[1]))[1].sort(-1).values
    ids = (groups.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    ids = torch.where((groups < 0).repeat_interleave(GROUP, 1), -1, ids)
    values, position = select_top(read(logits, ids, allowed, torch.float32), k)
    ids = torch.where(position >= 0, ids.gather(1, position.clamp(min=0)), -1)
    return TopkStats(
        values, ids.to(torch.int32), logsumexp.to(torch.float32), entropy.to(torch.float32), flags.to(torch.int32)
    )
