"""What the scheduler tells the engine to do in one round."""

from __future__ import annotations

from dataclasses import dataclass, field

from ensemble_decode.decode.sequence import Row


@dataclass
class Plan:
    """What one round does.

    Attributes:
        ready: Rows that take part; every id of theirs that a model has not read fits into this round.
        readers: Rows of which only a chunk of the prompt is read.
        chunks: Those chunks: the model, the row, the ids.
    """

    ready: list[Row] = field(default_factory=list)
    readers: list[Row] = field(default_factory=list)
    chunks: list[tuple[int, Row, list[int]]] = field(default_factory=list)
