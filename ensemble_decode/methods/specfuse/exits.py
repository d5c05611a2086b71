"""What a row remembers of its models: how well they did, who is still active, how much each vote weighs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_COLDEST = 0.05  # the exit test's temperature does not fall below this


@dataclass
class Standing:
    """The models of one row between its rounds.

    Attributes:
        active: Those still taking part, ascending.
        weights: Of all models, 0 for those that left, sum 1.
        totals: Each model's sum of ``S(c_i)`` over the rounds so far.
        rounds: Rounds so far.
    """

    active: list[int]
    weights: list[float]
    totals: list[float]
    rounds: int = 0

    @classmethod
    def start(cls, weights: Sequence[float]) -> Standing:
        """All models active, with the ensemble's ``weights``."""
        standing = cls(list(range(len(weights))), list(weights), [0.0] * len(weights))
        standing.renormalise()
        return standing

    def __copy__(self) -> Standing:
        return Standing(list(self.active), list(self.weights), list(self.totals), self.rounds)

    @property
    def models(self) -> int:
        """M, the models at the start."""
        return len(self.weights)

    def renormalise(self) -> None:
        """Make the weights of the active models sum to 1; equal where all of them are 0."""
        total = sum(self.weights[m] for m in self.active)
        for m in range(self.models):
            if m not in self.active:
                self.weights[m] = 0.0
            else:
                self.weights[m] = self.weights[m] / total if total > 0 else 1 / len(self.active)

    def record(self, scores: Sequence[float], temperature: float, threshold: float) -> Exit:
        """Count a round in and let the weak models go.

        ``Q_i`` is the mean of a model's scores so far, ``p = softmax(Q / tau)`` with
        ``tau = max(temperature / round, 0.05)``. Models with ``p_i < threshold / M`` leave, the best one never.

        Args:
            scores: S of the draft of each active model.
            temperature: Of the softmax in the first round.
            threshold: The share of 1/M below which a model leaves.
        """
        self.rounds += 1
        for m, score in zip(self.active, scores, strict=True):
            self.totals[m] += score
        quality = [self.totals[m] / self.rounds for m in self.active]
        tau = max(temperature / self.rounds, _COLDEST)
        best = max(range(len(quality)), key=quality.__getitem__)
        powers = [math.exp((q - quality[best]) / tau) for q in quality]
        probs = [power / sum(powers) for power in powers]
        left = [m for i, m in enumerate(self.active) if i != best and probs[i] < threshold / self.models]
        self.active = [m for m in self.active if m not in left]
        return Exit(quality, probs, tau, left)


@dataclass(frozen=True)
class Exit:
    """One exit test.

    Attributes:
        quality: Q of each model that was active.
        probs: Its softmax p.
        tau: The softmax's temperature.
        left: The models that leave.
    """

    quality: list[float]
    probs: list[float]
    tau: float
    left: list[int]


def comparisons_won(scores: Sequence[Sequence[float]], drafts: Sequence[int]) -> list[float]:
    """``r_i``: the share of comparisons that model i's candidate wins or ties (SpecEM).

    It is compared with every other model k's candidate, in the judgement of every model j other than i. A model alone
    has no comparisons: 0.

    Args:
        scores: ``scores[j][c]``: what model j gives candidate c.
        drafts: ``drafts[i]``: the candidate that model i drafted.
    """
    count = len(drafts)
    won = []
    for i in range(count):
        others = [k for k in range(count) if k != i]
        wins = sum(scores[j][drafts[i]] >= scores[j][drafts[k]] for j in others for k in others)
        won.append(wins / len(others) ** 2 if others else 0.0)
    return won


def feedback_factor(rate: float, won: float, models: int, rounds: int) -> float:
    """``exp(η r_i)`` with ``η = rate · sqrt(1/M) / round``: what SpecEM multiplies a model's weight by."""
    return math.exp(rate * math.sqrt(1 / models) / rounds * won)
