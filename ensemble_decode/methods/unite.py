"""UniTE: every step, the average of the models over the union of their top-k tokens (arXiv 2410.03777)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from ensemble_decode import kernels
from ensemble_decode.methods.base import BaseMethod, StepContext, StepRow
from ensemble_decode.methods.gates import GATES, Gate, MaxProb, gate_fields
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen, sharpen_fields
from ensemble_decode.schema.options import INTEGER, Options

Oov = Literal["first_piece", "exclude"]
Aggregate = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class UniTE(Options, BaseMethod):
    """Every model's best candidates are united, each model is renormalised over the union, and their mean decides.

    Args:
        top_k: How many of each model's candidates enter the union. GaC takes whole vocabularies.
        oov: How a model scores a candidate that it has no token for: by the ``"first_piece"`` of its own tokenization
            of the candidate, or not at all (``"exclude"``).
        aggregate: The weighted ``"arithmetic"`` or ``"geometric"`` mean.
        gate: Limits the ensemble to the steps where it is needed: ``MaxProb``, ``KL`` or ``JS``; elsewhere the
            primary's own choice stands. None: the ensemble acts at every step.
    """

    source: ClassVar[str] = "arXiv 2410.03777"
    top_k: Annotated[int, Field(ge=1, le=1024), INTEGER] = 10
    oov: Oov = "first_piece"
    aggregate: Aggregate = "arithmetic"
    gate: Annotated[Gate | None, GATES] = None

    @property
    def alone_from(self) -> float | None:
        """The threshold of a ``MaxProb`` gate. The other gates need every model's logits."""
        return self.gate.threshold if isinstance(self.gate, MaxProb) else None

    def fuse(
        self,
        context: StepContext,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        sharpen: Sharpen = NO_SHARPEN,
        *,
        draw: bool = True,
    ) -> kernels.FuseStep:
        """One union step; ``cids`` of the result are the whole union."""
        settings = context.settings(
            rows,
            draw=draw,
            top_k=self.top_k,
            oov=self.oov,
            aggregate=self.aggregate,
            **gate_fields(self.gate),
            **sharpen_fields(sharpen),
        )
        return kernels.fuse_step(logits, context.tensors, settings, self.top_k)
