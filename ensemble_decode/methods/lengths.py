"""Draft lengths that follow a row: long where its drafts stand, short where they fall."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 16
FIRST = 5
CONFIDENCE = 0.35


@dataclass(frozen=True)
class AutoLength:
    """The rule of ``draft_length="auto"``.

    A draft that stood whole lengthens the next one by 2, up to 16; after a rejection the next draft is one longer than what
    had stood. A draft stops early after a token that the primary itself gives less than 0.35: what follows it is
    likely to be thrown away. The figures are a first choice, not yet tuned.
    """

    length: int = FIRST

    @staticmethod
    def goes_on(prob: float) -> bool:
        return prob >= CONFIDENCE

    def after(self, kept: int, *, rejected: bool) -> AutoLength:
        """The rule's next state: ``kept`` tokens of the last draft stood, and one was rejected or not."""
        if rejected:
            return AutoLength(max(1, min(kept + 1, LONGEST)))
        return AutoLength(min(self.length + 2, LONGEST)) if kept >= self.length else self
