"""Plain decoding of one model by the same loop: the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import Method, StepContext, StepRow
from ensemble_decode.schema.options import INTEGER, Options


@dataclass(frozen=True)
class Single(Options, Method):
    """One model writes alone; its ids are reported.

    Args:
        model: The number of the model that writes, from 0.
    """

    model: Annotated[int, Field(ge=0), INTEGER] = 0

    @property
    def primary(self) -> int:
        """The model that writes."""
        return self.model

    @property
    def needs(self) -> Sequence[str]:
        """Logits alone: nothing is ever taken back."""
        return ("full_logits",)

    def models(self, count: int) -> Sequence[int]:
        """That model alone; InputError where there is none of its number."""
        if not 0 <= self.model < count:
            raise InputError(f"Single: model must lie between 0 and {count - 1}, got {self.model!r}")
        return [self.model]

    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """One token of every row."""
        logits = context.next_logits(self.model, rows)
        context.commit_alone(self.model, rows, logits, context.top_alone(self.model, logits, rows))
