"""`verify_draft`: does a verifier agree with each token of a draft?"""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_allowed, check_int, check_logits
from ensemble_decode.kernels.library import plain, register
from ensemble_decode.kernels.types import VerifyDraft
from torch import Tensor


def verify_draft(
    logits: Tensor,
    targets: Tensor,
    allowed: Tensor | None,
    eos_ids: Tensor,
    *,
    implementation: str | None = None,
) -> VerifyDraft:
    """Probability of each target under one model, and whether it is the model's own first choice.

    Step 2 of SAFE (arXiv 2510.15346, section 3) for one verifier; also scores SpecFuse segments.

    Args:
        logits: ``[R, V]`` float32, bfloat16 or float16, one row per position; stride 1 along V, any row stride.
        targets: i32 ``[R]``: the id to judge; TARGET_END (−2) for the end of sequence, spelled by any of `eos_ids`;
            TARGET_SKIP (−1), or anything outside −2 and V − 1, for nothing.
        allowed: int32 ``[1 or R, ⌈V/32⌉]`` bitmask as in `topk_stats`, or None.
        eos_ids: i32 ``[E]``; E may be 0.
        implementation: overrides `use` for this call.

    Returns:
        VerifyDraft: ``target_prob`` f32 (END: the sum over `eos_ids`; 0 where skipped), ``is_argmax`` bool (END: top
        id is one of `eos_ids`), ``argmax`` i32 (smallest id among equals, −1 where nothing is allowed), ``logsumexp``
        f32, ``flags`` i32, all ``[R]``.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    check_logits(logits)
    check_int(targets, "targets", [logits.shape[0]], logits.device)
    check_allowed(allowed, logits)
    check_int(eos_ids, "eos_ids", [None], logits.device)
    if implementation is not None:
        dispatch.check_name(implementation)
    return VerifyDraft(*_operator(plain(logits), targets, allowed, eos_ids, implementation or ""))


def _run(
    logits: Tensor, targets: Tensor, allowed: Tensor | None, eos_ids: Tensor, implementation: str
) -> tuple[Tensor, ...]:
    args = (logits, targets, allowed, eos_ids)
    return tuple(dispatch.call("verify_draft", logits.device, args, implementation))


def _fake(
    logits: Tensor, targets: Tensor, allowed: Tensor | None, eos_ids: Tensor, implementation: str
) -> tuple[Tensor, ...]:
    dtypes = (torch.float32, torch.bool, torch.int32, torch.float32, torch.int32)
    return tuple(logits.new_empty((logits.shape[0],), dtype=dtype) for dtype in dtypes)


_operator = register(
    "verify_draft(Tensor logits, Tensor targets, Tensor? allowed, Tensor eos_ids, str implementation)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
)
