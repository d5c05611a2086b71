"""Scores with intervals: percentile bootstrap over items, paired wherever models are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ensemble_decode.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A mean over items, with the ends of its confidence interval."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Resamples of the same items, so that figures of different models vary together (a paired bootstrap).

    ``items``: how many there are; ``resamples``; ``confidence``: of the intervals; ``seed``. Efron's percentile
    interval. A share that is 0 or 1 on every item cannot vary under resampling: its open end is the exact binomial
    bound of Clopper and Pearson instead.
    """

    def __init__(self, items: int, resamples: int = 2000, confidence: float = 0.95, seed: int = 0) -> None:
        if items < 1:
            raise InputError("bootstrap: there are no items")
        if not 0 < confidence < 1:
            raise InputError(f"bootstrap: confidence must lie between 0 and 1, got {confidence!r}")
        if resamples < 1:
            raise InputError(f"bootstrap: resamples must be at least 1, got {resamples!r}")
        self.items, self.confidence = items, confidence
        rng = np.random.default_rng(seed)
        # how often each item is drawn in each resample
        self._weights = rng.multinomial(items, np.full(items, 1 / items), size=resamples) / items

    def means(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """The mean of each resample, float64 ``[resamples]``."""
        return self._weights @ np.asarray(values, np.float64)

    def mean(self, values: Sequence[float]) -> Estimate:
        """The mean of values in 0..1 and its interval."""
        array = np.asarray(values, np.float64)
        value = float(array.mean())
        if value in (0.0, 1.0):
            bound = 1 - ((1 - self.confidence) / 2) ** (1 / self.items)
            return Estimate(value, 0.0 if value == 0 else 1 - bound, bound if value == 0 else 1.0)
        return Estimate(value, *self._interval(self.means(array)))

    def difference(self, one: Sequence[float], other: Sequence[float]) -> Estimate:
        """The mean of ``one`` less that of ``other``, item by item."""
        apart = np.asarray(one, np.float64) - np.asarray(other, np.float64)
        return Estimate(float(apart.mean()), *self._interval(self.means(apart)))

    def _interval(self, means: np.ndarray) -> tuple[float, float]:
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(means, [tail, 1 - tail])
        return float(low), float(high)


@dataclass(frozen=True)
class Spread:
    """Lengths of responses: mean and quartiles."""

    mean: float
    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        marks = np.quantile(np.asarray(values, np.float64), [0, 0.25, 0.5, 0.75, 1])
        return cls(float(np.mean(values)), *(float(mark) for mark in marks))


def ratio(one: float, other: float) -> float | None:
    """The longer of two mean lengths over the shorter, at least 1; None where one of them is 0 and the other is not."""
    longer, shorter = max(one, other), min(one, other)
    if longer == 0:
        return 1.0
    return None if shorter == 0 else longer / shorter


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean, or None where there is nothing to average."""
    return math.fsum(values) / len(values) if values else None
