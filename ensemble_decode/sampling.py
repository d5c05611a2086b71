"""How one token is drawn: the counter-based keys of a draw, and the operators that draw by them.

Every token is drawn by Gumbel-max (docs/operators.md): the largest of log probability + noise, where a candidate's
noise depends on (seed, row, step, candidate) alone. Rounding of the probabilities changes a draw only where two scores
agree to the same rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ensemble_decode import kernels
from ensemble_decode.settings import Sampling

ACCEPT = 0xFFFFFFFE
"""The word of the number that decides whether a draft token stands; no candidate has it."""
RESIDUAL_STEP = 1 << 31
"""Added to the step of a residual draw, so that it shares no noise with the draw of the draft token it replaces."""


class Keys(NamedTuple):
    """What a draw depends on beside its candidates: i64 [B] each.

    Attributes:
        seeds: The sampling's seed, or the row's own.
        rows: The row's number.
        steps: The position in the row.
    """

    seeds: torch.Tensor
    rows: torch.Tensor
    steps: torch.Tensor


def sample_settings(sampling: Sampling, keys: Keys, device: torch.device) -> kernels.SampleSettings:
    """The operators' settings of one sampling, a row per key.

    Args:
        sampling: Temperature and filters.
        keys: What the draws depend on.
        device: Where the logits lie.
    """
    return kernels.SampleSettings.make(
        len(keys.rows),
        device,
        temperature=sampling.temperature,
        sample_top_k=min(sampling.top_k, 2**31 - 1),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=keys.seeds,
        row=keys.rows,
        step=keys.steps,
    )


def choose_alone(logits: torch.Tensor, allowed: torch.Tensor, sampling: Sampling, keys: Keys) -> torch.Tensor:
    """Draw one id per row from one model's own distribution.

    Args:
        logits: [B, V], float32, bfloat16 or float16.
        allowed: int32 bitmask [1 or B, ceil(V / 32)], as the operators take it.
        sampling: Temperature and filters.
        keys: What the draws depend on.

    Returns:
        i64 [B]. An id of probability 0 is never returned; -1 where nothing is allowed.
    """
    settings = sample_settings(sampling, keys, logits.device)
    return kernels.sample_tokens(logits, allowed.to(logits.device), settings).long()


def filtered_probs(logits: torch.Tensor, allowed: torch.Tensor | None, sampling: Sampling, keys: Keys) -> torch.Tensor:
    """The distribution that one token is drawn from, after temperature and filters.

    Args:
        logits: [B, V], float32, bfloat16 or float16.
        allowed: int32 bitmask [1 or B, ceil(V / 32)], or None.
        sampling: Temperature and filters.
        keys: Of B rows; their values do not matter.

    Returns:
        float32 [B, V], each row summing to 1; all 0 where nothing is allowed.
    """
    return kernels.token_probs(logits, allowed, sample_settings(sampling, keys, logits.device))


def uniform(keys: Keys, word: int) -> torch.Tensor:
    """One float64 number in (0, 1) per row, for a decision that draws no token."""
    return kernels.uniform(keys.seeds, keys.rows, keys.steps, word)


def draw_residual(residual: torch.Tensor, cids: torch.Tensor, keys: Keys) -> torch.Tensor:
    """Draw from what a draft token's rejection leaves (SAFE, arXiv 2510.15346, appendix H).

    Args:
        residual: [B, U], not negative, of any sum.
        cids: [B, U], the columns' candidates.
        keys: Those of the draft tokens.

    Returns:
        i64 [B]: the column drawn, -1 where the row is 0 throughout.
    """
    settings = kernels.SampleSettings.make(
        len(residual), residual.device, temperature=1.0, seed=keys.seeds, row=keys.rows, step=keys.steps + RESIDUAL_STEP
    )
    return kernels.sample_tokens(residual.log(), None, settings, cids.to(torch.int32)).long()
