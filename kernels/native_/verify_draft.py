"""C++ implementation of `verify_draft`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.native_.extension import core, shared, writable
from ensemble_decode.kernels.types import VerifyDraft
from torch import Tensor


def verify_draft(logits: Tensor, targets: Tensor, allowed: Tensor | None, eos_ids: Tensor) -> VerifyDraft:
    """See `ensemble_decode.kernels.verify_draft`; CPU tensors."""
    rows = logits.shape[0]
    out = VerifyDraft(
        target_prob=torch.empty(rows, dtype=torch.float32),
        is_argmax=torch.empty(rows, dtype=torch.bool),
        argmax=torch.empty(rows, dtype=torch.int32),
        logsumexp=torch.empty(rows, dtype=torch.float32),
        flags=torch.empty(rows, dtype=torch.int32),
    )
    mask = None if allowed is None else allowed.contiguous()
    inputs = (logits, targets.contiguous(), mask, eos_ids.contiguous())
    core().verify_draft(*shared((*inputs, *writable(out))), torch.get_num_threads())
    return out
