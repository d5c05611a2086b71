"""Gates: where an ensemble is worth its cost. Elsewhere the primary's own choice stands."""

from __future__ import annotations

from dataclasses import dataclass

from ensemble_decode.errors import InputError


def _check(name: str, threshold: float, upper: float | None) -> None:
    if not threshold >= 0 or (upper is not None and threshold > upper):
        allowed = "0 or more" if upper is None else f"between 0 and {upper:g}"
        raise InputError(f"{name}: threshold must be {allowed}, got {threshold!r}")


@dataclass(frozen=True)
class MaxProb:
    """Ensemble only where the primary's top probability is below ``threshold`` (GaC, arXiv 2406.12585, section 3.3)."""

    threshold: float = 0.5

    def __post_init__(self) -> None:
        _check("MaxProb", self.threshold, 1.0)


@dataclass(frozen=True)
class KL:
    """Ensemble only where some model is further than ``threshold`` nats from the consensus: max over m of KL(P_m || sum w P).

    Taken over the union of candidates plus one bucket for the rest.
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        _check("KL", self.threshold, None)


@dataclass(frozen=True)
class JS:
    """Ensemble only where the weighted Jensen-Shannon divergence of the models exceeds ``threshold`` nats (union plus rest)."""

    threshold: float = 0.1

    def __post_init__(self) -> None:
        _check("JS", self.threshold, None)


Gate = MaxProb | KL | JS
GATE_NAMES: dict[type, str] = {MaxProb: "max_prob", KL: "kl", JS: "js"}
