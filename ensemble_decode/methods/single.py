"""Plain decoding of one model by the same loop: the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row


@dataclass(frozen=True)
class Single:
    """Model number ``model`` writes alone; its ids are reported."""

    model: int = 0

    @property
    def primary(self) -> int:
        return self.model

    @property
    def retokenize_primary(self) -> bool:
        return False

    def models(self, count: int) -> Sequence[int]:
        if not 0 <= self.model < count:
            raise InputError(f"Single: model must lie between 0 and {count - 1}, got {self.model!r}")
        return [self.model]

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        logits = engine.next_logits(self.model, rows)
        engine.commit_alone(self.model, rows, logits, engine.top_alone(self.model, logits, rows))
