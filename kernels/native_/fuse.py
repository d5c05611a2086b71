"""C++ implementations of `fuse_candidates`, `fuse_step` and `fuse_full`: one call per step, rows in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ensemble_decode.kernels.native_.extension import core, shared, writable
from ensemble_decode.kernels.types import Fused, FuseSettings, FuseStep, VocabTensors
from torch import Tensor


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
    """See `ensemble_decode.kernels.fuse_candidates`; CPU tensors."""
    models, rows, width = scores.shape
    out = Fused(
        probs=torch.empty((rows, width), dtype=torch.float32),
        choice=torch.empty(rows, dtype=torch.int32),
        max_prob=torch.empty(rows, dtype=torch.float32),
        entropy=torch.empty(rows, dtype=torch.float32),
        kl=torch.empty((models, rows), dtype=torch.float32),
        js=torch.empty(rows, dtype=torch.float32),
        ensembled=torch.empty(rows, dtype=torch.bool),
        sharpened=torch.empty(rows, dtype=torch.bool),
        flags=torch.empty(rows, dtype=torch.int32),
    )
    inputs = (scores, cids, logsumexp, primary_topk_cids, primary_max, primary_cid, prefix_end)
    core().fuse_candidates(
        *shared(x.contiguous() for x in inputs),
        space_cid,
        shared(x.contiguous() for x in settings),
        *shared(writable(out)),
        torch.get_num_threads(),
    )
    return out


def fuse_step(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_step`; CPU tensors."""
    return _run(core().fuse_step, logits, vocab, settings, k, width=len(logits) * k)


def fuse_full(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_full`; CPU tensors."""
    return _run(core().fuse_full, logits, vocab, settings, k, width=k)


def _run(
    operator: Any, logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, width: int
) -> FuseStep:
    models, rows = len(logits), logits[0].shape[0]
    out = FuseStep(
        cid=torch.empty(rows, dtype=torch.int32),
        primary_id=torch.empty(rows, dtype=torch.int32),
        cids=torch.empty((rows, width), dtype=torch.int32),
        probs=torch.empty((rows, width), dtype=torch.float32),
        count=torch.empty(rows, dtype=torch.int32),
        max_prob=torch.empty(rows, dtype=torch.float32),
        entropy=torch.empty(rows, dtype=torch.float32),
        kl=torch.empty((models, rows), dtype=torch.float32),
        js=torch.empty(rows, dtype=torch.float32),
        ensembled=torch.empty(rows, dtype=torch.bool),
        sharpened=torch.empty(rows, dtype=torch.bool),
        top_cid=torch.empty((models, rows), dtype=torch.int32),
        top_prob=torch.empty((models, rows), dtype=torch.float32),
        logsumexp=torch.empty((models, rows), dtype=torch.float32),
        model_entropy=torch.empty((models, rows), dtype=torch.float32),
        flags=torch.empty(rows, dtype=torch.int32),
    )
    lists = (vocab.to_cid, vocab.exact_id, vocab.piece_id, vocab.allowed, vocab.eos_ids)
    operator(
        shared(logits),
        *(shared(x.contiguous() for x in tensors) for tensors in lists),
        *shared((vocab.prefix_end.contiguous(),)),
        vocab.space_cid,
        shared(x.contiguous() for x in settings),
        k,
        *shared(writable(out)),
        torch.get_num_threads(),
    )
    return out
