"""Sampling one candidate per row: filters as transformers applies them, then Gumbel-max."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import NEG_INF, first_where, may, row_max
from ensemble_decode.kernels.reference.philox import gumbel
from ensemble_decode.kernels.types import FuseSettings, SampleSettings
from torch import Tensor

WEIGHT_UNIT = 2.0**40
"""Weights of top-p are whole numbers, exp(log − largest log) in units of 2⁻⁴⁰ rounded down: sums are the same in any
order."""
SORTED = 512
"""So few candidates are sorted; more are selected by radix."""


def sample(probs: Tensor, cids: Tensor, settings: FuseSettings | SampleSettings) -> Tensor:
    """Index [B] into the last axis of `probs` [B, U] for rows with a temperature above 0; elsewhere unspecified.

    E_T ∝ E^(1/T); top-k, top-p, min-p in this order; then the largest log E_T(u) + g(u), the smaller index among
    equals. `cids` [B, U] or [U] number the noise. Candidates of probability 0 are never drawn; the length of the axis
    where there is no other.
    """
    temperature = torch.where(settings.temperature > 0, settings.temperature, 1.0).unsqueeze(-1)
    alive = probs > 0
    log = torch.where(alive, probs, 1.0).log() / temperature
    return draw(torch.where(alive, log, NEG_INF), cids, settings)


def draw(log: Tensor, cids: Tensor, settings: FuseSettings | SampleSettings) -> Tensor:
    """Index [B] of the largest log + g among the candidates that the filters keep; the axis's length without any."""
    alive = filtered(log, settings)
    score = log.to(torch.float64) + gumbel(cids, settings.seed, settings.row, settings.step)
    score = torch.where(alive, score, NEG_INF)
    return first_where(alive & (score == row_max(score).unsqueeze(-1)))


def filtered(log: Tensor, settings: FuseSettings | SampleSettings) -> Tensor:
    """Which candidates the filters keep, given unnormalised log probabilities [B, U].

    Top-k keeps everything not below the k-th largest; top-p the shortest run of the most probable (smaller index first
    among equals) that holds top_p of what top-k left, at least one; min-p everything not below min_p times the largest.
    """
    width = log.shape[1]
    kept = log > NEG_INF
    if width == 0:
        return kept
    top = row_max(log).unsqueeze(-1)
    relative = torch.where(kept, log - torch.where(top == NEG_INF, 0.0, top), NEG_INF)
    wants_k = ((settings.sample_top_k > 0) & (settings.sample_top_k < width)).unsqueeze(-1)
    if may(wants_k):
        k = settings.sample_top_k.to(torch.int64).unsqueeze(-1).clamp(min=1)
        kth = _up_to(log, kept.to(torch.int64), k)[0]
        kept = kept & (~wants_k | (_falling(log) <= kth))
    wants_p = (settings.top_p < 1).unsqueeze(-1)
    if may(wants_p):
        weight = torch.where(kept, relative.exp().to(torch.float64) * WEIGHT_UNIT, 0.0).to(torch.int64)
        share = settings.top_p.to(torch.float64).unsqueeze(-1) * weight.sum(-1, keepdim=True).to(torch.float64)
        last, ties = _up_to(log, weight, share.ceil().to(torch.int64).clamp(min=1))
        key = _falling(log)
        on = kept & (key == last)
        nucleus = (key < last) | (on & (on.cumsum(-1) <= ties))
        kept = kept & (~wants_p | nucleus)
    return kept & (relative >= settings.min_p.unsqueeze(-1).log())


def _falling(x: Tensor) -> Tensor:
    """Whole numbers in [0, 2³²) in the order of falling float32 values."""
    bits = (x.to(torch.float32) + 0.0).view(torch.int32)  # + 0.0 makes −0 equal to 0
    return 0x7FFFFFFF - (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)


def _up_to(log: Tensor, weight: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Where the run of the largest `log` ends that less than `limit` [B, 1] of `weight` int64 [B, U] lies before.

    Returns, [B, 1] each, the `_falling` key of its last value and how many of the entries of this value belong to it.
    The weight of an entry depends on its value alone; entries without weight are passed over. Few entries are sorted;
    of many, two passes over 16 bits each add up the weights per value and find the digit where the limit lies.
    """
    key = _falling(log)
    if key.shape[-1] <= SORTED:
        ordered, order = key.sort(dim=-1)
        ranked = weight.gather(-1, order)
        ahead = ranked.cumsum(-1) - ranked
        at = _last((ahead < limit) & (ranked > 0))
        last = ordered.gather(-1, at)
        before = torch.where(weight > 0, torch.where(key < last, weight, 0), 0).sum(-1, keepdim=True)
    else:
        last = before = torch.zeros_like(limit)
        inside = torch.ones_like(key, dtype=torch.bool)
        for shift in (16, 0):
            digit = (key >> shift) & 0xFFFF
            sums = weight.new_zeros((key.shape[0], 1 << 16)).scatter_add_(1, digit, torch.where(inside, weight, 0))
            ahead = before + sums.cumsum(-1) - sums
            at = _last((ahead < limit) & (sums > 0))
            before, last = ahead.gather(-1, at), (last << 16) | at
            inside = inside & (digit == at)
    each = torch.where(key == last, weight, 0).amax(-1, keepdim=True).clamp(min=1)
    return last, (limit - before + each - 1) // each


def _last(mask: Tensor) -> Tensor:
    """Index [B, 1] of the last True along the last axis, 0 without any."""
    return torch.where(mask, torch.arange(mask.shape[-1], device=mask.device), 0).amax(-1, keepdim=True)
