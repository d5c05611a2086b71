"""Philox-4x32-10, the counter-based generator of sampling, in int64 arithmetic.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The numbers of a row depend on its
seed, row, step and candidate alone, so neither the batch nor the order of work changes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The four output words of ten rounds; words are int64 tensors within [0, 2³²) that broadcast."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for round_ in range(10):
        if round_:
            k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
        # The product wraps modulo 2⁶⁴ in int64; masking undoes the sign that the shift spreads.
        low0, low1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        high0, high1 = (low0 >> 32) & _MASK, (low1 >> 32) & _MASK
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1 & _MASK, high0 ^ x3 ^ k1, low0 & _MASK
    return x0, x1, x2, x3


def gumbel(cids: Tensor, seed: Tensor, row: Tensor, step: Tensor) -> Tensor:
    """Standard Gumbel noise float64 [B, U] for candidates [B, U] or [U] and per-row int64 seed, row and step.

    g = −log(−log r), r = (⌊x0 / 2⁸⌋ + ½) · 2⁻²⁴; float64, because the largest r would round to 1 in float32.
    """
    return -(-uniform_numbers(cids, seed, row, step).log()).log()


def uniform_numbers(cids: Tensor, seed: Tensor, row: Tensor, step: Tensor) -> Tensor:
    """r = (⌊x0 / 2⁸⌋ + ½) · 2⁻²⁴, float64 [B, U], of the counters that `gumbel` describes."""
    seed, row, step = (word.unsqueeze(-1) for word in (seed, row, step))
    counter = (cids.to(torch.int64) & _MASK, row & _MASK, step & _MASK, (row >> 32) & _MASK)
    word = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))[0]
    return ((word >> 8).to(torch.float64) + 0.5) * 2.0**-24
