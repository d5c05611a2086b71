"""`topk_stats`: the k best logits of each row with the log-sum-exp and the entropy of its softmax."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_allowed, check_k, check_logits
from ensemble_decode.kernels.library import plain, register
from ensemble_decode.kernels.types import TopkStats
from torch import Tensor


def topk_stats(
    logits: Tensor, k: int, allowed: Tensor | None = None, *, implementation: str | None = None
) -> TopkStats:
    """Top-k, log-sum-exp and entropy of every row in one read of the logits.

    Args:
        logits: ``[B, V]`` float32, bfloat16 or float16, stride 1 along V, any row stride; B may be 0.
        k: how many entries to return, 1 to 1024; may exceed V.
        allowed: int32 ``[1 or B, ⌈V/32⌉]`` bitmask (bit ``i % 32`` of word ``i // 32`` allows id i; bits past V are
            ignored), or None for every id. Ids that are not allowed are masked to −inf before anything else.
        implementation: overrides `use` for this call.

    Returns:
        TopkStats: ``values`` f32 ``[B, k]`` (copies of the logits) and ``ids`` i32 ``[B, k]`` ordered by (value
        descending, id ascending), ``logsumexp`` f32 ``[B]``, ``entropy`` f32 ``[B]`` in nats, ``flags`` i32 ``[B]``.

    An entry at −inf has probability zero and is never returned: where fewer than k entries are above it, the remaining
    columns hold id −1 and value −inf. NaN at an allowed id counts as −inf and sets FLAG_NAN. A row without any entry
    above −inf sets FLAG_EMPTY; its logsumexp is −inf and its entropy 0. With +inf in a row, logsumexp is +inf and the
    softmax is uniform over the +inf entries and those at the largest float32, which +inf counts as.

    Raises:
        TypeError, ValueError: a type, shape, stride or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    check_logits(logits)
    check_k(k)
    check_allowed(allowed, logits)
    if implementation is not None:
        dispatch.check_name(implementation)
    return TopkStats(*_operator(plain(logits), k, allowed, implementation or ""))


def _run(logits: Tensor, k: int, allowed: Tensor | None, implementation: str) -> tuple[Tensor, ...]:
    return tuple(dispatch.call("topk_stats", logits.device, (logits, k, allowed), implementation))


def _fake(logits: Tensor, k: int, allowed: Tensor | None, implementation: str) -> tuple[Tensor, ...]:
    rows = logits.shape[0]
    return (
        logits.new_empty((rows, k), dtype=torch.float32),
        logits.new_empty((rows, k), dtype=torch.int32),
        logits.new_empty((rows,), dtype=torch.float32),
        logits.new_empty((rows,), dtype=torch.float32),
        logits.new_empty((rows,), dtype=torch.int32),
    )


_operator = register(
    "topk_stats(Tensor logits, int k, Tensor? allowed, str implementation) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
)
