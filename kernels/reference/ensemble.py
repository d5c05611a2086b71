"""The mathematics of fusing: aggregates, divergences, sharpening, gates; for any set of candidates.

Tensors are [M, B, U] per model and [B, U] for the ensemble; U is a union of top-k sets or a whole vocabulary.
"""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import NEG_INF, row_max, sum_models, tree_sum
from ensemble_decode.kernels.types import FuseSettings
from torch import Tensor

ARITHMETIC, GEOMETRIC = 0, 1
PREFIX, GEOMETRIC_SHARPEN, TEMPERATURE = 1, 2, 3
BY_ENTROPY = 1
MAX_PROB_GATE, KL_GATE, JS_GATE = 1, 2, 3


def effective_weights(settings: FuseSettings, present: Tensor) -> Tensor:
    """Weights [M, B] of the models that are present [M, B], renormalised; 0 where none of positive weight is."""
    weights = torch.where(present, settings.weights.t().to(torch.float32), 0.0)
    total = sum_models(weights)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)


def normalised(x: Tensor) -> Tensor:
    """x / Σ x over the last axis; 0 where the sum is 0."""
    total = tree_sum(x).unsqueeze(-1)
    return torch.where(total > 0, x / torch.where(total > 0, total, 1.0), 0.0)


def arithmetic_mean(q: Tensor, weights: Tensor) -> Tensor:
    """Σ w_m q_m."""
    return sum_models(q * weights.unsqueeze(-1))


def geometric_mean(log_q: Tensor, weights: Tensor, otherwise: Tensor) -> Tensor:
    """exp Σ w_m log q_m, normalised; 0 where a weighted model has q = 0; `otherwise` where nothing is left."""
    w = weights.unsqueeze(-1)
    zero = log_q == NEG_INF
    total = sum_models(torch.where((w > 0) & ~zero, w * torch.where(zero, 0.0, log_q), 0.0))
    dead = ((w > 0) & zero).any(0) | (w == 0).all(0)
    total = torch.where(dead, NEG_INF, total)
    top = row_max(total).unsqueeze(-1)
    mean = normalised(torch.where(dead, NEG_INF, total - torch.where(top == NEG_INF, 0.0, top)).exp())
    return torch.where(top == NEG_INF, otherwise, mean)


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p in nats, 0 · log 0 = 0."""
    return -tree_sum(torch.where(p > 0, p * torch.where(p > 0, p, 1.0).log(), 0.0)).clamp(max=0.0)


def divergences(p: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p_m ‖ Σ w_j p_j) [M, B] and Σ w_m KL_m [B], over U and one bucket for what p_m leaves out of it.

    0 for a model without weight: the consensus does not contain it.
    """
    rest = (1.0 - tree_sum(p)).clamp(min=0.0)
    p = normalised(torch.cat([p, rest.unsqueeze(-1)], -1))
    mix = arithmetic_mean(p, weights)
    both = (p > 0) & (mix > 0)
    terms = torch.where(both, p, 1.0).log() - torch.where(both, mix, 1.0).log()
    kl = tree_sum(torch.where(both, p * terms, 0.0)).clamp(min=0.0)
    kl = torch.where(weights > 0, kl, 0.0)
    return kl, sum_models(weights * kl)


def gate_open(settings: FuseSettings, primary_prob: Tensor, kl: Tensor, js: Tensor) -> Tensor:
    """Whether each row ensembles: MaxProb below, KL and JS above the threshold; always without a gate."""
    gate, threshold = settings.gate, settings.gate_threshold
    result = (gate != MAX_PROB_GATE) | (primary_prob < threshold)
    result = result & ((gate != KL_GATE) | (kl.amax(0) > threshold))
    return result & ((gate != JS_GATE) | (js > threshold))


def triggered(settings: FuseSettings, max_prob: Tensor, entropy_: Tensor, count: Tensor) -> Tensor:
    """Whether each row's trigger fires: max E below, or entropy / log |U| above the threshold; one candidate never."""
    wide = entropy_ > settings.threshold * count.clamp(min=1).to(entropy_.dtype).log()
    fires = torch.where(settings.trigger == BY_ENTROPY, wide & (count > 1), max_prob < settings.threshold)
    return fires & (settings.sharpen > 0)


def prefix_boost(
    mean: Tensor, cids: Tensor, tops: Tensor, prefix_end: Tensor, space_cid: int, min_prob: Tensor
) -> Tensor:
    """What prefix sharpening adds to each candidate [B, U] (SAFE, section 3.3).

    For u among `tops` [B, k0] with E(u) > min_prob, neither the single space nor END: Σ E(v) over the v ≠ u that start
    with u, which are the candidate ids between u and prefix_end[u].
    """
    size = prefix_end.shape[0]
    eligible = (tops >= 0) & (tops != space_cid) & (tops < size - 1)
    tops = torch.where(eligible, tops, 0)
    u, end, v = tops.unsqueeze(-1), prefix_end[tops].unsqueeze(-1), cids.unsqueeze(1)
    here = (v == u) & eligible.unsqueeze(-1)
    probs = mean.unsqueeze(1)
    own = tree_sum(torch.where(here, probs, 0.0))
    continuations = tree_sum(torch.where((v > u) & (v < end), probs, 0.0))
    boost = torch.where(eligible & (own > min_prob.unsqueeze(-1)), continuations, 0.0)
    if tops.shape[1] == 0:
        return torch.zeros_like(mean)
    # Two ids of the primary may spell one candidate: the largest of equal boosts counts it once.
    return torch.where(here, boost.unsqueeze(-1), 0.0).amax(1)


def tempered(mean: Tensor, tau: Tensor) -> Tensor:
    """E^(1/τ), relative to the largest E, so that it is 1 there; 0 stays 0."""
    log = torch.where(mean > 0, mean, 1.0).log()
    log = torch.where(mean > 0, log, NEG_INF)
    top = row_max(log).unsqueeze(-1)
    return ((log - torch.where(top == NEG_INF, 0.0, top)) / tau.unsqueeze(-1)).exp()
