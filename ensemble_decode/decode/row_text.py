"""The bytes of one row: stop strings cut them, and a stream shows them as whole characters."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode.vocab.text import Detokenizer, StopMatcher


class RowText:
    """The bytes that one row has written.

    Args:
        stops: Stop strings. The text is cut before the one that is complete first.

    Attributes:
        data: The bytes.
        shown: How many of them a stream has seen.
    """

    def __init__(self, stops: Sequence[str | bytes]) -> None:
        self.data = bytearray()
        self.shown = 0
        self._stops = StopMatcher(stops)
        self._detokenizer = Detokenizer()

    @property
    def stop(self) -> str | bytes | None:
        """The stop string that cut the text, as it was given."""
        return self._stops.matched

    def append(self, piece: bytes) -> bool:
        """Add bytes; where they complete a stop string, cut the text before it and return True."""
        self.data += piece
        match = self._stops.push(piece)
        if match is None:
            return False
        del self.data[match:]
        return True

    def restore(self, data: bytes) -> None:
        """Go back to a text that the row had before."""
        self.data[:] = data
        self._stops.rollback(len(data))

    def final(self, finished: bool) -> int:
        """How many bytes no stop string can take back any more."""
        return len(self.data) if finished else len(self.data) - self._stops.held

    def show(self, finished: bool) -> tuple[str, int]:
        """The characters that became final since the last call, and how many bytes did."""
        final = self.final(finished)
        fresh = bytes(self.data[self.shown : final])
        self.shown = max(final, self.shown)
        text = self._detokenizer.push(fresh)
        return (text + self._detokenizer.finish() if finished else text), len(fresh)
