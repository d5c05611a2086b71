"""C++ implementations of `sample_tokens` and `token_probs`."""

from __future__ import annotations

from typing import Any

import torch
from ensemble_decode.kernels.native_.extension import core, shared
from ensemble_decode.kernels.types import SampleSettings
from torch import Tensor


def sample_tokens(
    logits: Tensor, allowed: Tensor | None, settings: SampleSettings, numbers: Tensor | None = None
) -> Tensor:
    """See `ensemble_decode.kernels.sample_tokens`; CPU tensors."""
    return _run(
        core().sample_tokens, logits, allowed, settings, numbers, logits.new_empty(logits.shape[0], dtype=torch.int32)
    )


def token_probs(logits: Tensor, allowed: Tensor | None, settings: SampleSettings) -> Tensor:
    """See `ensemble_decode.kernels.token_probs`; CPU tensors."""
    return _run(
        core().token_probs, logits, allowed, settings, None, logits.new_empty(logits.shape, dtype=torch.float32)
    )


def _run(
    operator: Any, logits: Tensor, allowed: Tensor | None, settings: SampleSettings, numbers: Tensor | None, out: Tensor
) -> Tensor:
    mask, columns = (None if x is None else x.contiguous() for x in (allowed, numbers))
    source, mask, columns, to = shared((logits, mask, columns, out))
    operator(source, mask, shared(x.contiguous() for x in settings), columns, to, torch.get_num_threads())
    return out
