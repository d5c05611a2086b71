"""UniTE: every step, the average of the models over the union of their top-k tokens (arXiv 2410.03777)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ensemble_decode import kernels
from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import BaseMethod, StepContext, StepRow, check_choice
from ensemble_decode.methods.gates import GATE_NAMES, Gate, MaxProb, gate_fields
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen, sharpen_fields

Oov = Literal["first_piece", "exclude"]
Aggregate = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class UniTE(BaseMethod):
    """Every model's best candidates are united, each model is renormalised over the union, and their mean decides.

    Args:
        top_k: How many of each model's candidates enter the union, 1 to 1024.
        oov: How a model scores a candidate that it has no token for: by the ``"first_piece"`` of its own tokenization
            of the candidate, or not at all (``"exclude"``).
        aggregate: The weighted ``"arithmetic"`` or ``"geometric"`` mean.
        gate: Limits the ensemble to the steps where it is needed: ``MaxProb``, ``KL`` or ``JS``; elsewhere the
            primary's own choice stands. None: the ensemble acts at every step.
    """

    top_k: int = 10
    oov: Oov = "first_piece"
    aggregate: Aggregate = "arithmetic"
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise InputError(f"UniTE: top_k must be a positive integer, got {self.top_k!r}")
        if self.top_k > 1024:
            raise InputError(
                f"UniTE: top_k may be at most 1024, got {self.top_k}; GaC(threshold=1) takes whole vocabularies"
            )
        check_choice("UniTE", "oov", self.oov, get_args(Oov))
        check_choice("UniTE", "aggregate", self.aggregate, get_args(Aggregate))
        if self.gate is not None and type(self.gate) not in GATE_NAMES:
            raise InputError(f"UniTE: gate must be None, MaxProb, KL or JS, got {self.gate!r}")

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
