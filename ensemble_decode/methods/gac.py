"""GaC: the weighted mean over the union of whole vocabularies, only where the primary is unsure (arXiv 2406.12585)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from ensemble_decode import kernels
from ensemble_decode.methods.base import BaseMethod, Distribution, StepContext, StepRow
from ensemble_decode.methods.gates import MaxProb, gate_fields
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen, sharpen_fields
from ensemble_decode.schema.options import NUMBER, Options

_PRIMARY_TOP = 10  # ids of the primary that prefix sharpening may raise, as in UniTE's default top_k


@dataclass(frozen=True)
class GaC(Options, BaseMethod):
    """The argmax, or a sample, of ``E(c) = sum_m w_m P_m(c)`` over every candidate of every vocabulary.

    A candidate that a model lacks counts 0 there.

    Args:
        threshold: Where the primary's top probability is at least this, its own choice stands; 1: the ensemble acts at
            every step.
    """

    source: ClassVar[str] = "arXiv 2406.12585"
    threshold: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.5

    @property
    def alone_from(self) -> float | None:
        """``threshold``; None where it is 1."""
        return self.threshold if self.threshold < 1 else None

    def fuse(
        self,
        context: StepContext,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        sharpen: Sharpen = NO_SHARPEN,
        *,
        draw: bool = True,
    ) -> kernels.FuseStep:
        """One step over whole vocabularies; ``cids`` of the result are the 10 most probable candidates."""
        settings = self._settings(context, rows, sharpen, draw)
        return kernels.fuse_full(logits, context.tensors, settings, _PRIMARY_TOP)

    def distribution(
        self, context: StepContext, rows: Sequence[StepRow], logits: Sequence[torch.Tensor], sharpen: Sharpen
    ) -> Distribution:
        """E over all candidates: U is the size of the aligned vocabulary."""
        settings = self._settings(context, rows, sharpen, draw=False)
        probs, ensembled = kernels.full_distribution(logits, context.tensors, settings, _PRIMARY_TOP)
        return Distribution(torch.arange(probs.shape[1], device=probs.device).expand_as(probs), probs, ensembled)

    def _settings(
        self, context: StepContext, rows: Sequence[StepRow], sharpen: Sharpen, draw: bool
    ) -> kernels.FuseSettings:
        gate = MaxProb(self.threshold) if self.threshold < 1 else None
        return context.settings(rows, draw=draw, top_k=_PRIMARY_TOP, **gate_fields(gate), **sharpen_fields(sharpen))
