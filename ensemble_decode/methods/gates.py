"""Gates: where an ensemble is worth its cost. Elsewhere the primary's own choice stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ensemble_decode.errors import InputError


def _check(name: str, threshold: float, upper: float | None) -> None:
    if not threshold >= 0 or (upper is not None and threshold > upper):
        allowed = "0 or more" if upper is None else f"between 0 and {upper:g}"
        raise InputError(f"{name}: threshold must be {allowed}, got {threshold!r}")


@dataclass(frozen=True)
class MaxProb:
    """Ensemble only where the primary's top probability is below a threshold (GaC, arXiv 2406.12585, section 3.3).

    Args:
        threshold: A probability, 0 to 1.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        _check("MaxProb", self.threshold, 1.0)


@dataclass(frozen=True)
class KL:
    """Ensemble only where some model is far from the consensus: the maximum over m of KL(P_m || sum w P).

    The divergence is taken over the union of candidates plus one bucket for the rest.

    Args:
        threshold: In nats, 0 or more; the gate is open above it.
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        _check("KL", self.threshold, None)


@dataclass(frozen=True)
class JS:
    """Ensemble only where the models disagree: by their weighted Jensen-Shannon divergence.

    The divergence is taken over the union of candidates plus one bucket for the rest.

    Args:
        threshold: In nats, 0 or more; the gate is open above it.
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        _check("JS", self.threshold, None)


Gate = MaxProb | KL | JS
GATE_NAMES: dict[type, str] = {MaxProb: "max_prob", KL: "kl", JS: "js"}


def gate_fields(gate: Gate | None) -> dict[str, Any]:
    """A gate as fields of ``kernels.FuseSettings``; None has none."""
    return {} if gate is None else {"gate": GATE_NAMES[type(gate)], "gate_threshold": gate.threshold}
