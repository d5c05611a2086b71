"""Which rows the caches can hold: limits per model, and the shapes that make the most of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ensemble_decode.decode.sequence import Row
from ensemble_decode.decode.turns import Turns
from ensemble_decode.members.protocol import Member

_PATIENCE = 10.0  # seconds without a round of any run after which a row waits no longer for others' memory
_AHEAD = 64  # tokens that a row is expected to write at least, when it is let in
_REACH = 32  # tokens that a round may put behind a row's end: a draft, a tree of segments


class Room:
    """The caches of all members, seen as room for rows.

    Args:
        members: The models.
        limits: Bytes per member that its cache may take at any moment, the copying of a growing cache included; None:
            no limit beside the member's own.
        turns: Of all runs on these members, whose rooms this one joins. Of several limits, the lowest counts.
    """

    def __init__(
        self,
        members: Sequence[Member],
        limits: Sequence[int | None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.members = list(members)
        self._turns = Turns() if turns is None else turns
        self._others = self._turns.rooms
        self._seen, self._since = -1, 0.0
        self._limits = list(limits or [None] * len(self.members))
        self._before = [member.memory for member in self.members]
        for other in self._others:
            if any(other._limits):  # what the caches have now is that run's limit
                self._before = other._before
        self._rows: Sequence[Row] = ()  # all that may hold slots
        self._others.add(self)
        self._limit()

    def _limit(self) -> None:
        for m, member in enumerate(self.members):
            for room in self._others:
                limit = room._limits[m]
                if limit is not None:
                    member.limit_peak(limit)

    @property
    def limited(self) -> bool:
        """Whether anything bounds the rows."""
        return any(member.limited for member in self.members)

    def restore_limits(self) -> None:
        """Give the caches back the limits that they had, but for those of other runs."""
        if any(self._limits):
            for member, limit in zip(self.members, self._before, strict=True):
                member.limit_memory(limit)
        self._others.discard(self)
        self._limit()

    def fits(self, rows: Sequence[Row], *, ahead: bool = False) -> bool:
        """Whether the limits hold these rows through their next round; with ``ahead``, for a while longer."""
        if not self.limited:
            return True
        return all(member.could_hold(*self._shape(m, rows, ahead)) for m, member in enumerate(self.members))

    def crowded(self) -> bool:
        """Whether other runs take what a row of this one lacks, and still move, so that it pays to wait for them."""
        if not any(member.held for member in self.members) and not any(
            any(room._limits) for room in self._others if room is not self
        ):
            return False
        if self._turns.rounds != self._seen:
            self._seen, self._since = self._turns.rounds, time.monotonic()
        return time.monotonic() - self._since < _PATIENCE

    def make(self, rows: Sequence[Row], most: int) -> None:
        """Shape the caches for these rows' next round, and for up to ``most`` rows where that fits too.

        Without limits nothing is done: caches grow as they are used.

        Raises:
            CacheLimitError: The rows do not fit.
        """
        self._rows = rows
        if not self.limited:
            return
        for m, member in enumerate(self.members):
            slots, length = self._shape(m, rows, ahead=False)
            moved = member.make_room(slots, length, ahead=self._shape(m, rows, ahead=True)[1], most=most)
            if moved:
                for row in (row for room in self._others for row in room._rows):
                    slot = row.slots[m]
                    if slot is not None:
                        row.slots[m] = moved.get(slot, slot)

    def free(self) -> None:
        """Let go of the memory of every cache that holds no row."""
        for member in self.members:
            member.free_memory()

    def why_not(self, row: Row) -> str:
        """The figures of a row that does not fit alone."""
        for m, member in enumerate(self.members):
            figures = member.why_not(*self._shape(m, [row], ahead=False))
            if figures is not None:
                return f"the row alone is too long for the cache: {figures}"
        return "the row alone is too long for the caches"

    def _shape(self, m: int, rows: Sequence[Row], ahead: bool) -> tuple[int, int]:
        """Slots and positions that member m needs for these rows, and for the slots that others hold."""
        member = self.members[m]
        own = sum(row.slots[m] is not None for row in rows)
        mine = [row for row in rows if m in row.models]
        length = max((row.total(m) + _REACH + (min(row.room, _AHEAD) if ahead else 0) for row in mine), default=0)
        others = member.held - own
        return len(mine) + others, max(length, member.longest if others else 0)
