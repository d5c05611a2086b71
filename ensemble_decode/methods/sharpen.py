"""Sharpening of an ensemble distribution that came out too flat (SAFE, arXiv 2510.15346, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ensemble_decode.errors import InputError

SharpenKind = Literal["none", "prefix", "geometric", "temperature"]
Trigger = Literal["max_prob", "entropy"]


@dataclass(frozen=True)
class Sharpen:
    """How and where to sharpen.

    Args:
        kind: ``"geometric"`` takes the weighted geometric mean of the models instead of the arithmetic one.
            ``"prefix"`` adds to each of the primary's top-k candidates with probability above ``min_prob`` the mass of
            the candidates that continue it. ``"temperature"`` raises E to 1/``temperature``, which matters when
            sampling. ``"none"`` does nothing.
        trigger: ``"max_prob"`` fires where the largest ensemble probability is below ``threshold``, ``"entropy"`` where
            entropy / log of the number of candidates is above it.
        threshold: Of the trigger, 0 to 1.
        min_prob: The probability that ``"prefix"`` asks of a candidate, 0 to 1.
        temperature: Of ``"temperature"``, above 0.
    """

    kind: SharpenKind = "geometric"
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


def sharpen_fields(sharpen: Sharpen) -> dict[str, Any]:
    """A ``Sharpen`` as fields of ``kernels.FuseSettings``; the kind ``"none"`` has none."""
    if sharpen.kind == "none":
        return {}
    return {
        "sharpen": sharpen.kind,
        "trigger": sharpen.trigger,
        "threshold": sharpen.threshold,
        "min_prob": sharpen.min_prob,
        "tau": sharpen.temperature,
    }
