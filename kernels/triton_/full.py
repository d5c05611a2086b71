# mypy: allow-untyped-defs
"""The ensemble over whole vocabularies (GaC, arXiv 2406.12585), in passes over chunks of 2048 candidates of a row.

Passes 1 and 2, which read the logits, are in `full_mean.py`. On the means that they leave:

3. decide, one program per row: gate, trigger, and what prefix sharpening adds to the primary's top candidates;
4. sharpen: the sharpened E of each candidate, its sum, and the best one;
5. normalise: the distribution that the choice is made from, and the maximum of each 128 candidates for selection.

A pass leaves partial results per chunk that the next one merges in a fixed order, so a row does not depend on its
batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_ import launch
from ensemble_decode.kernels.triton_.full_mean import PARTIALS, SPAN, merged
from ensemble_decode.kernels.triton_.fuse import ALMOST_ZERO, effective_weights, gate_open, kl_terms
from ensemble_decode.kernels.triton_.sample import log_tempered
from ensemble_decode.kernels.triton_.select import NONE, order_key
from ensemble_decode.kernels.triton_.stream import GROUP

STATE = tl.constexpr(launch.FULL_STATE)
"""float32 per row: whether the mean is geometric, its largest log and its sum, the kind of sharpening, the largest
mean, and the largest tempered log."""
TILE = tl.constexpr(1024)


@triton.jit
def _mean_at(mean_ptr, other_ptr, at, mask, is_geometric, log_top, log_total):
    """E of candidates: as stored, or from the log of the geometric mean."""
    if is_geometric:
        mean = tl.exp(tl.load(other_ptr + at, mask=mask, other=float("-inf")) - log_top) / log_total
    else:
        mean = tl.load(mean_ptr + at, mask=mask, other=0.0)
    return mean


@triton.jit
def full_decide_kernel(
    shifts_ptr,
    size,
    sums_ptr,
    settings,
    mean_ptr,
    other_ptr,
    stride,
    partials_ptr,
    chunks,
    tops_ptr,
    k,
    prefix_end_ptr,
    space_cid,
    state_ptr,
    boost_ptr,
    out,
    batch,
    M: tl.constexpr,
    MODELS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Combine the chunks of the mean; decide gate, aggregate and sharpening of each row."""
    row = tl.program_id(0).to(tl.int64)
    model = tl.arange(0, MODELS)
    at = tl.arange(0, CHUNKS)
    live = at < chunks
    cell = partials_ptr + (row * chunks + at) * (PARTIALS + MODELS)
    inside, _ = merged(sums_ptr, row, chunks, CHUNKS, MODELS)
    count = tl.sum(
        tl.load(sums_ptr + (row * chunks + at) * (2 * MODELS + 1) + 2 * MODELS, mask=live, other=0.0), axis=0
    )

    # The geometric mean over all chunks from (max t, Σ e, Σ e·t) of each, as stage 1 merges log-sum-exps.
    top = tl.load(cell + 2, mask=live, other=float("-inf"))
    log_top = tl.max(top, axis=0)
    exists = log_top > float("-inf")
    below = tl.where(top > float("-inf"), top - log_top, ALMOST_ZERO)
    e = tl.load(cell + 3, mask=live, other=0.0)
    et = tl.load(cell + 4, mask=live, other=0.0)
    log_total = tl.where(exists, tl.sum(e * tl.exp(below), axis=0), 1.0)
    sum_et = tl.sum((et + e * below) * tl.exp(below), axis=0)

    is_geometric = (tl.load(settings.aggregate + row) == 1) & exists
    max_prob = tl.max(tl.load(cell, mask=live, other=0.0), axis=0)
    max_prob = tl.where(is_geometric, 1.0 / log_total, max_prob)
    entropy = tl.sum(tl.load(cell + 1, mask=live, other=0.0), axis=0)
    entropy = tl.maximum(tl.where(is_geometric, tl.log(log_total) - sum_et / log_total, entropy), 0.0)

    own = tl.load(settings.weights + row * M + model, mask=model < M, other=0.0)
    shifts = tl.load(shifts_ptr + (row * M + model) * 2, mask=model < M, other=float("-inf"))
    weights = effective_weights(own, shifts > float("-inf"))
    per_chunk = (row * chunks + at)[:, None] * (PARTIALS + MODELS) + PARTIALS + model[None, :]
    kl = tl.sum(tl.load(partials_ptr + per_chunk, mask=live[:, None], other=0.0), axis=0)
    rest = tl.maximum(1.0 - inside, 0.0) / (inside + tl.maximum(1.0 - inside, 0.0))
    kl += kl_terms(rest, tl.sum(rest * weights, axis=0))
    kl = tl.where(weights > 0.0, tl.maximum(kl, 0.0), 0.0)
    js = tl.sum(weights * kl, axis=0)

    gate, gate_threshold = tl.load(settings.gate + row), tl.load(settings.gate_threshold + row)
    is_open = gate_open(gate, gate_threshold, tl.load(out.top_prob + row), kl, js)
    possible = max_prob > 0.0
    ensembled = is_open & possible
    threshold = tl.load(settings.threshold + row)
    wide = (entropy > threshold * tl.log(tl.maximum(count, 1.0))) & (count > 1.0)
    by_entropy = tl.load(settings.trigger + row) == 1
    fires = (by_entropy & wide) | ((by_entropy == 0) & (max_prob < threshold))
    kind = tl.load(settings.sharpen + row)
    sharpened = fires & (kind > 0) & ensembled
    kind = tl.where(sharpened, kind, 0)

    if kind == 1:
        row_mean, row_other = mean_ptr + row * stride, other_ptr + row * stride
        min_prob = tl.load(settings.min_prob + row)
        for i in range(tl.minimum(k, tl.load(settings.top_k + row))):
            u = tl.load(tops_ptr + row * k + i)
            boost = 0.0
            if (u >= 0) & (u != space_cid) & (u < size - 1):
                mean = _mean_at(row_mean, row_other, u, u >= 0, is_geometric, log_top, log_total)
                if mean > min_prob:
                    # Every candidate is there, so those that start with u are the range up to prefix_end[u].
                    end = tl.load(prefix_end_ptr + u)
                    total = tl.zeros([TILE], dtype=tl.float32)
                    for start in range(u + 1, end, TILE):
                        v = start + tl.arange(0, TILE)
                        total += _mean_at(row_mean, row_other, v, v < end, is_geometric, log_top, log_total)
                    boost = tl.sum(total, axis=0)
            tl.store(boost_ptr + row * k + i, boost)

    state_ptr += row * STATE
    tl.store(state_ptr, (is_geometric | ((kind == 2) & exists)).to(tl.float32))
    tl.store(state_ptr + 1, log_top)
    tl.store(state_ptr + 2, log_total)
    tl.store(state_ptr + 3, kind.to(tl.float32))
    tl.store(state_ptr + 4, max_prob)
    tl.store(out.cid + row, tl.where(is_open, -1, tl.load(out.top_cid + row)))
    tl.store(out.max_prob + row, max_prob)
    tl.store(out.entropy + row, entropy)
    tl.store(out.kl + model * batch + row, kl, mask=model < M)
    tl.store(out.js + row, js)
    tl.store(out.ensembled + row, ensembled)
    tl.store(out.sharpened + row, sharpened)
    tl.store(out.flags + row, tl.load(out.flags + row) | tl.where(possible, 0, 2))


