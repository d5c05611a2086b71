"""Sharpening of an ensemble distribution that came out too flat (SAFE, arXiv 2510.15346, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from ensemble_decode.schema.options import NUMBER, Choice, Options

SharpenKind = Literal["none", "prefix", "geometric", "temperature"]
Trigger = Literal["max_prob", "entropy"]


@dataclass(frozen=True)
class Sharpen(Options):
    """How and where to sharpen.

    Args:
        kind: ``"geometric"`` takes the weighted geometric mean of the models instead of the arithmetic one.
            ``"prefix"`` adds to each of the primary's top-k candidates with probability above ``min_prob`` the mass of
            the candidates that continue it. ``"temperature"`` raises E to 1/``temperature``, which matters when
            sampling. ``"none"`` does nothing.
        trigger: ``"max_prob"`` fires where the largest ensemble probability is below ``threshold``, ``"entropy"`` where
            entropy / log of the number of candidates is above it.
        threshold: The trigger's threshold.
        min_prob: The probability that ``"prefix"`` asks of a candidate.
        temperature: The temperature of ``"temperature"``; below 1 sharpens.
    """

    source: ClassVar[str] = "arXiv 2510.15346, section 4"
    kind: SharpenKind = "geometric"
    trigger: Trigger = "max_prob"
    threshold: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.5
    min_prob: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.1
    temperature: Annotated[float, Field(gt=0), NUMBER] = 0.5


SHARPENINGS = Choice("a sharpening", dict.fromkeys(get_args(SharpenKind), Sharpen), tag="kind")
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
