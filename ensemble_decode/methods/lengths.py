"""Draft lengths that follow a row: long where its drafts stand, short where they fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..rows import Row

LONGEST = 16
FIRST = 5
CONFIDENCE = 0.35


@dataclass
class AutoLength:
    """The rule of ``draft_length="auto"``.

    A draft that stood whole lengthens the next one by 2, up to 16; after a rejection the next draft is one longer than what
    had stood. A draft stops early after a token that the primary itself gives less than 0.35: what follows it is
    likely to be thrown away. The figures were chosen by measurement (docs/methods.md).
    """

    length: int = FIRST

    @classmethod
    def of(cls, row: Row) -> AutoLength:
        if not isinstance(row.state, cls):
            row.state = cls()
        return row.state

    def goes_on(self, prob: float) -> bool:
        return prob >= CONFIDENCE

    def record(self, kept: int, *, rejected: bool) -> None:
        if rejected:
            self.length = max(1, min(kept + 1, LONGEST))
        elif kept >= self.length:
            self.length = min(self.length + 2, LONGEST)
