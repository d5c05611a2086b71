"""Reference of `fuse_candidates`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference import ensemble
from ensemble_decode.kernels.reference.numerics import (
    NEG_INF,
    bounded,
    first_where,
    log_softmax,
    may,
    probability,
    row_max,
)
from ensemble_decode.kernels.reference.sampling import sample
from ensemble_decode.kernels.types import FLAG_EMPTY, FLAG_NAN, Fused, FuseSettings
from torch import Tensor
from torch.nn.functional import pad


def fuse_candidates(
    scores: Tensor,
    cids: Tensor,
    logsumexp: Tensor,
    primary_topk_cids: Tensor,
    primary_max: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: FuseSettings,
    *,
    dtype: torch.dtype = torch.float32,
) -> Fused:
    """See `ensemble_decode.kernels.fuse_candidates`."""
    width = cids.shape[1]
    if width == 0:  # an empty union gets a column of padding, so that no axis below is empty
        scores, cids = pad(scores, (0, 1), value=NEG_INF), pad(cids, (0, 1), value=-1)
    inside = cids >= 0
    nan = ((torch.isnan(scores) & inside).any(-1) | torch.isnan(logsumexp)).any(0)
    s = torch.where(inside, bounded(scores.to(dtype)), NEG_INF)
    log_z = bounded(logsumexp.to(dtype))
    fused = decide(
        log_q=log_softmax(s),
        p=probability(s, log_z.unsqueeze(-1)),
        consulted=log_z > NEG_INF,
        inside=inside,
        cids=cids,
        tops=primary_topk_cids,
        primary_prob=probability(primary_max.to(dtype), log_z[0]),
        primary_cid=primary_cid,
        prefix_end=prefix_end,
        space_cid=space_cid,
        settings=settings,
    )
    return fused._replace(probs=fused.probs[:, :width], flags=fused.flags | (nan * FLAG_NAN).to(torch.int32))


def decide(
    *,
    log_q: Tensor,
    p: Tensor,
    consulted: Tensor,
    inside: Tensor,
    cids: Tensor,
    tops: Tensor,
    primary_prob: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: FuseSettings,
) -> Fused:
    """Fuse distributions over any set of candidates.

    `log_q` [M, B, U] is what is averaged, `p` [M, B, U] the models' own probabilities of the same candidates;
    `consulted` [M, B] the models that have a distribution; `inside` [B or 1, U] marks candidates that are not padding;
    `cids` [B or 1, U] ascending; `tops` [B, k0] the primary's best candidates.
    """
    dtype = log_q.dtype
    weights = ensemble.effective_weights(settings, (log_q > NEG_INF).any(-1)).to(dtype)
    arithmetic = geometric = ensemble.arithmetic_mean(log_q.exp(), weights)
    if may((settings.aggregate == ensemble.GEOMETRIC) | (settings.sharpen == ensemble.GEOMETRIC_SHARPEN)):
        geometric = ensemble.geometric_mean(log_q, weights, otherwise=arithmetic)
    mean = torch.where((settings.aggregate == ensemble.GEOMETRIC).unsqueeze(-1), geometric, arithmetic)

    kl, js = ensemble.divergences(p, ensemble.effective_weights(settings, consulted).to(dtype))
    max_prob, entropy = row_max(mean), ensemble.entropy(mean)
    possible = max_prob > 0
    is_open = ensemble.gate_open(settings, primary_prob, kl, js)
    ensembled = is_open & possible
    sharpened = ensemble.triggered(settings, max_prob, entropy, inside.sum(-1)) & ensembled

    kind = torch.where(sharpened, settings.sharpen, 0).unsqueeze(-1)
    sharp = torch.where(kind == ensemble.GEOMETRIC_SHARPEN, geometric, mean)
    if may(kind == ensemble.PREFIX):
        columns = torch.arange(tops.shape[1], device=tops.device)
        tops = torch.where(columns < settings.top_k.unsqueeze(-1), tops, -1)
        boost = ensemble.prefix_boost(mean, cids, tops, prefix_end, space_cid, settings.min_prob.to(dtype))
        sharp = torch.where(kind == ensemble.PREFIX, mean + boost, sharp)
    # Temperature keeps the order of E, so its argmax is E's: rounding E^(1/τ) must not make new ties.
    best = first_where(inside & (sharp == row_max(sharp).unsqueeze(-1)))
    soft = sharp
    if may(kind == ensemble.TEMPERATURE):
        soft = torch.where(kind == ensemble.TEMPERATURE, ensemble.tempered(mean, settings.tau.to(dtype)), sharp)
    probs = ensemble.normalised(soft)

    position = best
    if may(settings.temperature > 0):
        position = torch.where(settings.temperature > 0, sample(probs, cids, settings), best)
    position = position.clamp(max=cids.shape[1] - 1)
    chosen = cids.expand(position.shape[0], -1).gather(1, position.unsqueeze(-1))[:, 0]
    choice = torch.where(is_open, torch.where(possible, chosen, -1), primary_cid).to(torch.int32)
    flags = (~possible * FLAG_EMPTY).to(torch.int32)
    return Fused(probs, choice, max_prob, entropy, kl, js, ensembled, sharpened, flags)
