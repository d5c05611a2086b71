"""Sharpening of an ensemble distribution that came out too flat (SAFE, arXiv 2510.15346, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ensemble_decode.errors import InputError

SharpenKind = Literal["none", "prefix", "geometric", "temperature"]
Trigger = Literal["max_prob", "entropy"]


@dataclass(frozen=True)
class Sharpen:
    """How and where to sharpen.

    ``kind``: ``prefix`` adds to each of the primary's top-k candidates with probability above ``min_prob`` the mass of the
    candidates that continue it; ``geometric`` takes the weighted geometric mean of the models instead of the arithmetic one;
    ``temperature`` raises E to 1/``temperature`` (matters when sampling); ``none`` does nothing.
    ``trigger``: ``max_prob`` fires where the largest ensemble probability is below ``threshold``, ``entropy`` where
    entropy / log of the number of candidates is above it.
    """

    kind: SharpenKind = "prefix"
    trigger: Trigger = "max_prob"
    threshold: float = 0.5
    min_prob: float = 0.1
    temperature: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in get_args(SharpenKind):
            raise InputError(f"Sharpen: kind must be one of {', '.join(get_args(SharpenKind))}, got {self.kind!r}")
        if self.trigger not in get_args(Trigger):
            raise InputError(f"Sharpen: trigger must be one of {', '.join(get_args(Trigger))}, got {self.trigger!r}")
        for name in ("threshold", "min_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Sharpen: {name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if not self.temperature > 0:
            raise InputError(f"Sharpen: temperature must be above 0, got {self.temperature!r}")


NO_SHARPEN = Sharpen("none")
