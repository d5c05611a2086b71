"""Continuous batching: which rows take part in the next round, and what becomes of them after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.plan import Plan
from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import CacheLimitError, InputError
from ensemble_decode.members.protocol import Member

PREFILL_TOKENS = 2048
"""Prompt tokens that one round reads of each model."""
WORTH_WAITING = 64
"""Tokens that another row is about to read, from which on it pays to wait a round for them."""
_CALM = 256  # rounds without a failed allocation after which one more row is let in
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: of the device, of the host, or of a cache's limit."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, CacheLimitError)):
        return True
    return type(error) is RuntimeError and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


class Scheduler:
    """Decides which rows run, at most ``batch_size`` at a time; a row that ends is replaced at once.

    A new row's prompt is read in chunks, at most ``prefill_tokens`` of each model in a round, in the same forwards as
    the running rows. The row runs as soon as what is left of its prompt fits into one round.

    Where running rows outgrow the caches, the youngest is put back and read again later. Where an allocation fails, the
    round is undone, the caches are freed, and half as many rows go on; the number grows again with time. A row that
    does not fit alone fails, with the figures. No result depends on any of this.

    Args:
        members: The models, whose slots the rows take.
        batch_size: The most rows that run at a time.
        room: What the caches hold; default: no limits beside the members' own.
        prefill_tokens: The most prompt tokens that a round reads of each model.
        share: Whether rows that begin alike are read once. What a slot holds of a new row's beginning is copied; where
            a row that joins in the same round is about to read it, the new row waits for the next round.

    Raises:
        InputError: ``batch_size`` or ``prefill_tokens`` is below 1.
    """

    def __init__(
        self,
        members: Sequence[Member],
        batch_size: int,
        *,
        room: Room | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        share: bool = False,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size!r}")
        if prefill_tokens < 1:
            raise InputError(f"prefill_tokens must be at least 1, got {prefill_tokens!r}")
        self.members = list(members)
        self.batch_size = batch_size
        self.room = room if room is not None else Room(self.members)
        self.prefill_tokens = prefill_tokens
        self.share = share
        self.active: list[Row] = []
        self.limit = batch_size
        self.put_back = 0  # rows that made room for others
        self.failed_allocations = 0
        self.rounds = 0
        self._reading: list[Row] = []
        self._waiting: deque[Row] = deque()
        self._exhausted = False
        self._calm = 0
        self._alone: Row | None = None  # failed an allocation with no other row beside it

    @property
    def done(self) -> bool:
        """Whether no row runs or waits, and the source has no more."""
        return self._exhausted and not self.active and not self._waiting

    # -- before a round ----------------------------------------------------------------------------------------------

    def admit(self, source: Iterator[Row | None]) -> Iterator[Row]:
        """Let in rows of ``source`` that the caches hold; yields those that have ended already.

        None in ``source`` is no row for now. Rows get their slots when their turn to be read comes.
        """
        new: list[Row] = []
        while len(self.active) + len(new) < self.limit:
            row = self._next(source)
            if row is None:
                break
            if row.finished:
                yield row
            elif self.room.fits([*self.active, *new, row], ahead=True):
                new.append(row)
            elif self.active or new:
                self._waiting.appendleft(row)
                break
            elif self.room.fits([row]):
                new.append(row)
                break
            elif self.room.crowded():
                self._waiting.appendleft(row)
                break
            else:
                row.fail(self.room.why_not(row), "memory")
                yield row
        self.active += new
        self._reading += new

    def schedule(self) -> Plan:
        """What the next round does, with room made for it. Rows that the caches cannot hold any longer are put back."""
        while len(self.active) > 1 and not self.room.fits(self.active):
            self._put_back(self.active.pop())
            self.put_back += 1
        self.room.make(self.active, self.limit)
        plan = self._read_prompts()
        plan.ready = [row for row in self.active if row not in self._reading]
        return plan

    def _next(self, source: Iterator[Row | None]) -> Row | None:
        if self._waiting:
            return self._waiting.popleft()
        try:
            return next(source)
        except StopIteration:
            self._exhausted = True
            return None

    def _read_prompts(self) -> Plan:
        """Let rows join whose pending tokens fit into this round, in order; the next one reads a chunk."""
        left = [self.prefill_tokens] * len(self.members)
        joined: list[Row] = []
        plan = Plan()
        for row in list(self._reading):
            if self._waits(row, joined):
                continue
            self._take_slots(row)
            pending = {m: row.pending(m) for m in row.models}
            if all(len(ids) <= left[m] for m, ids in pending.items()):
                self._reading.remove(row)
                joined.append(row)
                for m, ids in pending.items():
                    left[m] -= len(ids)
                continue
            plan.readers = [row]
            for m, ids in pending.items():
                # The last id is left to the row's first round, which reads its logits.
                chunk = ids[: min(len(ids) - 1, left[m])]
                if chunk:
                    plan.chunks.append((m, row, chunk))
            break
        return plan

    def _waits(self, row: Row, joined: Sequence[Row]) -> bool:
        """Whether a row that joins in this round is about to read a beginning that this one can take over in the next.

        The primary's ids decide: it reads every row that joins, while other models may wait behind a gate.
        """
        m = row.primary
        if not self.share or not joined or row.slots[m] is not None:
            return False
        ids = row.pending(m)
        reach = self.members[m].shared(ids) + WORTH_WAITING
        head = ids[:reach]
        return len(ids) > reach and any(other.primary == m and other.prompt(m)[:reach] == head for other in joined)

    def _take_slots(self, row: Row) -> None:
        for m in row.models:
            if row.slots[m] is None:
                member = self.members[m]
                row.slots[m] = slot = member.acquire(row.pending(m) if self.share else None)
                row.held[m] = member.length(slot)

    # -- after a round -----------------------------------------------------------------------------------------------

    def postprocess(self, plan: Plan) -> list[Row]:
        """Count a round that went well, and let go of the rows that ended in it; the rows that it moved."""
        self.rounds += 1
        self._calm += 1
        self._alone = None
        if self._calm % _CALM == 0 and self.limit < self.batch_size:
            self.limit += 1
        for row in plan.ready:
            if row.finished:
                self._close(row)
        self.active = [row for row in self.active if not row.finished]
        return plan.ready

    def start_smaller(self, reason: str) -> list[Row]:
        """After a round that ran out of memory and was undone: free the caches and go on with half the rows.

        A row that was alone is tried once more, then it fails and is returned.
        """
        rows = self.active
        self.failed_allocations += 1
        self._calm = 0
        self.active, self._reading = [], []
        for row in rows:
            self._close(row)
            row.forget_caches()
        self.room.free()
        if len(rows) == 1 and rows[0] is self._alone:
            rows[0].fail(f"out of memory with no other row beside it: {reason}", "memory")
            return rows
        self._alone = rows[0] if len(rows) == 1 else None
        self.limit = max(1, min(self.limit, len(rows)) // 2)
        self._waiting.extendleft(reversed(rows))
        return []

    def close(self) -> None:
        """Drop the rows in flight; the members forget what their slots held."""
        for row in self.active:
            self._close(row)
        self.active, self._reading = [], []
        self._waiting.clear()
        for member in self.members:
            member.forget()

    def drop(self, row: Row) -> None:
        """Let go of a row that nobody wants any more, wherever it is."""
        self._close(row)
        self.active = [other for other in self.active if other is not row]
        self._reading = [other for other in self._reading if other is not row]
        if row in self._waiting:
            self._waiting.remove(row)

    def _close(self, row: Row) -> None:
        for m, slot in enumerate(row.slots):
            if slot is not None:
                self.members[m].release(slot)
                row.slots[m] = None

    def _put_back(self, row: Row) -> None:
        """Let a row wait, first in line, for caches that it can be read into again."""
        self._close(row)
        row.forget_caches()
        self._waiting.appendleft(row)
        if row in self._reading:
            self._reading.remove(row)
