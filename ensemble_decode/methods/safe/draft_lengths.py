"""Draft lengths that follow a row: a draft goes on as long as it is likely enough to stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 16
"""Tokens of the longest draft of ``draft_length="auto"``."""
_LIKELY = 0.4
_STOOD, _EXPECTED = 20.0, 16.0  # tokens that a row is taken to have seen before its first


@dataclass(frozen=True)
class AutoLength:
    """The rule of ``draft_length="auto"``; docs/methods.md has what it gains.

    One more token is worth its forward where all before it stand. The primary's own probabilities estimate how likely
    that is, corrected by what became of the row's earlier drafts: ``trust`` is the number of tokens that stood over the
    sum of their probabilities, rejected tokens included in the sum, counted on from 20 / 16. A draft ends where the
    product of ``min(1, trust * probability)`` over its tokens falls below 0.4, or with 16 tokens.

    Attributes:
        stood: Tokens that stood so far.
        expected: The sum of the probabilities of all judged tokens so far.
    """

    stood: float = _STOOD
    expected: float = _EXPECTED

    @property
    def trust(self) -> float:
        """How much likelier tokens are to stand than their probabilities say."""
        return self.stood / self.expected

    def goes_on(self, probs: Sequence[float]) -> bool:
        """Whether a draft whose tokens have the probabilities ``probs`` is worth another token."""
        chance = 1.0
        for prob in probs:
            chance *= min(1.0, self.trust * prob)
        return len(probs) < LONGEST and chance >= _LIKELY

    def after(self, probs: Sequence[float], kept: int) -> AutoLength:
        """The state after a draft of which the first ``kept`` tokens stood and the next one, if any, was rejected."""
        return AutoLength(self.stood + kept, self.expected + sum(probs[: kept + 1]))
