# mypy: allow-untyped-defs
"""P(target) = exp(logit − logsumexp) for each position of a draft, and whether the target is the verifier's argmax."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.candidates import end_score, probability, read_logits
from ensemble_decode.kernels.triton_.launch import (
    FINISH_OPTIONS,
    finish_sizes,
    next_power_of_two,
    selection_scratch,
    stream_of,
)
from ensemble_decode.kernels.triton_.select import merge, pick
from ensemble_decode.kernels.triton_.stream import launch_stream
from ensemble_decode.kernels.types import TARGET_END, VerifyDraft
from torch import Tensor

END = tl.constexpr(TARGET_END)


@triton.jit
def verify_draft_kernel(
    logits_ptr,
    stride,
    vocab,
    allowed_ptr,
    allowed_stride,
    partials_ptr,
    maxima_ptr,
    chunks,
    keys_ptr,
    ints_ptr,
    targets_ptr,
    targets_stride,
    eos_ptr,
    eos_count,
    prob_ptr,
    is_argmax_ptr,
    argmax_ptr,
    logsumexp_ptr,
    flags_ptr,
    MASKED: tl.constexpr,
    EOS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """Combine the chunks of a row and read its target."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    allowed_ptr += row * allowed_stride
    top, log_sum, _, flags = merge(partials_ptr + row * chunks * 4, chunks, CHUNKS)
    logsumexp = top + log_sum
    ints_ptr += row * 2 * K
    found = pick(
        row_ptr,
        allowed_ptr,
        vocab,
        maxima_ptr + row * chunks * (SPAN // CHUNKS),
        1,
        keys_ptr + row * (ROOM + COLUMNS),
        ints_ptr,
        MASKED,
        SPAN,
        ROOM,
        COLUMNS,
        K,
    )
    argmax = tl.load(ints_ptr + K, mask=found > 0, other=-1)

    target = tl.load(targets_ptr + row * targets_stride)
    at = tl.arange(0, EOS)
    eos = tl.load(eos_ptr + at, mask=at < eos_count, other=-1)
    end = end_score(row_ptr, eos_ptr, eos_count, vocab, allowed_ptr, MASKED, EOS)
    own = read_logits(row_ptr, target, target >= 0, vocab, allowed_ptr, MASKED)
    is_eos = (tl.max((eos == argmax).to(tl.int32)) != 0) & (argmax >= 0)
    is_target = (target == argmax) & (argmax >= 0)

    tl.store(prob_ptr + row, probability(tl.where(target == END, end, own), logsumexp))
    tl.store(is_argmax_ptr + row, tl.where(target == END, is_eos, is_target))
    tl.store(argmax_ptr + row, argmax)
    tl.store(logsumexp_ptr + row, logsumexp)
    tl.store(flags_ptr + row, flags)


def verify_draft(logits: Tensor, targets: Tensor, allowed: Tensor | None, eos_ids: Tensor) -> VerifyDraft:
    """See `ensemble_decode.kernels.verify_draft`."""
    rows, device = logits.shape[0], logits.device
    out = VerifyDraft(
        target_prob=torch.empty(rows, dtype=torch.float32, device=device),
        is_argmax=torch.empty(rows, dtype=torch.bool, device=device),
        argmax=torch.empty(rows, dtype=torch.int32, device=device),
        logsumexp=torch.empty(rows, dtype=torch.float32, device=device),
        flags=torch.empty(rows, dtype=torch.int32, device=device),
    )
    if rows == 0:
        return out
    stream = stream_of([logits], None if allowed is None else [allowed])
    keys, ints = selection_scratch(stream, 1)
    launch_stream(stream)
    verify_draft_kernel[(rows,)](
        logits,
        stream.strides[0],
        stream.vocab[0],
        stream.allowed[0],
        stream.allowed_strides[0],
        stream.partials,
        stream.maxima,
        stream.chunks,
        keys,
        ints,
        targets,
        targets.stride(0),
        eos_ids.contiguous(),
        eos_ids.shape[0],
        *out,
        MASKED=stream.masked,
        EOS=next_power_of_two(max(1, eos_ids.shape[0])),
        **finish_sizes(stream.chunks, 1),
        **FINISH_OPTIONS,
    )
    return out
