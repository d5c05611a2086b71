"""Settings of a call that every method shares: how a token is chosen, and where a text ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from ensemble_decode.schema.options import INTEGER, NUMBER, Options

LARGEST_SEED = 2**63 - 1
LARGEST_TOP_K = 2**31 - 1  # more than any vocabulary; the operators count in 64 bits


@dataclass(frozen=True)
class Sampling(Options):
    """How a token is chosen from a distribution.

    The filters act in the order of transformers: temperature, ``top_k``, ``top_p``, ``min_p``. A result depends on
    (seed, row, step) alone, never on the batch.

    Args:
        temperature: Logits are divided by this; 0 is greedy.
        top_p: The most probable candidates whose mass reaches this are kept; 1 keeps all.
        top_k: So many of the most probable candidates are kept; 0 keeps all.
        min_p: Candidates of at least this share of the top probability are kept; 0 keeps all.
        seed: The seed of the draws; none draws one from the operating system for each call.
    """

    temperature: Annotated[float, Field(ge=0), NUMBER] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1), NUMBER] = 1.0
    top_k: Annotated[int, Field(ge=0, le=LARGEST_TOP_K), INTEGER] = 0
    min_p: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.0
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED), INTEGER] | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable candidate is taken."""
        return self.temperature == 0


def _stops(value: Any) -> tuple[str | bytes, ...]:
    stops = [value] if isinstance(value, (str, bytes)) else [] if value is None else value
    if not isinstance(stops, (list, tuple)):
        raise ValueError("not a list")
    for stop in stops:
        if not isinstance(stop, (str, bytes)) or not stop:
            raise ValueError("not text")
        if isinstance(stop, str):
            stop.encode()  # UnicodeEncodeError is a ValueError: half a surrogate pair
    return tuple(stops)


@dataclass(frozen=True)
class Limits(Options):
    """Where a text ends, unless a model ends it.

    Args:
        max_new_tokens: Tokens of the primary at most, END included.
        stop: The text ends before the first of these strings: one, or a list.
    """

    max_new_tokens: Annotated[int, Field(ge=1), INTEGER] = 128
    stop: Annotated[
        tuple[str | bytes, ...],
        BeforeValidator(_stops),
        WithJsonSchema(
            {
                "title": "a string or a list of strings, none of them empty or half a surrogate pair",
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": {"type": "string", "minLength": 1}},
                ],
            }
        ),
    ] = ()
