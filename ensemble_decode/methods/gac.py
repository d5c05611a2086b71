"""GaC: the weighted mean over the union of whole vocabularies, only where the primary is unsure (arXiv 2406.12585)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ensemble_decode import kernels
from ensemble_decode.errors import InputError
from ensemble_decode.kernels.reference.fuse_full import full_distribution
from ensemble_decode.methods.base import Distribution
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen
from ensemble_decode.methods.unite import gated_round, sharpen_fields

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row

_PRIMARY_TOP = 10  # ids of the primary that prefix sharpening may raise, as in UniTE's default top_k


@dataclass(frozen=True)
class GaC:
    """Where the primary's top probability is at least ``threshold`` its token stands; elsewhere the argmax (or a sample) of

    ``E(c) = sum_m w_m P_m(c)`` over every candidate of every vocabulary, a candidate that a model lacks counting 0 there.
    ``threshold`` 1 ensembles everywhere.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"GaC: threshold must lie between 0 and 1, got {self.threshold!r}")

    @property
    def primary(self) -> int:
        return 0

    @property
    def retokenize_primary(self) -> bool:
        return False

    def models(self, count: int) -> Sequence[int]:
        return range(count)

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        gated_round(self, engine, rows, self.threshold if self.threshold < 1 else None)

    def fuse(
        self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen = NO_SHARPEN
    ) -> kernels.FuseStep:
        return kernels.fuse_full(logits, engine.tensors, self._settings(engine, rows, sharpen), _PRIMARY_TOP)

    def distribution(
        self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen
    ) -> Distribution:
        settings = self._settings(engine, rows, sharpen)
        probs, ensembled = full_distribution(logits, engine.tensors, settings, _PRIMARY_TOP)
        return Distribution(torch.arange(probs.shape[1], device=probs.device).expand_as(probs), probs, ensembled)

    def _settings(self, engine: Engine, rows: Sequence[Row], sharpen: Sharpen) -> kernels.FuseSettings:
        gate = {"gate": "max_prob", "gate_threshold": self.threshold} if self.threshold < 1 else {}
        return engine.settings(rows, top_k=_PRIMARY_TOP, **gate, **sharpen_fields(sharpen))
