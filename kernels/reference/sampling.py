"""Sampling one candidate per row: filters as transformers applies them, then Gumbel-max."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import NEG_INF, first_where, row_max, tree_sum
from ensemble_decode.kernels.reference.philox import gumbel
from ensemble_decode.kernels.types import FuseSettings
from torch import Tensor


def sample(probs: Tensor, cids: Tensor, settings: FuseSettings) -> Tensor:
    """Index [B] into the last axis of `probs` [B, U] for rows with a temperature above 0; elsewhere unspecified.

    E_T ∝ E^(1/T); top-k, top-p, min-p in this order; then the largest log E_T(u) + g(u), the smaller index among
    equals. `cids` [B, U] or [U] number the noise. Candidates of probability 0 are never drawn; the length of the axis
    where there is no other.
    """
    temperature = torch.where(settings.temperature > 0, settings.temperature, 1.0).unsqueeze(-1)
    alive = probs > 0
    log = torch.where(alive, probs, 1.0).log() / temperature
    log = torch.where(alive, log, NEG_INF)
    log = torch.where(filtered(log, settings), log, NEG_INF)
    score = log.to(torch.float64) + gumbel(cids, settings.seed, settings.row, settings.step)
    alive = log > NEG_INF
    score = torch.where(alive, score, NEG_INF)
    return first_where(alive & (score == row_max(score).unsqueeze(-1)))


def filtered(log: Tensor, settings: FuseSettings) -> Tensor:
    """Which candidates the filters keep, given unnormalised log probabilities [B, U].

    Top-k keeps everything not below the k-th largest; top-p the shortest run of the most probable (smaller index first
    among equals) that holds top_p of what top-k left, at least one; min-p everything not below min_p times the largest.
    """
    width = log.shape[1]
    if width == 0:
        return torch.zeros_like(log, dtype=torch.bool)
    ordered, order = log.sort(dim=-1, descending=True, stable=True)
    last = settings.sample_top_k.to(torch.int64).clamp(1, width) - 1
    kth = torch.where(settings.sample_top_k > 0, ordered.gather(1, last.unsqueeze(-1))[:, 0], NEG_INF)

    top = ordered[:, :1]
    weight = torch.where(top == NEG_INF, NEG_INF, ordered - torch.where(top == NEG_INF, 0.0, top)).exp()
    weight = torch.where(ordered >= kth.unsqueeze(-1), weight, 0.0)
    before = exclusive_scan(weight)
    total = tree_sum(weight).unsqueeze(-1)
    nucleus = (before < settings.top_p.unsqueeze(-1) * total) | (settings.top_p >= 1).unsqueeze(-1)
    nucleus[:, :1] = True
    nucleus = torch.zeros_like(nucleus).scatter(1, order, nucleus)

    likely = log - torch.where(top == NEG_INF, 0.0, top) >= settings.min_p.unsqueeze(-1).log()
    return (log > NEG_INF) & (log >= kth.unsqueeze(-1)) & nucleus & likely


def exclusive_scan(x: Tensor) -> Tensor:
    """Sum of all entries before each one along the last axis, in a fixed order of additions."""
    total = torch.nn.functional.pad(x, (1, 0))[..., :-1]
    shift = 1
    while shift < x.shape[-1]:
        total = total + torch.nn.functional.pad(total, (shift, 0))[..., : x.shape[-1]]
        shift *= 2
    return total
