"""`token_probs`: the distribution that `sample_tokens` draws from."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_allowed, check_logits, check_sampling
from ensemble_decode.kernels.library import plain, register
from ensemble_decode.kernels.types import SampleSettings
from torch import Tensor


def token_probs(
    logits: Tensor, allowed: Tensor | None, settings: SampleSettings, *, implementation: str | None = None
) -> Tensor:
    """Each id's probability after temperature, top-k, top-p and min-p.

    Args:
        logits: ``[B, V]`` float32, bfloat16 or float16, stride 1 along V, any row stride; B may be 0.
        allowed: int32 ``[1 or B, ⌈V/32⌉]`` bitmask as in `topk_stats`, or None.
        settings: per row; seed, row and step have no meaning here, and a temperature of 0 counts as 1.
        implementation: overrides `use` for this call.

    Returns:
        f32 ``[B, V]``: each row sums to 1; 0 for what is not allowed, at −inf, NaN, or filtered out. A row with nothing
        allowed above −inf is 0 throughout.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    check_logits(logits)
    check_allowed(allowed, logits)
    check_sampling(settings, logits.shape[0], logits.device)
    if implementation is not None:
        dispatch.check_name(implementation)
    probs: Tensor = _operator(plain(logits), allowed, list(settings), implementation or "")
    return probs


def _run(logits: Tensor, allowed: Tensor | None, settings: list[Tensor], implementation: str) -> Tensor:
    args = (logits, allowed, SampleSettings(*settings))
    result: Tensor = dispatch.call("token_probs", logits.device, args, implementation)
    return result


def _fake(logits: Tensor, allowed: Tensor | None, settings: list[Tensor], implementation: str) -> Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


_operator = register(
    "token_probs(Tensor logits, Tensor? allowed, Tensor[] settings, str implementation) -> Tensor", _run, _fake
)
