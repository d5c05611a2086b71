"""What a recommended ensemble would cost per token, by the benchmark's cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_decode.cost.model import DEVICES, ModelShape, Settings, cost_of_run
from ensemble_decode.errors import InputError


@dataclass(frozen=True)
class ExpectedCost:
    """Milliseconds between two tokens of a row on ``device``, by the cost model: a prediction where ``predicted``.

    ``alone``: each member by itself; ``together``: the ensemble; ``times_primary``: that over the primary alone.
    ``fits``: whether weights and caches of all members fit the device's memory. ``stands``: the share of drafted tokens
    that was assumed to stand (SAFE).
    """

    device: str
    method: str
    batch: int
    prompt_tokens: int
    new_tokens: int
    stands: float | None
    alone: dict[str, float]
    together: float
    times_primary: float
    fits: bool
    predicted: bool


def expected_cost(
    shapes: Sequence[ModelShape],
    method: str,
    device: str,
    *,
    batch: int,
    prompt_tokens: int,
    new_tokens: int,
    stands: float | None,
) -> ExpectedCost:
    """``shapes``: the members, the primary first. ``stands``: None for the cost model's own assumption.

    Raises ``InputError`` for an unknown device.
    """
    if device not in DEVICES:
        raise InputError(f"cost device {device!r}: there are {', '.join(DEVICES)}")
    settings = Settings() if stands is None else Settings(stands=stands)
    sizes: dict[str, Any] = {"batch": batch, "prompt": max(prompt_tokens, 1), "tokens": max(new_tokens, 1)}
    alone = {shape.name: 1000 * cost_of_run([shape], DEVICES[device], "single", **sizes).seconds for shape in shapes}
    cost = cost_of_run(shapes, DEVICES[device], method, settings=settings, **sizes)
    together = 1000 * cost.seconds
    return ExpectedCost(
        device=device,
        method=method,
        batch=batch,
        prompt_tokens=sizes["prompt"],
        new_tokens=sizes["tokens"],
        stands=settings.stands if method == "safe" else None,
        alone=alone,
        together=together,
        times_primary=together / alone[shapes[0].name],
        fits=cost.fits,
        predicted=cost.predicted,
    )
