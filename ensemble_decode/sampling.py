"""Sampling settings, and the choice of one model alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ensemble_decode.kernels.reference.philox import philox
from ensemble_decode.settings import Sampling


def filtered_probs(logits: torch.Tensor, allowed: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that one model samples from.

    ``logits`` [B, V] any float type, ``allowed`` bool [V]; returns float32 [B, V], each row summing to 1 (a row with nothing
    allowed is all zero).
    """
    x = logits.float().clamp(max=torch.finfo(torch.float32).max)
    x = torch.where(allowed & ~x.isnan(), x, -math.inf)
    top = x.max(dim=-1, keepdim=True).values.clamp_min(torch.finfo(torch.float32).min)
    p = ((x - top) / (sampling.temperature or 1.0)).exp()
    if sampling.top_k and sampling.top_k < p.shape[-1]:
        p = p.masked_fill(p < p.topk(sampling.top_k).values[:, -1:], 0.0)
    if sampling.top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        before = ranked.cumsum(-1) - ranked
        dropped = torch.zeros_like(p, dtype=torch.bool).scatter(
            1, order, before >= sampling.top_p * ranked.sum(-1, keepdim=True)
        )
        dropped.scatter_(1, order[:, :1], False)
        p = p.masked_fill(dropped, 0.0)
    if sampling.min_p:
        p = p.masked_fill(p < sampling.min_p * p.max(dim=-1, keepdim=True).values, 0.0)
    total = p.sum(-1, keepdim=True)
    return p / total.clamp_min(torch.finfo(torch.float32).tiny)


# The counter-based generator is keyed by (seed, row, step, candidate). Draws that belong to no candidate take these in its place.
_ALONE, ACCEPT, RESIDUAL = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_MASK = 0xFFFFFFFF


class Keys(NamedTuple):
    """What a draw depends on, with the word that says what is drawn: i64 [B] each."""

    seeds: torch.Tensor
    rows: torch.Tensor
    steps: torch.Tensor


def uniform(keys: Keys, word: int) -> torch.Tensor:
    """One float64 number in (0, 1) per row: Philox-4x32-10 keyed by ``keys`` and ``word``."""
    seeds, rows, steps = keys
    counter = (torch.full_like(rows, word), rows & _MASK, steps & _MASK, (rows >> 32) & _MASK)
    return ((philox(counter, (seeds & _MASK, (seeds >> 32) & _MASK))[0] >> 8).double() + 0.5) * 2.0**-24


def choose_alone(logits: torch.Tensor, allowed: torch.Tensor, sampling: Sampling, keys: Keys) -> torch.Tensor:
    """Sample one id per row from one model's own distribution, by inversion of its cumulative sum.

    ``logits`` [B, V], ``allowed`` bool [V]. Returns i64 [B]; an id of probability 0 is never returned. A row with nothing
    allowed returns −1.
    """
    mass = filtered_probs(logits, allowed, sampling).double().cumsum(-1)
    target = uniform(keys, _ALONE).to(mass.device).unsqueeze(-1) * mass[:, -1:]
    ids = torch.searchsorted(mass, target, right=True).squeeze(-1)
    return torch.where(mass[:, -1] > 0, ids, -1)
