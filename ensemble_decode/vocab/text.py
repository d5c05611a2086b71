"""The byte stream of one row: stop strings, whole characters out, ids kept up to date."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Sequence
from functools import lru_cache

from ensemble_decode.errors import InputError
from ensemble_decode.vocab.incremental import IncrementalTokens

__all__ = ["Detokenizer", "IncrementalTokens", "StopMatcher"]


class Detokenizer:
    """Bytes in, whole characters out.

    The joined outputs equal ``data.decode("utf-8", "replace")`` of all bytes together: U+FFFD appears only where the
    finished bytes are not UTF-8.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The characters that are complete now; an unfinished one waits for its remaining bytes."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left at the end of the text: U+FFFD where a character was never finished, else nothing."""
        return self._decoder.decode(b"", final=True)


class _Automaton:
    """Aho and Corasick's automaton over bytes (CACM 18(6), 1975)."""

    def __init__(self, stops: tuple[bytes, ...]):
        self.goto: list[dict[int, int]] = [{}]
        self.depth = [0]
        self.found = [b""]  # the longest stop that ends in this state
        for stop in stops:
            state = 0
            for byte in stop:
                if byte not in self.goto[state]:
                    self.goto[state][byte] = len(self.goto)
                    self.goto.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.found.append(b"")
                state = self.goto[state][byte]
            self.found[state] = stop
        self.fail = [0] * len(self.goto)
        queue = list(self.goto[0].values())
        for state in queue:  # grows while it is walked: breadth first
            for byte, child in self.goto[state].items():
                self.fail[child] = self.next(self.fail[state], byte)
                self.found[child] = max(self.found[child], self.found[self.fail[child]], key=len)
                queue.append(child)

    def next(self, state: int, byte: int) -> int:
        while byte not in self.goto[state]:
            if state == 0:
                return 0
            state = self.fail[state]
        return self.goto[state][byte]


@lru_cache(maxsize=64)
def _automaton(stops: tuple[bytes, ...]) -> _Automaton:
    return _Automaton(stops)


class StopMatcher:
    """Finds stop strings in a byte stream, wherever token edges fall.

    The match that is complete first in the stream counts; of several that are complete at the same byte, the one that
    starts earliest. So the answer does not depend on how the stream is cut into pushes. O(1) amortised per byte.

    ``stops``: strings (their UTF-8) or bytes; one string alone is one stop. Raises `InputError` on an empty stop.
    """

    def __init__(self, stops: Sequence[str | bytes] = ()):
        if isinstance(stops, (str, bytes)):
            stops = [stops]
        self._given = {_stop_bytes(stop): stop for stop in reversed(stops)}
        self._automaton = _automaton(tuple(self._given))
        self._states = array("l", [0])  # the state after every byte so far, so that any rollback is O(1)
        self._match: tuple[int, int] | None = None
        self._stop: bytes = b""

    def push(self, data: bytes) -> int | None:
        """Append bytes; the absolute offset at which the match starts, or None while there is none.

        Once there is a match, further pushes return it again, until a rollback undoes it.
        """
        automaton, states = self._automaton, self._states
        state = states[-1]
        for byte in data:
            state = automaton.next(state, byte)
            states.append(state)
            if automaton.found[state] and self._match is None:
                end, self._stop = len(states) - 1, automaton.found[state]
                self._match = (end - len(self._stop), end)
        return None if self._match is None else self._match[0]

    @property
    def matched(self) -> str | bytes | None:
        """The stop of the match, as it was given; None while there is no match."""
        return None if self._match is None else self._given[self._stop]

    @property
    def length(self) -> int:
        """Bytes pushed so far, less those rolled back."""
        return len(self._states) - 1

    @property
    def held(self) -> int:
        """Bytes at the tail that must not be shown yet: those of the match, else those that could still begin one."""
        if self._match is not None:
            return self.length - self._match[0]
        return self._automaton.depth[self._states[-1]]

    def rollback(self, length: int) -> None:
        """Forget everything after the first ``length`` bytes; raises `InputError` where there are not as many."""
        if not 0 <= length <= self.length:
            raise InputError(f"cannot roll back to {length} bytes: there are {self.length}")
        del self._states[length + 1 :]
        if self._match is not None and length < self._match[1]:
            self._match = None


def _stop_bytes(stop: str | bytes) -> bytes:
    if not isinstance(stop, (str, bytes)):
        raise InputError(f"a stop is a string or bytes, not {type(stop).__name__}")
    try:
        data = stop.encode() if isinstance(stop, str) else bytes(stop)
    except UnicodeEncodeError as error:
        raise InputError(f"the stop {stop!r} is not text (a lone surrogate); expected a string or bytes") from error
    if not data:
        raise InputError("an empty stop would match everywhere; expected a string of at least one character")
    return data
