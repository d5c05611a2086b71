# mypy: allow-untyped-defs
"""The ensemble over whole vocabularies (GaC, arXiv 2406.12585), in passes over chunks of 2048 candidates of a row.

With log P_m(c) = x[exact_id_m[c]] − max x − log Σ exp(x − max x) gathered anew in each pass that needs it:

1. sums: Σ_c P_m(c) per model, and whether the model has any candidate at all;
2. mean: E(c) = Σ w_m P_m(c) and, where a row asks for it, log of the geometric mean; sums for entropy and divergences;
3. decide, one program per row: gate, trigger, and what prefix sharpening adds to the primary's top candidates;
4. sharpen: the sharpened E of each candidate, its sum, and the best one;
5. normalise: the distribution that the choice is made from, and the maximum of each 128 candidates for selection.

A pass leaves partial results per chunk that the next one merges in a fixed order, so a row does not depend on its batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import launch
from .candidates import read_logits
from .fuse import ALMOST_ZERO, bounded, effective_weights, gate_open, kl_terms
from .sample import log_tempered
from .select import NONE, order_key
from .stream import GROUP

SPAN = tl.constexpr(launch.CANDIDATE_CHUNK)
"""Candidates of one program."""
STATE = tl.constexpr(launch.FULL_STATE)
"""float32 per row: whether the mean is geometric, its largest log and its sum, the kind of sharpening, the largest mean,
and the largest tempered log."""
PARTIALS = tl.constexpr(launch.FULL_PARTIALS)
"""float32 per chunk, and one more per model: max E, Σ −E log E, and of the geometric mean max t, Σ e, Σ e·(t − max t)."""
TILE = tl.constexpr(1024)


@triton.jit
def _log_p(x, top, log_sum):
    """log-softmax of logits; −inf where the probability counts as 0."""
    top = bounded(top)
    delta = tl.maximum(bounded(x) - tl.where(top > float("-inf"), top, 0.0), ALMOST_ZERO)
    return tl.where(delta > ALMOST_ZERO, delta - log_sum, float("-inf"))


@triton.jit
def _log_sum(log_p):
    top = tl.max(log_p, axis=0)
    total = tl.sum(tl.exp(log_p - tl.where(top > float("-inf"), top, 0.0)), axis=0)
    return tl.where(top > float("-inf"), top + tl.log(tl.maximum(total, 1.0)), float("-inf"))


@triton.jit
def _log_probs(rows, row, cids, tables, eos_counts, shifts_ptr, size, M: tl.constexpr, MODELS: tl.constexpr, EOS: tl.constexpr):  # fmt: skip
    """log P_m of candidates [MODELS, candidates], and which of them some model can name."""
    model = tl.arange(0, MODELS)
    spelled = cids < size - 1
    known = cids < 0
    result = tl.full([MODELS, cids.shape[0]], float("-inf"), dtype=tl.float32)
    for m in tl.static_range(M):
        row_ptr = rows.logits[m] + row * rows.strides[m]
        allowed_ptr = rows.allowed[m] + row * rows.allowed_strides[m]
        top = tl.load(shifts_ptr + (row * M + m) * 2)
        log_sum = tl.load(shifts_ptr + (row * M + m) * 2 + 1)
        ids = tl.load(tables.exact_id[m] + cids, mask=spelled, other=-1)
        own = _log_p(read_logits(row_ptr, ids, spelled, rows.vocab[m], allowed_ptr, True), top, log_sum)
        at = tl.arange(0, EOS)
        eos = tl.load(tables.eos_ids[m] + at, mask=at < eos_counts[m], other=-1)
        end = read_logits(row_ptr, eos, at < eos_counts[m], rows.vocab[m], allowed_ptr, True)
        own = tl.where(cids == size - 1, _log_sum(_log_p(end, top, log_sum)), own)
        result = tl.where((model == m)[:, None], own[None, :], result)
        known = known | (spelled & (ids >= 0)) | ((cids == size - 1) & (eos_counts[m] > 0))
    return result, known


@triton.jit
def _merged(sums_ptr, row, chunks, CHUNKS: tl.constexpr, MODELS: tl.constexpr):
    """Of each model Σ P over all candidates and whether it has any; from the first pass."""
    at = tl.arange(0, CHUNKS)
    cell = (row * chunks + at)[:, None] * (2 * MODELS + 1) + tl.arange(0, MODELS)[None, :]
    live = (at < chunks)[:, None]
    inside = tl.sum(tl.load(sums_ptr + cell, mask=live, other=0.0), axis=0)
    return inside, tl.max(tl.load(sums_ptr + cell + MODELS, mask=live, other=0.0), axis=0) > 0.0


@triton.jit
def full_sums_kernel(
    rows,
    tables,
    eos_counts,
    shifts_ptr,
    size,
    sums_ptr,
    chunks,
    M: tl.constexpr,
    MODELS: tl.constexpr,
    EOS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cids = chunk * SPAN + tl.arange(0, SPAN)
    log_p, known = _log_probs(rows, row, cids, tables, eos_counts, shifts_ptr, size, M, MODELS, EOS)
    cell = sums_ptr + (row * chunks + chunk) * (2 * MODELS + 1)
    model = tl.arange(0, MODELS)
    tl.store(cell + model, tl.sum(tl.exp(log_p), axis=1))
    tl.store(cell + MODELS + model, tl.max((log_p > float("-inf")).to(tl.float32), axis=1))
    tl.store(cell + 2 * MODELS, tl.sum(known.to(tl.float32), axis=0))


@triton.jit
def _joined(top, sum_e, sum_et, other_top, other_e, other_et):
    """(max t, Σ e^(t − max), Σ e^(t − max) · (t − max)) of two sets of candidates."""
    joint = tl.maximum(top, other_top)
    down = tl.where(top > float("-inf"), top - joint, 0.0)
    other_down = tl.where(other_top > float("-inf"), other_top - joint, 0.0)
    scale = tl.exp(down)
    other_scale = tl.exp(other_down)
    joint_et = scale * (sum_et + down * sum_e) + other_scale * (other_et + other_down * other_e)
    return joint, scale * sum_e + other_scale * other_e, joint_et


@triton.jit
def full_mean_kernel(
    rows,
    tables,
    eos_counts,
    shifts_ptr,
    size,
    sums_ptr,
    settings,
    mean_ptr,
    other_ptr,
    stride,
    partials_ptr,
    chunks,
    M: tl.constexpr,
    MODELS: tl.constexpr,
    EOS: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    model = tl.arange(0, MODELS)
    inside, present = _merged(sums_ptr, row, chunks, CHUNKS, MODELS)
    own = tl.load(settings.weights + row * M + model, mask=model < M, other=0.0)
    weights = effective_weights(own, present)
    shifts = tl.load(shifts_ptr + (row * M + model) * 2, mask=model < M, other=float("-inf"))
    consulted = effective_weights(own, shifts > float("-inf"))
    logs = (tl.load(settings.aggregate + row) == 1) | (tl.load(settings.sharpen + row) == 2)

    best = float("-inf")
    entropy = 0.0
    top = float("-inf")
    sum_e = 0.0
    sum_et = 0.0
    kl = tl.zeros([MODELS], dtype=tl.float32)
    for part in range(PARTS):  # one after the other: [MODELS, SPAN] of many models would not fit into the registers
        cids = chunk * SPAN + part * (SPAN // PARTS) + tl.arange(0, SPAN // PARTS)
        log_p, _ = _log_probs(rows, row, cids, tables, eos_counts, shifts_ptr, size, M, MODELS, EOS)
        p = tl.exp(log_p)
        mean = tl.sum(p * weights[:, None], axis=0)
        tl.store(mean_ptr + row * stride + cids, mean)
        best = tl.maximum(best, tl.max(mean, axis=0))
        entropy -= tl.sum(mean * tl.log(tl.where(mean > 0.0, mean, 1.0)), axis=0)

        if logs:
            zero = log_p == float("-inf")
            weighs = (weights > 0.0)[:, None]
            log = tl.sum(tl.where(weighs & ~zero, weights[:, None] * tl.where(zero, 0.0, log_p), 0.0), axis=0)
            dead = tl.max((weighs & zero).to(tl.int32), axis=0) != 0
            log = tl.where(dead, float("-inf"), tl.where(tl.max(weights, axis=0) > 0.0, log, float("-inf")))
            dead = log == float("-inf")
            tl.store(other_ptr + row * stride + cids, log)
            part_top = tl.max(log, axis=0)
            below = tl.where(dead, 0.0, log - tl.where(part_top > float("-inf"), part_top, 0.0))
            e = tl.where(dead, 0.0, tl.exp(below))
            top, sum_e, sum_et = _joined(top, sum_e, sum_et, part_top, tl.sum(e, axis=0), tl.sum(e * below, axis=0))

        # Divergences are over the candidates and one bucket for the rest, renormalised to sum 1.
        p = p / (inside + tl.maximum(1.0 - inside, 0.0))[:, None]
        mix = tl.sum(p * consulted[:, None], axis=0)
        kl += tl.sum(kl_terms(p, mix[None, :]), axis=1)

    cell = partials_ptr + (row * chunks + chunk) * (PARTIALS + MODELS)
    tl.store(cell, best)
    tl.store(cell + 1, entropy)
    tl.store(cell + 2, top)
    tl.store(cell + 3, sum_e)
    tl.store(cell + 4, sum_et)
    tl.store(cell + PARTIALS + model, kl)


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
    row = tl.program_id(0).to(tl.int64)
    model = tl.arange(0, MODELS)
    at = tl.arange(0, CHUNKS)
    live = at < chunks
    cell = partials_ptr + (row * chunks + at) * (PARTIALS + MODELS)
    inside, _ = _merged(sums_ptr, row, chunks, CHUNKS, MODELS)
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
