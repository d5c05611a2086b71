# mypy: allow-untyped-defs
"""Stage 1: one read of the logits.

Per chunk of 8192 elements, with m = max x, z = (x − m)·log₂e and e = 2^z: the triple (m, Σe, Σe·z) and a NaN flag, and
the maximum of each contiguous group of 128 elements. From the triples follow logsumexp = m + ln Σe and the entropy
ln 2 · (log₂ Σe − Σe·z / Σe); Σe·z is taken about the maximum, where it does not cancel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_ import launch
from ensemble_decode.kernels.triton_.launch import STREAM_OPTIONS, Stream

GROUP = tl.constexpr(launch.GROUP)
GROUPS = tl.constexpr(launch.GROUPS)
CHUNK = tl.constexpr(launch.CHUNK)
LOG2E = tl.constexpr(1.4426950408889634)
FLOAT_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _guarded_chunk(row_ptr, allowed_ptr, left, partial_ptr, maxima_ptr, MASKED: tl.constexpr):
    """A chunk that ends early, is masked, or holds NaN or infinities: the same sums with every element guarded."""
    group = tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = at < left
    x = tl.load(row_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)
    if MASKED:
        word = tl.load(allowed_ptr + at // 32, mask=inside, other=0)
        inside = inside & (((word >> (at & 31)) & 1) != 0)
    is_nan = x != x
    x = tl.where(inside & (x == x), x, float("-inf"))
    maxima = tl.max(x, axis=1)
    # +inf behaves as the largest finite number, so that differences of infinities do not appear
    m = tl.max(maxima)
    finite_m = tl.clamp(m, -FLOAT_MAX, FLOAT_MAX)
    z = (tl.minimum(x, FLOAT_MAX) - finite_m) * LOG2E
    e = tl.exp2(z)
    tl.store(maxima_ptr + group, maxima)
    tl.store(partial_ptr, m)
    tl.store(partial_ptr + 1, tl.sum(e))
    tl.store(partial_ptr + 2, tl.sum(tl.where(e > 0.0, e * z, 0.0)))
    tl.store(partial_ptr + 3, tl.max((inside & is_nan).to(tl.int32)).to(tl.float32))


@triton.jit
def _chunk(row_ptr, allowed_ptr, left, partial_ptr, maxima_ptr, MASKED: tl.constexpr):
    done = left <= 0
    if left >= CHUNK:
        group = tl.arange(0, GROUPS)
        x = tl.load(row_ptr + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]).to(tl.float32)
        maxima = tl.max(x, axis=1)
        m = tl.max(maxima)
        z = x * LOG2E - m * LOG2E
        e = tl.exp2(z)
        sum_e = tl.sum(e)
        sum_ez = tl.sum(e * z)
        # The maximum alone adds 1 to Σe. Less, or NaN, means that a NaN, an infinity or an overflow went through.
        done = (sum_e >= 0.5) & (sum_ez == sum_ez)
        if MASKED:
            word = tl.load(allowed_ptr + tl.arange(0, CHUNK // 32))
            done = done & (tl.min((word == -1).to(tl.int32)) != 0)
        if done:
            tl.store(maxima_ptr + group, maxima)
            tl.store(partial_ptr, m)
            tl.store(partial_ptr + 1, sum_e)
            tl.store(partial_ptr + 2, sum_ez)
            tl.store(partial_ptr + 3, 0.0)
    if not done:
        _guarded_chunk(row_ptr, allowed_ptr, left, partial_ptr, maxima_ptr, MASKED)


@triton.jit
def stream_kernel(
    logits,
    strides,
    vocab,
    allowed,
    allowed_strides,
    partials_ptr,
    maxima_ptr,
    chunks,
    MODELS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One chunk of one row: its maximum, sums, and the maxima of its groups."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    model = tl.program_id(2)
    cell = (row * MODELS + model) * chunks + chunk
    start = chunk * CHUNK
    for m in tl.static_range(MODELS):
        if model == m:
            _chunk(
                logits[m] + row * strides[m] + start,
                allowed[m] + row * allowed_strides[m] + start // 32,
                vocab[m] - start,
                partials_ptr + cell * 4,
                maxima_ptr + cell * GROUPS,
                MASKED,
            )


def launch_stream(stream: Stream) -> None:
    """Run stage 1 over every row, chunk and model."""
    if stream.batch == 0:
        return
    stream_kernel[(stream.batch, stream.chunks, stream.models)](
        stream.logits,
        stream.strides,
        stream.vocab,
        stream.allowed,
        stream.allowed_strides,
        stream.partials,
        stream.maxima,
        stream.chunks,
        MODELS=stream.models,
        MASKED=stream.masked,
        **STREAM_OPTIONS,
    )
