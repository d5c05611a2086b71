# mypy: allow-untyped-defs
"""values, ids = the k greatest logits of each row, ordered by (value descending, id ascending), with
logsumexp = log Σ exp x and entropy = −Σ p log p, p = exp(x − logsumexp): one read of the logits, two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.launch import FINISH_OPTIONS, finish_sizes, selection_scratch, stream_of
from ensemble_decode.kernels.triton_.select import merge, pick
from ensemble_decode.kernels.triton_.stream import launch_stream
from ensemble_decode.kernels.types import TopkStats
from torch import Tensor


@triton.jit(do_not_specialize=["k"])
def topk_stats_kernel(
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
    values_ptr,
    ids_ptr,
    logsumexp_ptr,
    entropy_ptr,
    flags_ptr,
    k,
    MASKED: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """Combine the chunks of a row and select its k best."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    top, log_sum, entropy, flags = merge(partials_ptr + row * chunks * 4, chunks, CHUNKS)
    ints_ptr += row * 2 * K
    found = pick(
        row_ptr,
        allowed_ptr + row * allowed_stride,
        vocab,
        maxima_ptr + row * chunks * (SPAN // CHUNKS),
        k,
        keys_ptr + row * (ROOM + COLUMNS),
        ints_ptr,
        MASKED,
        SPAN,
        ROOM,
        COLUMNS,
        K,
    )
    column = tl.arange(0, K)
    best = tl.load(ints_ptr + K + column, mask=column < found, other=-1)
    value = tl.load(row_ptr + best, mask=column < found, other=float("-inf")).to(tl.float32)
    tl.store(ids_ptr + row * k + column, best, mask=column < k)
    tl.store(values_ptr + row * k + column, value, mask=column < k)
    tl.store(logsumexp_ptr + row, top + log_sum)
    tl.store(entropy_ptr + row, entropy)
    tl.store(flags_ptr + row, flags)


def topk_stats(logits: Tensor, k: int, allowed: Tensor | None = None) -> TopkStats:
    """See `ensemble_decode.kernels.topk_stats`."""
    stream = stream_of([logits], None if allowed is None else [allowed])
    batch, device = stream.batch, logits.device
    out = TopkStats(
        values=torch.empty((batch, k), dtype=torch.float32, device=device),
        ids=torch.empty((batch, k), dtype=torch.int32, device=device),
        logsumexp=torch.empty(batch, dtype=torch.float32, device=device),
        entropy=torch.empty(batch, dtype=torch.float32, device=device),
        flags=torch.empty(batch, dtype=torch.int32, device=device),
    )
    if batch == 0:
        return out
    keys, ints = selection_scratch(stream, k)
    launch_stream(stream)
    topk_stats_kernel[(batch,)](
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
        *out,
        k,
        MASKED=stream.masked,
        **finish_sizes(stream.chunks, k),
        **FINISH_OPTIONS,
    )
    return out
