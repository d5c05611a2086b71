# mypy: allow-untyped-defs
"""Device functions from the scores of a union of candidates to one choice: aggregate, gate, sharpen, choose.

With q_m = softmax_U(s_m): arithmetic E = Σ w_m q_m (UniTE, arXiv 2410.03777), geometric E ∝ exp Σ w_m log q_m. Tiles
are [MODELS, UNION], padded with models without weight and candidates at −inf. Every setting is a scalar of the row, so
that rows with different methods share one kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.candidates import probability
from ensemble_decode.kernels.triton_.sample import draw
from ensemble_decode.kernels.triton_.stream import FLOAT_MAX

ALMOST_ZERO = tl.constexpr(-1000.0)
"""exp of anything below is 0 in float32; differences of logits are cut here so that 0 · ∞ never occurs."""


@triton.jit
def bounded(x):
    """+inf as the largest finite number, NaN as −inf."""
    return tl.minimum(tl.where(x == x, x, float("-inf")), FLOAT_MAX)


@triton.jit
def effective_weights(weights, present):
    """Weights of the models that are present, renormalised; 0 where none of positive weight is."""
    weights = tl.where(present, weights, 0.0)
    total = tl.sum(weights, axis=0)
    return tl.where(total > 0.0, weights / tl.where(total > 0.0, total, 1.0), 0.0)


@triton.jit
def normalised(x):
    """``x`` divided by its sum; zeros where the sum is 0."""
    total = tl.sum(x, axis=0)
    return tl.where(total > 0.0, x / tl.where(total > 0.0, total, 1.0), 0.0)


@triton.jit
def log_softmax(s):
    """log q over the last axis of bounded scores [MODELS, UNION]; −inf where q counts as 0."""
    top = tl.max(s, axis=1)
    delta = tl.maximum(s - tl.where(top > float("-inf"), top, 0.0)[:, None], ALMOST_ZERO)
    alive = delta > ALMOST_ZERO
    total = tl.sum(tl.where(alive, tl.exp(delta), 0.0), axis=1)
    return tl.where(alive, delta - tl.log(tl.where(total > 0.0, total, 1.0))[:, None], float("-inf"))


@triton.jit
def geometric_mean(log_q, weights, otherwise):
    """exp Σ w_m log q_m, normalised; 0 where a model of positive weight has q = 0.

    `otherwise` where nothing is left.
    """
    zero = log_q == float("-inf")
    weighs = (weights > 0.0)[:, None]
    total = tl.sum(tl.where(weighs & ~zero, weights[:, None] * tl.where(zero, 0.0, log_q), 0.0), axis=0)
    dead = tl.max((weighs & zero).to(tl.int32), axis=0) != 0
    total = tl.where(dead, float("-inf"), total)
    top = tl.where(tl.max(weights, axis=0) > 0.0, tl.max(total, axis=0), float("-inf"))
    mean = normalised(tl.where(dead, 0.0, tl.exp(total - tl.where(top > float("-inf"), top, 0.0))))
    return tl.where(top > float("-inf"), mean, otherwise)


@triton.jit
def entropy_of(p):
    """−Σ p log p in nats, 0 · log 0 = 0."""
    return tl.maximum(-tl.sum(p * tl.log(tl.where(p > 0.0, p, 1.0)), axis=0), 0.0)


@triton.jit
def divergences(p, weights):
    """KL(p_m ‖ Σ w_j p_j) per model and their weighted mean, over the union and one bucket for the rest."""
    inside = tl.sum(p, axis=1)
    rest = tl.maximum(1.0 - inside, 0.0)
    total = inside + rest
    p = p / total[:, None]
    rest = rest / total
    kl = tl.sum(kl_terms(p, tl.sum(p * weights[:, None], axis=0)[None, :]), axis=1)
    kl += kl_terms(rest, tl.sum(rest * weights, axis=0))
    kl = tl.where(weights > 0.0, tl.maximum(kl, 0.0), 0.0)
    return kl, tl.sum(weights * kl, axis=0)


@triton.jit
def kl_terms(p, mix):
    """The terms of KL(p || mix), 0 where p is 0."""
    both = tl.minimum(p, mix) > 0.0
    return tl.where(both, p * (tl.log(tl.where(both, p, 1.0)) - tl.log(tl.where(both, mix, 1.0))), 0.0)


@triton.jit
def prefix_boost(mean, cids, tops_ptr, tops, prefix_end_ptr, size, space_cid, min_prob):
    """What prefix sharpening adds (SAFE, arXiv 2510.15346, section 3.3).

    For each u among the primary's top candidates with E(u) > min_prob, neither the single space nor END: the E of those
    that start with u, which are the candidate ids between u and prefix_end[u].
    """
    boost = tl.zeros(mean.shape, dtype=tl.float32)
    for i in range(tops):
        u = tl.load(tops_ptr + i)
        if (u >= 0) & (u != space_cid) & (u < size - 1):
            end = tl.load(prefix_end_ptr + u)
            own = tl.sum(tl.where(cids == u, mean, 0.0), axis=0)
            continuations = tl.sum(tl.where((cids > u) & (cids < end), mean, 0.0), axis=0)
            boost = tl.where(cids == u, tl.where(own > min_prob, continuations, 0.0), boost)
    return boost


@triton.jit
def tempered(mean, tau):
    """E^(1/τ) relative to the largest E."""
    log = tl.where(mean > 0.0, tl.log(tl.where(mean > 0.0, mean, 1.0)), float("-inf"))
    top = tl.max(log, axis=0)
    return tl.exp((log - tl.where(top > float("-inf"), top, 0.0)) / tau)


@triton.jit
def gate_open(gate, threshold, primary_prob, kl, js):
    """Whether the row ensembles: MaxProb (1) below, KL (2) and JS (3) above the threshold; always without a gate."""
    is_open = (gate != 1) | (primary_prob < threshold)
    is_open = is_open & ((gate != 2) | (tl.max(kl, axis=0) > threshold))
    return is_open & ((gate != 3) | (js > threshold))


@triton.jit
def fuse(
    scores,
    cids,
    logsumexp,
    tops_ptr,
    tops,
    primary_max,
    primary_cid,
    prefix_end_ptr,
    size,
    space_cid,
    settings,
    out,
    row,
    batch,
    width,
    models,
    MODELS: tl.constexpr,
    UNION: tl.constexpr,
):
    """Fuse one row and write everything that `Fused` and `FuseStep` share; return choice, ensembled and flags."""
    model = tl.arange(0, MODELS)
    at = tl.arange(0, UNION)
    inside = cids >= 0
    nan = tl.max(((scores != scores) & inside[None, :]).to(tl.int32))
    nan = nan | tl.max((logsumexp != logsumexp).to(tl.int32))
    s = tl.where(inside[None, :], bounded(scores), float("-inf"))
    log_z = bounded(logsumexp)
    weights = tl.load(settings.weights + row * models + model, mask=model < models, other=0.0)

    log_q = log_softmax(s)
    some = tl.max(s, axis=1) > float("-inf")
    w = effective_weights(weights, some)
    arithmetic = tl.sum(tl.exp(log_q) * w[:, None], axis=0)
    geometric = geometric_mean(log_q, w, arithmetic)
    mean = tl.where(tl.load(settings.aggregate + row) == 1, geometric, arithmetic)

    kl, js = divergences(probability(s, log_z[:, None]), effective_weights(weights, log_z > float("-inf")))
    max_prob = tl.max(mean, axis=0)
    entropy = entropy_of(mean)
    primary_z = tl.max(tl.where(model == 0, log_z, float("-inf")), axis=0)
    primary_prob = probability(bounded(primary_max), primary_z)
    possible = max_prob > 0.0
    is_open = gate_open(tl.load(settings.gate + row), tl.load(settings.gate_threshold + row), primary_prob, kl, js)
    ensembled = is_open & possible

    kind = tl.load(settings.sharpen + row)
    threshold = tl.load(settings.threshold + row)
    count = tl.sum(inside.to(tl.int32), axis=0)
    wide = (entropy > threshold * tl.log(tl.maximum(count, 1).to(tl.float32))) & (count > 1)
    by_entropy = tl.load(settings.trigger + row) == 1
    fires = (by_entropy & wide) | ((by_entropy == 0) & (max_prob < threshold))
    sharpened = fires & (kind > 0) & ensembled

    # Temperature keeps the order of E, so its argmax is E's: rounding E^(1/τ) must not make new ties.
    sharp = mean
    soft = mean
    if sharpened:
        if kind == 1:
            tops = tl.minimum(tops, tl.load(settings.top_k + row))
            min_prob = tl.load(settings.min_prob + row)
            sharp = mean + prefix_boost(mean, cids, tops_ptr, tops, prefix_end_ptr, size, space_cid, min_prob)
            soft = sharp
        elif kind == 2:
            sharp = geometric
            soft = geometric
        else:
            soft = tempered(mean, tl.load(settings.tau + row))
    position = tl.min(tl.where(inside & (sharp == tl.max(sharp, axis=0)), at, UNION), axis=0)
    probs = normalised(soft)
    tl.store(out.probs + row * width + at, probs, mask=at < width)
    temperature = tl.load(settings.temperature + row)
    if temperature > 0.0:
        tl.debug_barrier()
        position = draw(probs, cids, out.probs + row * width, temperature, settings, row, width, UNION)
    chosen = tl.max(tl.where(at == tl.minimum(position, width - 1), cids, -1), axis=0)
    choice = tl.where(is_open, tl.where(possible, chosen, -1), primary_cid)

    tl.store(out.max_prob + row, max_prob)
    tl.store(out.entropy + row, entropy)
    tl.store(out.kl + model * batch + row, kl, mask=model < models)
    tl.store(out.js + row, js)
    tl.store(out.ensembled + row, ensembled)
    tl.store(out.sharpened + row, sharpened)
    return choice, ensembled, nan | tl.where(possible, 0, 2)
