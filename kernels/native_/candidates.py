"""C++ implementations of `union_topk` and `gather_candidates`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels.native_.extension import core, shared
from torch import Tensor


def union_topk(ids: Sequence[Tensor], to_cid: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """See `ensemble_decode.kernels.union_topk`; CPU tensors."""
    rows = ids[0].shape[0]
    cids = torch.empty((rows, sum(x.shape[1] for x in ids)), dtype=torch.int32)
    count = torch.empty(rows, dtype=torch.int32)
    inputs = (shared(x.contiguous() for x in tensors) for tensors in (ids, to_cid))
    core().union_topk(*inputs, *shared((cids, count)), torch.get_num_threads())
    return cids, count


def gather_candidates(
    logits: Tensor, cids: Tensor, ids_of: Tensor, eos_ids: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """See `ensemble_decode.kernels.gather_candidates`; CPU tensors."""
    scores = torch.empty(cids.shape, dtype=torch.float32)
    mask = None if allowed is None else allowed.contiguous()
    inputs = (logits, cids.contiguous(), ids_of.contiguous(), eos_ids.contiguous(), mask, scores)
    core().gather_candidates(*shared(inputs), torch.get_num_threads())
    return scores
