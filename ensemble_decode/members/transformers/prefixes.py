"""What the slots of a cache begin with, so that a row whose text begins likewise need not be read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ensemble_decode.vocab.common_prefix import common_prefix

SHORTEST = 32  # tokens of a common beginning from which on a copy is made; what it saves: docs/batch.md


class Prefixes:
    """The token ids at the front of a cache's slots, of free ones too: their content stands until another row comes.

    Ids are noted as they are written, so that what is known of a slot is what it holds. Of slots whose row was acquired
    without its ids, nothing is known.
    """

    def __init__(self) -> None:
        self._ids: dict[int, list[int]] = {}

    def begin(self, slot: int, ids: Sequence[int]) -> None:
        """A row that others may take from has the slot; it begins with ``ids``."""
        self._ids[slot] = list(ids)

    def drop(self, slot: int) -> None:
        """A row that shares nothing has the slot, or its content is gone."""
        self._ids.pop(slot, None)

    def note(self, slot: int, at: int, ids: Sequence[int]) -> None:
        """``ids`` were written behind the slot's first ``at`` tokens; what was known from there on is gone."""
        known = self._ids.get(slot)
        if known is not None:
            del known[at:]
            if len(known) == at:
                known.extend(ids)

    def cut(self, slot: int, length: int) -> None:
        """Nothing behind the first ``length`` tokens can be relied on."""
        if slot in self._ids:
            del self._ids[slot][length:]

    def move(self, homes: Mapping[int, int]) -> None:
        """The slots that still have their content, and where it is now."""
        self._ids = {homes[slot]: ids for slot, ids in self._ids.items() if slot in homes}

    def forget(self, held: Iterable[int]) -> None:
        """Nothing is known any more. What ``held`` slots write into an empty row is noted again."""
        self._ids = {slot: [] for slot in held if slot in self._ids}

    def begun(self, slot: int) -> bool:
        """Whether the slot's row was acquired with its ids."""
        return slot in self._ids

    def known(self, slot: int) -> list[int]:
        """The ids at the front of the slot."""
        return self._ids.get(slot, [])

    def longest(self, ids: Sequence[int], length: Callable[[int], int]) -> tuple[int, int]:
        """Find the slot that begins with the most of ``ids``.

        Args:
            ids: What a row is to hold. The last one is never counted, since the logits behind it are wanted.
            length: Tokens that a slot holds.

        Returns:
            The slot and how many tokens; (−1, 0) where none has ``SHORTEST`` of them.
        """
        ids = list(ids)
        best, slot = SHORTEST - 1, -1
        for other, known in self._ids.items():
            reach = min(len(known), len(ids) - 1, length(other))
            if reach > best and known[: best + 1] == ids[: best + 1]:
                best, slot = min(common_prefix(known, ids), reach), other
        return (slot, best) if slot >= 0 else (-1, 0)