@triton.jit
def full_sharpen_kernel(
    settings, mean_ptr, other_ptr, stride, chunks, tops_ptr, boost_ptr, k, state_ptr, totals_ptr, best_ptr
):
    """Sharpen the distribution in place, and find its best candidate per chunk."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    start = chunk * SPAN
    cids = start + tl.arange(0, SPAN)
    state_ptr += row * STATE
    mean = _mean_at(
        mean_ptr + row * stride,
        other_ptr + row * stride,
        cids,
        cids >= 0,
        tl.load(state_ptr).to(tl.int32) != 0,
        tl.load(state_ptr + 1),
        tl.load(state_ptr + 2),
    )
    kind = tl.load(state_ptr + 3)
    sharp = mean
    soft = mean
    if kind == 1.0:
        boost = tl.zeros([SPAN], dtype=tl.float32)
        for i in range(tl.minimum(k, tl.load(settings.top_k + row))):
            u = tl.load(tops_ptr + row * k + i)
            if (u >= start) & (u < start + SPAN):
                boost = tl.where(cids == u, tl.load(boost_ptr + row * k + i), boost)
        sharp = mean + boost
        soft = sharp
    elif kind == 3.0:
        # Temperature keeps the order of E, so its argmax is E's: rounding E^(1/τ) must not make new ties.
        log = tl.log(tl.where(mean > 0.0, mean, 1.0)) - tl.log(tl.load(state_ptr + 4))
        soft = tl.where(mean > 0.0, tl.exp(log / tl.load(settings.tau + row)), 0.0)
    # Loads and stores may spread over threads differently, and this one overwrites what was read.
    tl.debug_barrier()
    tl.store(mean_ptr + row * stride + cids, soft)
    cell = row * chunks + chunk
    tl.store(totals_ptr + cell * 2, tl.sum(soft, axis=0))
    tl.store(totals_ptr + cell * 2 + 1, tl.max(soft, axis=0))
    tl.store(best_ptr + cell, tl.max(tl.where(sharp > 0.0, order_key(sharp, cids), NONE), axis=0))


@triton.jit
def full_normalise_kernel(
    settings, mean_ptr, other_ptr, stride, chunks, totals_ptr, state_ptr, maxima_ptr, groups, CHUNKS: tl.constexpr
):
    """Divide by the total, and note the maxima of groups for the selection."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = tl.arange(0, CHUNKS)
    cell = totals_ptr + (row * chunks + at) * 2
    total = tl.sum(tl.load(cell, mask=at < chunks, other=0.0), axis=0)
    total = tl.where(total > 0.0, total, 1.0)
    cids = chunk * SPAN + tl.arange(0, SPAN)
    probs = tl.load(mean_ptr + row * stride + cids) / total
    # From here on −inf stands for 0, so that the selection of the most probable leaves it out.
    shown = tl.where(probs > 0.0, probs, float("-inf"))
    tl.debug_barrier()
    tl.store(mean_ptr + row * stride + cids, shown)
    maxima = tl.max(tl.reshape(shown, [SPAN // GROUP, GROUP]), axis=1)
    tl.store(maxima_ptr + row * groups + chunk * (SPAN // GROUP) + tl.arange(0, SPAN // GROUP), maxima)
    temperature = tl.load(settings.temperature + row)
    if temperature > 0.0:
        tl.store(other_ptr + row * stride + cids, log_tempered(probs, temperature))
        if chunk == 0:
            largest = tl.max(tl.load(cell + 1, mask=at < chunks, other=0.0), axis=0) / total
            tl.store(state_ptr + row * STATE + 5, log_tempered(largest, temperature))
