# mypy: allow-untyped-defs
"""The passes of `fuse_full` that read the logits: each model's probability of every candidate, and their means.

With log P_m(c) = x[exact_id_m[c]] − max x − log Σ exp(x − max x) gathered anew in each pass:

1. sums: Σ_c P_m(c) per model, and whether the model has any candidate at all;
2. mean: E(c) = Σ w_m P_m(c) and, where a row asks for it, log of the geometric mean; sums for entropy and divergences.

What follows on the means alone is `full.py`'s.
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_ import launch
from ensemble_decode.kernels.triton_.candidates import out_of_reach, read_logits
from ensemble_decode.kernels.triton_.fuse import ALMOST_ZERO, bounded, effective_weights, kl_terms

SPAN = tl.constexpr(launch.CANDIDATE_CHUNK)
"""Candidates of one program."""
PARTIALS = tl.constexpr(launch.FULL_PARTIALS)
"""float32 per chunk, and one more per model: max E, Σ −E log E, and of the geometric mean max t, Σ e, Σ e·(t − max
t)."""


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
def _log_probs(
    rows, row, cids, tables, eos_counts, shifts_ptr, size, M: tl.constexpr, MODELS: tl.constexpr, EOS: tl.constexpr
):
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
    listed = tl.where(cids < size, cids, -1)
    unreachable = out_of_reach(
        listed,
        tables.exact_id[0],
        tables.piece_id[0],
        size,
        tables.eos_ids[0],
        eos_counts[0],
        rows.allowed[0] + row * rows.allowed_strides[0],
        EOS,
    )
    return tl.where(unreachable[None, :], float("-inf"), result), known


@triton.jit
def merged(sums_ptr, row, chunks, CHUNKS: tl.constexpr, MODELS: tl.constexpr):
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
    """The sums that renormalise each model over the candidates it has."""
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
    """The weighted means of the models over every candidate, by chunks."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    model = tl.arange(0, MODELS)
    inside, present = merged(sums_ptr, row, chunks, CHUNKS, MODELS)
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
