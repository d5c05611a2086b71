"""Gates: where an ensemble is worth its cost. Elsewhere the primary's own choice stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ensemble_decode.schema.options import NUMBER, Choice, Options


@dataclass(frozen=True)
class MaxProb(Options):
    """Ensemble only where the primary's top probability is below a threshold.

    Args:
        threshold: A probability; the gate is open below it.
    """

    source: ClassVar[str] = "arXiv 2406.12585, section 3.3"
    threshold: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.5


@dataclass(frozen=True)
class KL(Options):
    """Ensemble only where some model is far from the consensus: the maximum over m of KL(P_m || sum w P).

    The divergence is taken over the union of candidates plus one bucket for the rest.

    Args:
        threshold: In nats; the gate is open above it.
    """

    threshold: Annotated[float, Field(ge=0), NUMBER] = 0.1


@dataclass(frozen=True)
class JS(Options):
    """Ensemble only where the models disagree: by their weighted Jensen-Shannon divergence.

    The divergence is taken over the union of candidates plus one bucket for the rest.

    Args:
        threshold: In nats; the gate is open above it.
    """

    threshold: Annotated[float, Field(ge=0), NUMBER] = 0.1


Gate = MaxProb | KL | JS
GATES = Choice("a gate", {"max_prob": MaxProb, "kl": KL, "js": JS}, optional=True)
GATE_NAMES: dict[type, str] = {cls: name for name, cls in GATES.classes.items()}


def gate_fields(gate: Gate | None) -> dict[str, Any]:
    """A gate as fields of ``kernels.FuseSettings``; None has none."""
    return {} if gate is None else {"gate": GATE_NAMES[type(gate)], "gate_threshold": gate.threshold}
