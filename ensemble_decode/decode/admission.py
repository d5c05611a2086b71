"""Which rows the caches can hold: limits per model, and the shapes that make the most of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import CacheLimitError

if TYPE_CHECKING:
    from ensemble_decode.members.transformers.runner import Runner

_AHEAD = 64  # tokens that a row is expected to write at least, when it is let in
_REACH = 32  # tokens that a round may put behind a row's end: a draft, a tree of segments


class Room:
    """The caches of all models, seen as room for rows.

    ``limits``: bytes per model that its cache may take at any moment, the copying of a growing cache included; None: no limit
    beside the runner's own. A cache is one block ``[slots, positions]``, so its longest row sets the positions of all:
    where slots are wanted and a long row has gone, the block is cut to what the rows need.
    """

    def __init__(self, runners: Sequence[Runner], limits: Sequence[int | None] | None = None) -> None:
        self.runners = list(runners)
        self._before = [runner.cache.memory_limit for runner in self.runners]
        for runner, limit in zip(self.runners, limits or [], strict=False):
            if limit is not None:
                if runner.cache.bytes_allocated > limit and not runner.cache.held:
                    runner.cache.reset()
                runner.cache.memory_limit = min(runner.cache.limit_for_peak(limit), runner.cache.memory_limit or limit)

    @property
    def limited(self) -> bool:
        return any(
            runner.cache.memory_limit is not None or runner.cache.max_slots is not None for runner in self.runners
        )

    def restore_limits(self) -> None:
        """Give the caches back the limits that they had."""
        for runner, limit in zip(self.runners, self._before, strict=True):
            runner.cache.memory_limit = limit

    def fits(self, rows: Sequence[Row], *, ahead: bool = False) -> bool:
        """Whether the limits hold these rows through their next round; with ``ahead``, for a while longer."""
        if not self.limited:
            return True
        return all(self.runners[m].cache.could_hold(*self._shape(m, rows, ahead)) for m in range(len(self.runners)))

    def make(self, rows: Sequence[Row], most: int) -> None:
        """Shape the caches so that they hold these rows through their next round, and up to ``most`` rows where that fits too.

        Without limits nothing is done: caches grow as they are used. Raises ``CacheLimitError`` where the rows do not fit.
        """
        if not self.limited:
            return
        for m, runner in enumerate(self.runners):
            cache = runner.cache
            slots, length = self._shape(m, rows, ahead=False)
            if slots <= cache.slots and length <= cache.capacity:
                continue
            ahead = self._shape(m, rows, ahead=True)[1]
            if cache.could_hold(max(slots, cache.slots), max(length, cache.capacity)):
                roomy = cache.could_hold(max(slots, cache.slots), max(ahead, cache.capacity))
                cache.grow(slots, ahead if roomy else length)
                continue
            length = ahead if cache.could_hold(slots, ahead) else length
            while slots < most and cache.could_hold(slots + 1, length):
                slots += 1
            moved = cache.reshape(slots, length)
            for row in rows:
                slot = row.slots[m]
                if slot is not None:
                    row.slots[m] = moved.get(slot, slot)

    def free(self) -> None:
        """Let go of the memory of every cache that holds no row."""
        for runner in self.runners:
            if not runner.cache.held:
                runner.cache.reset()
            if runner.device.type == "cuda":
                torch.cuda.empty_cache()

    def why_not(self, row: Row) -> str:
        """The figures of a row that does not fit alone."""
        for m, runner in enumerate(self.runners):
            slots, length = self._shape(m, [row], ahead=False)
            if not runner.cache.could_hold(slots, length):
                try:
                    runner.cache.reserve(slots, length)
                except CacheLimitError as error:
                    return f"the row alone is too long for the cache: {error}"
        return "the row alone is too long for the caches"

    def _shape(self, m: int, rows: Sequence[Row], ahead: bool) -> tuple[int, int]:
        """Slots and positions that model m needs for these rows, and for the slots that others hold."""
        cache = self.runners[m].cache
        own = sum(row.slots[m] is not None for row in rows)
        mine = [row for row in rows if m in row.models]
        length = max((row.total(m) + _REACH + (min(row.room, _AHEAD) if ahead else 0) for row in mine), default=0)
        if cache.max_length is not None:
            length = min(length, cache.max_length)
        others = cache.held - own
        return len(mine) + others, max(length, cache.longest if others else 0)
