"""What a method is to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row
    from ensemble_decode.kernels import FuseStep
    from ensemble_decode.methods.sharpen import Sharpen


class Method(Protocol):
    """Advances rows by rounds. Implementations are frozen dataclasses: settings only, no state."""

    @property
    def primary(self) -> int:
        """The model whose ids are reported."""

    @property
    def retokenize_primary(self) -> bool:
        """True where the primary's ids, too, are the tokenization of the bytes."""

    def models(self, count: int) -> Sequence[int]:
        """The models that take part, out of ``count``; InputError where the method cannot run with so many."""

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        """Advance every row by one round in shared forwards."""


class BaseMethod(Method, Protocol):
    """A method that chooses one token from logits that are already there: what SAFE falls back on."""

    def fuse(self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen) -> FuseStep:
        """One union step over ``logits`` (one [B, V_m] per model)."""

    def distribution(
        self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen
    ) -> Distribution:
        """What ``fuse`` chooses from, whole."""


class Distribution(NamedTuple):
    """``cids`` i64 [B, U] (−1 padded) with their probabilities f32 [B, U]; ``ensembled`` bool [B]: the gate was open."""

    cids: torch.Tensor
    probs: torch.Tensor
    ensembled: torch.Tensor


def check_choice(method: str, name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f"{method}: {name} must be one of {', '.join(choices)}, got {value!r}")
