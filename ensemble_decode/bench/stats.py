"""Medians with their spread, ratios within rounds, bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class Figure(NamedTuple):
    """A median over rounds and its spread, the quartiles; ``rounds`` values went into it (with one, there is no
    spread)."""

    median: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """The interquartile range."""
        return self.high - self.low


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, linear between neighbours; ``values`` in any order, at least one."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def figure(values: Sequence[float]) -> Figure:
    """Median and quartiles of one value per round."""
    return Figure(quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75), len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    """The ratio of two configurations, taken within each round, so that what drifts between rounds cancels."""
    return figure([a / b for a, b in zip(above, below, strict=True)])


def bootstrap(
    values: Sequence[Item],
    statistic: Callable[[Sequence[Item]], float],
    *,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic of independent values (Efron, 1979)."""
    chance = random.Random(seed)
    made = [statistic(chance.choices(values, k=len(values))) for _ in range(draws)]
    return quantile(made, (1 - level) / 2), quantile(made, (1 + level) / 2)
