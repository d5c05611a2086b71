"""``T_m``: how one model spells any bytes in its own ids, exactly (``docs/bytes.md`` states the rule)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from ensemble_decode.encoders import TextEncoder
from ensemble_decode.errors import InputError

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
        self._lengths = sorted({len(piece) for piece in exact}, reverse=True)
        self._survives: dict[str, bool] = {}

    def encode(self, data: bytes) -> list[int]:
        """``T_m(data)``."""
        return self.spell(data)[0]

    def spell(self, data: bytes) -> tuple[list[int], bool]:
        """``T_m(data)``, and whether every stretch was spelled by local rules alone (no whole-stretch fallback)."""
        text = data.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        local = True
        start = 0
        for invalid in _INVALID.finditer(text):
            local &= self._spell_text(text[start : invalid.start()], ids)
            for char in invalid[0]:
                ids += self.longest_match(bytes([ord(char) - 0xDC00]))
            start = invalid.end()
        local &= self._spell_text(text[start:], ids)
        return ids, local

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

    def _spell_text(self, text: str, ids: list[int]) -> bool:
        """Append the ids of a valid text; False where only longest-match over a whole stretch could spell it."""
        if not text:
            return True
        found = self.encoder.encode(text)
        if self._joined(found) == text.encode():
            ids.extend(found)
            return True
        local = True
        stretch: list[str] = []
        for cluster in [*clusters(text), ""]:
            if cluster and self._comes_back(cluster):
                stretch.append(cluster)
                continue
            if stretch:
                local &= self._spell_stretch("".join(stretch), ids)
                stretch = []
            ids.extend(self.longest_match(cluster.encode()))
        return local

    def _spell_stretch(self, text: str, ids: list[int]) -> bool:
        found = self.encoder.encode(text)
        comes_back = self._joined(found) == text.encode()
        ids.extend(found if comes_back else self.longest_match(text.encode()))
        return comes_back

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
                    f"{self.name} cannot spell byte 0x{data[at]:02X}: its tokenizer has no token for it; right is text "
                    "without it"
                )
        return ids
