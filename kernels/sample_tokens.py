"""`sample_tokens`: one token per row from one model's own distribution."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_allowed, check_int, check_logits, check_sampling
from ensemble_decode.kernels.library import plain, register
from ensemble_decode.kernels.types import SampleSettings
from torch import Tensor


def sample_tokens(
    logits: Tensor,
    allowed: Tensor | None,
    settings: SampleSettings,
    numbers: Tensor | None = None,
    *,
    implementation: str | None = None,
) -> Tensor:
    """Sample one id per row from the softmax of its logits, with temperature and filters, by Gumbel-max.

    The argmax over u of ``l(u) + g(u)``, ``l(u) = (x(u) − max x) / T`` in float32, among what top-k, top-p and min-p
    keep; g is the counter-based noise of `fuse_candidates`. A draw depends on the row's logits, seed, row and step.

    Args:
        logits: ``[B, V]`` float32, bfloat16 or float16, stride 1 along V, any row stride; B may be 0.
        allowed: int32 ``[1 or B, ⌈V/32⌉]`` bitmask as in `topk_stats`, or None.
        settings: per row. Where the temperature is 0, the most probable id is taken, the smallest among equals.
        numbers: i32 ``[B, V]`` or None: which candidate's noise each column takes. None: column u takes that of u.
        implementation: overrides `use` for this call.

    Returns:
        i32 ``[B]``: the column drawn, −1 where nothing allowed is above −inf. An id at −inf is never drawn. NaN counts
        as −inf, +inf as the largest float32.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    check_logits(logits)
    check_allowed(allowed, logits)
    check_sampling(settings, logits.shape[0], logits.device)
    if numbers is not None:
        check_int(numbers, "numbers", list(logits.shape), logits.device)
    if implementation is not None:
        dispatch.check_name(implementation)
    drawn: Tensor = _operator(plain(logits), allowed, list(settings), numbers, implementation or "")
    return drawn


def _run(
    logits: Tensor, allowed: Tensor | None, settings: list[Tensor], numbers: Tensor | None, implementation: str
) -> Tensor:
    args = (logits, allowed, SampleSettings(*settings), numbers)
    result: Tensor = dispatch.call("sample_tokens", logits.device, args, implementation)
    return result


def _fake(
    logits: Tensor, allowed: Tensor | None, settings: list[Tensor], numbers: Tensor | None, implementation: str
) -> Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int32)


_operator = register(
    "sample_tokens(Tensor logits, Tensor? allowed, Tensor[] settings, Tensor? numbers, str implementation) -> Tensor",
    _run,
    _fake,
)
