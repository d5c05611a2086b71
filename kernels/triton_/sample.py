# mypy: allow-untyped-defs
"""Device function that samples one candidate: filters as transformers applies them, then Gumbel-max.

E_T ∝ E^(1/T); top-k, top-p, min-p in this order; then argmax over u of log E_T(u) + g(u), g = −log(−log r) with r from
Philox-4x32-10 (Salmon et al., SC 2011) keyed by (seed, row, step, candidate): the same bits in every implementation.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log_tempered(p, temperature):
    """``log p / temperature``, −inf where p is 0."""
    return tl.where(p > 0.0, tl.log(tl.where(p > 0.0, p, 1.0)) / temperature, float("-inf"))


@triton.jit
def _before(other, j, log, at):
    """Whether entry j comes before entry `at` in the order (probability descending, index ascending)."""
    return (other[:, None] > log[None, :]) | ((other[:, None] == log[None, :]) & (j[:, None] < at[None, :]))


@triton.jit
def gumbel(cids, seed, row, step):
    """Standard Gumbel noise in float64: in float32 the largest uniform number would round to 1."""
    zero = tl.zeros(cids.shape, dtype=tl.uint32)
    low = zero + (row & 0xFFFFFFFF).to(tl.uint32)
    high = zero + ((row >> 32) & 0xFFFFFFFF).to(tl.uint32)
    word, _, _, _ = tl.philox(seed, cids.to(tl.uint32), low, zero + (step & 0xFFFFFFFF).to(tl.uint32), high)
    uniform = ((word >> 8).to(tl.float64) + 0.5) * 5.9604644775390625e-08
    return -tl.log(-tl.log(uniform))


@triton.jit
def draw(probs, cids, probs_ptr, temperature, settings, row, width, UNION: tl.constexpr):
    """Index of the drawn candidate; UNION where none has a positive probability. `probs` also lie at `probs_ptr`."""
    at = tl.arange(0, UNION)
    log = log_tempered(probs, temperature)
    top = tl.max(log, axis=0)
    top = tl.where(top > float("-inf"), top, 0.0)
    top_k = tl.load(settings.sample_top_k + row)
    top_p = tl.load(settings.top_p + row)
    keep = log > float("-inf")
    if (top_k > 0) | (top_p < 1.0):
        STEP: tl.constexpr = 32 if UNION <= 64 else (2048 // UNION if UNION <= 1024 else 1)
        rank = tl.zeros([UNION], dtype=tl.int32)
        for start in range(0, width, STEP):
            j = start + tl.arange(0, STEP)
            other = log_tempered(tl.load(probs_ptr + j, mask=j < width, other=0.0), temperature)
            rank += tl.sum(_before(other, j, log, at).to(tl.int32), axis=0)
        last = tl.minimum(tl.maximum(top_k, 1), width) - 1
        kth = tl.max(tl.where((rank == last) & (at < width), log, float("-inf")), axis=0)
        kth = tl.where(top_k > 0, kth, float("-inf"))
        total = tl.sum(tl.where((log >= kth) & (at < width), tl.exp(log - top), 0.0), axis=0)
        before = tl.zeros([UNION], dtype=tl.float32)
        for start in range(0, width, STEP):
            j = start + tl.arange(0, STEP)
            other = log_tempered(tl.load(probs_ptr + j, mask=j < width, other=0.0), temperature)
            weight = tl.where(other >= kth, tl.exp(other - top), 0.0)
            before += tl.sum(tl.where(_before(other, j, log, at), weight[:, None], 0.0), axis=0)
        limit = tl.where(top_p >= 1.0, float("inf"), top_p * total)
        nucleus = (before < limit) | (rank == 0)
        keep = keep & (log >= kth) & nucleus
    keep = keep & (log - top >= tl.log(tl.load(settings.min_p + row)))
    noise = gumbel(cids, tl.load(settings.seed + row), tl.load(settings.row + row), tl.load(settings.step + row))
    score = tl.where(keep, tl.where(keep, log, 0.0).to(tl.float64) + noise, float("-inf"))
    return tl.min(tl.where(keep & (score == tl.max(score, axis=0)), at, UNION), axis=0)
