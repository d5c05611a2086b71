"""`gather_candidates`: one model's scores of candidates that may come from other vocabularies."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_allowed, check_int, check_logits
from ensemble_decode.kernels.library import plain, register
from torch import Tensor


def gather_candidates(
    logits: Tensor,
    cids: Tensor,
    ids_of: Tensor,
    eos_ids: Tensor,
    allowed: Tensor | None = None,
    *,
    implementation: str | None = None,
) -> Tensor:
    """Score of each candidate under one model: the logit of the id that stands for it.

    Args:
        logits: ``[B, V]`` float32, bfloat16 or float16, stride 1 along V, any row stride.
        cids: i32 ``[B, U]``, candidates; −1 is padding.
        ids_of: i32 ``[N]``, the model's `piece_id` or `exact_id` of each candidate; −1 where there is none.
        eos_ids: i32 ``[E]``, the model's ids for END, which is the last candidate, N − 1; E may be 0.
        allowed: int32 ``[1 or B, ⌈V/32⌉]`` bitmask as in `topk_stats`, or None; ids not allowed score −inf.
        implementation: overrides `use` for this call.

    Returns:
        f32 ``[B, U]``: copies of the logits; at END the log-sum-exp of the logits of `eos_ids`; −inf where it
        is padding, has no id, is not allowed or its logit is NaN.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    check_logits(logits)
    check_int(cids, "cids", [logits.shape[0], None], logits.device)
    check_int(ids_of, "ids_of", [None], logits.device)
    check_int(eos_ids, "eos_ids", [None], logits.device)
    check_allowed(allowed, logits)
    if implementation is not None:
        dispatch.check_name(implementation)
    return _operator(plain(logits), cids, ids_of, eos_ids, allowed, implementation or "")


def _run(
    logits: Tensor, cids: Tensor, ids_of: Tensor, eos_ids: Tensor, allowed: Tensor | None, implementation: str
) -> Tensor:
    args = (logits, cids, ids_of, eos_ids, allowed)
    return dispatch.call("gather_candidates", logits.device, args, implementation)


def _fake(
    logits: Tensor, cids: Tensor, ids_of: Tensor, eos_ids: Tensor, allowed: Tensor | None, implementation: str
) -> Tensor:
    return logits.new_empty(cids.shape, dtype=torch.float32)


_operator = register(
    "gather_candidates(Tensor logits, Tensor cids, Tensor ids_of, Tensor eos_ids, Tensor? allowed, str implementation)"
    " -> Tensor",
    _run,
    _fake,
)
