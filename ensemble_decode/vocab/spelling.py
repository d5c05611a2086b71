"""``T_m``: how one model spells any bytes in its own ids, exactly (``docs/bytes.md`` states the rule)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property

from ensemble_decode.errors import InputError
from ensemble_decode.vocab.encoders import TextEncoder

_INVALID = re.compile("[\udc80-\udcff]+")


def clusters(text: str) -> list[str]:
    """Each character together with what may combine with it: the marks and conjoining jamo that follow."""
    out: list[str] = []
    for char in text:
        if out and (unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"):
            out[-1] += char
        else:
            out.append(char)
    return out


class Speller:
    """Spells bytes in the ids of one model; ``b"".join(pieces[i] for i in encode(data)) == data`` always.

    ``pieces``: bytes by id, ``b""`` where an id must not be used. ``exact``: the one id for each spelled byte string.
    ``name``: what errors call the model.
    """

    def __init__(self, encoder: TextEncoder, pieces: list[bytes], exact: dict[bytes, int], name: str):
        self.encoder, self.pieces, self.exact, self.name = encoder, pieces, exact, name
        self._survives: dict[str, bool] = {}

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(piece) for piece in self.exact}, reverse=True)

    def encode(self, data: bytes) -> list[int]:
        """``T_m(data)``."""
        return self.spell(data)[0]

    def spell(self, data: bytes) -> tuple[list[int], list[bool], bool]:
        """``T_m(data)``, where a pre-token starts, and whether local rules sufficed (no stretch was matched whole)."""
        text = data.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        starts: list[bool] = []
        local = True
        start = 0
        for invalid in _INVALID.finditer(text):
            local &= self._spell_text(text[start : invalid.start()], ids, starts)
            for char in invalid[0]:
                self._append(self.longest_match(bytes([ord(char) - 0xDC00])), ids, starts)
            start = invalid.end()
        local &= self._spell_text(text[start:], ids, starts)
        return ids, starts, local

    def encode_many(self, items: Sequence[bytes]) -> list[list[int]]:
        """``T_m`` of many short byte strings, by the tokenizer's own batch call where they are text."""
        out: list[list[int]] = [[]] * len(items)
        where, texts = [], []
        for index, item in enumerate(items):
            try:
                texts.append(item.decode())
                where.append(index)
            except UnicodeDecodeError:
                out[index] = self.encode(item)
        for index, ids in zip(where, self.encoder.encode_batch(texts), strict=True):
            out[index] = ids if self._joined(ids) == items[index] else self.encode(items[index])
        return out

    def _joined(self, ids: Iterable[int]) -> bytes:
        pieces = self.pieces
        try:
            return b"".join([pieces[index] for index in ids])
        except IndexError:
            return b""

    @staticmethod
    def _append(found: list[int], ids: list[int], starts: list[bool]) -> None:
        """Append ids that stand apart from what comes before them."""
        ids.extend(found)
        starts.extend(position == 0 for position in range(len(found)))

    def _spell_text(self, text: str, ids: list[int], starts: list[bool]) -> bool:
        """Append the ids of a valid text; False where only longest-match over a whole stretch could spell it."""
        if not text or self._append_words(text, ids, starts):
            return True
        local = True
        stretch: list[str] = []
        for cluster in [*clusters(text), ""]:
            if cluster and self._comes_back(cluster):
                stretch.append(cluster)
                continue
            if stretch:
                joined = "".join(stretch)
                stretch = []
                if not self._append_words(joined, ids, starts):
                    self._append(self.longest_match(joined.encode()), ids, starts)
                    local = False
            self._append(self.longest_match(cluster.encode()), ids, starts)
        return local

    def _append_words(self, text: str, ids: list[int], starts: list[bool]) -> bool:
        """Append the tokenizer's own ids of a text; False, and nothing appended, where they do not spell it."""
        found, words = self.encoder.words(text)
        if self._joined(found) != text.encode():
            return False
        ids.extend(found)
        last: int | None = None
        for word in words:
            starts.append(word is None or word != last)
            last = word
        return True

    def _comes_back(self, cluster: str) -> bool:
        known = self._survives.get(cluster)
        if known is None:
            if len(self._survives) > 65536:
                self._survives.clear()
            known = self._joined(self.encoder.encode(cluster)) == cluster.encode()
            self._survives[cluster] = known
        return known

    def longest_match(self, data: bytes) -> list[int]:
        """At each place the longest piece that fits."""
        ids: list[int] = []
        at, end = 0, len(data)
        while at < end:
            for length in self._lengths:
                if length <= end - at:
                    index = self.exact.get(data[at : at + length])
                    if index is not None:
                        ids.append(index)
                        at += length
                        break
            else:
                raise InputError(
                    f"{self.name} cannot spell byte 0x{data[at]:02X}: its tokenizer has no token for it; expected "
                    "text without it"
                )
        return ids
