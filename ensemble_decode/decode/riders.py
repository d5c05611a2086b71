"""Chunks of new prompts that ride along in the forwards of running rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_decode.decode.sequence import Row


class Riders:
    """Per model the chunks that wait for its next forward: each a row and the ids it is to read next."""

    def __init__(self, models: int) -> None:
        self._waiting: list[list[tuple[Row, list[int]]]] = [[] for _ in range(models)]

    def add(self, m: int, row: Row, ids: list[int]) -> None:
        self._waiting[m].append((row, ids))

    def take(self, m: int) -> list[tuple[Row, list[int]]]:
        """Model m's chunks, which are then no longer waiting."""
        if not self._waiting[m]:
            return []
        taken, self._waiting[m] = self._waiting[m], []
        return taken

    def models(self) -> list[int]:
        """The models with chunks that still wait."""
        return [m for m, waiting in enumerate(self._waiting) if waiting]

    def clear(self) -> None:
        for waiting in self._waiting:
            waiting.clear()
