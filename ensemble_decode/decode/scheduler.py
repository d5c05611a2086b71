"""Continuous batching: rows come and go between rounds, prompts are read beside running rows, memory that runs out costs no row."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.sequence import Row
from ensemble_decode.decode.snapshot import Snapshot
from ensemble_decode.errors import CacheLimitError, EnsembleError, InputError

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.methods import Method
    from ensemble_decode.sampling import Sampling

PREFILL_TOKENS = 2048  # prompt tokens that one round reads of each model
WORTH_WAITING = 64  # tokens that another row is about to read, from which on it pays to wait a round for them
_CALM = 256  # rounds without a failed allocation after which one more row is let in
_PROGRAMS = 16  # engines of rows' own methods that are kept for the next such row
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: of the device, of the host, or of a cache's limit."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, CacheLimitError)):
        return True
    return type(error) is RuntimeError and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


class Scheduler:
    """Runs rows to their end, at most ``engine.batch_size`` at a time; a row that ends is replaced at once.

    A new row's prompt is read in chunks, at most ``prefill_tokens`` of each model in a round, in the same forwards as the
    running rows; it runs as soon as what is left of it fits into one round. Rows with a method or sampling of their own take
    their rounds in turn with the others.

    ``room`` says which rows the caches' limits hold. Where running rows outgrow them, the youngest is put back and read again
    later. Where an allocation fails, the round is undone, the caches are freed, and half as many rows go on; the number grows
    again with time. A row that does not fit alone fails, with the figures. No result depends on any of this.

    ``share``: rows that begin alike are read once. What a slot holds of a new row's beginning is copied; where a row that joins in
    the same round is about to read it, the new row waits for the next one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        room: Room | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        share: bool = False,
    ) -> None:
        if prefill_tokens < 1:
            raise InputError(f"prefill_tokens must be at least 1, got {prefill_tokens!r}")
        self.engine = engine
        self.room = room if room is not None else Room(engine.runners)
        self.prefill_tokens = prefill_tokens
        self.share = share
        self.active: list[Row] = []
        self.limit = engine.batch_size
        self.put_back = 0  # rows that made room for others
        self.failed_allocations = 0
        self.rounds = 0
        self._reading: list[Row] = []
        self._waiting: deque[Row] = deque()
        self._exhausted = False
        self._calm = 0
        self._alone: Row | None = None  # failed an allocation with no other row beside it
        self._programs: list[Engine] = []

    def run(self, rows: Iterable[Row | None]) -> Generator[Row, None, None]:
        """Yields a row after each round that moved it. ``rows`` is read as there is room; None in it: no row for now."""
        source = iter(rows)
        self._exhausted = False
        try:
            while True:
                yield from self._admit(source)
                if self.active:
                    yield from self._advance()
                elif self._exhausted and not self._waiting:
                    return
        finally:
            self.engine.riders.clear()
            for row in self.active:
                self._close(row)
            self.active = []
            for runner in self.engine.runners:
                runner.forget()

    # -- rows come and go --------------------------------------------------------------------------------------------

    def _admit(self, source: Iterator[Row | None]) -> Iterator[Row]:
        """Let in rows that the caches hold; they get their slots when their turn to be read comes."""
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
            else:
                row.fail(self.room.why_not(row), "memory")
                yield row
        self.active += new
        self._reading += new

    def _next(self, source: Iterator[Row | None]) -> Row | None:
        if self._waiting:
            return self._waiting.popleft()
        try:
            return next(source)
        except StopIteration:
            self._exhausted = True
            return None

    def _take_slots(self, row: Row) -> None:
        for m in row.models:
            if row.slots[m] is None:
                runner = self.engine.runners[m]
                row.slots[m] = slot = runner.acquire(row.pending(m) if self.share else None)
                row.cached[m] = runner.length(slot)

    def _waits(self, row: Row, joined: Sequence[Row]) -> bool:
        """Whether a row that joins in this round is about to read a beginning that this one can take over in the next.

        The primary's ids decide: it reads every row that joins, while other models may wait behind a gate.
        """
        m = row.primary
        if not self.share or not joined or row.slots[m] is not None:
            return False
        ids = row.pending(m)
        reach = self.engine.runners[m].shared(ids) + WORTH_WAITING
        head = ids[:reach]
        return len(ids) > reach and any(
            other.primary == m and other.request.prompt_ids[m][:reach] == head for other in joined
        )

    def _close(self, row: Row) -> None:
        for m, slot in enumerate(row.slots):
            if slot is not None:
                self.engine.runners[m].release(slot)
                row.slots[m] = None

    def _put_back(self, row: Row) -> None:
        """Let a row wait, first in line, for caches that it can be read into again."""
        self._close(row)
        row.forget_caches()
        self._waiting.appendleft(row)
        if row in self._reading:
            self._reading.remove(row)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _advance(self) -> Iterator[Row]:
        rows, reason = self.active, None
        before = [Snapshot(row) for row in rows]
        try:
            self._make_room()
            rows = self._round()
        except (RuntimeError, MemoryError, EnsembleError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error)
        if reason is not None:  # out of the handler, where the error still holds on to the round's tensors
            for snapshot in before:
                snapshot.restore()
            yield from self._start_smaller(self.active, reason)
            return
        self.rounds += 1
        self._calm += 1
        self._alone = None
        if self._calm % _CALM == 0 and self.limit < self.engine.batch_size:
            self.limit += 1
        for row in rows:
            if row.finished:
                self._close(row)
        self.active = [row for row in self.active if not row.finished]
        yield from rows

    def _round(self) -> list[Row]:
        """One round of every row that is ready; the rows it moved."""
        guests = self._read_prompts()
        ready = [row for row in self.active if row not in self._reading]
        for engine, members in self._by_program(ready):
            engine.round(members, guests)
        if self.engine.riders.models():  # no forward of these models was wanted
            self.engine.round((), guests)
        return ready

    def _read_prompts(self) -> list[Row]:
        """Let rows join whose pending tokens fit into this round, first come first served; the next one reads a chunk.

        Returns the rows that read a chunk.
        """
        left = [self.prefill_tokens] * len(self.engine.runners)
        joined: list[Row] = []
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
            for m, ids in pending.items():
                chunk = ids[
                    : min(len(ids) - 1, left[m])
                ]  # the last one is left to the row's first round, which reads its logits
                if chunk:
                    row.cached[m] = row.total(m) - len(ids)
                    self.engine.riders.add(m, row, chunk)
            return [row]
        return []

    def _by_program(self, rows: Sequence[Row]) -> list[tuple[Engine, list[Row]]]:
        """The rows of each method and sampling, with the engine that runs them."""
        groups: list[tuple[Engine, list[Row]]] = []
        for row in rows:
            engine = self._engine_of(row)
            for known, members in groups:
                if known is engine:
                    members.append(row)
                    break
            else:
                groups.append((engine, [row]))
        if len(self._programs) > _PROGRAMS:
            used = [engine for engine, _ in groups]
            self._programs = [engine for engine in self._programs if any(engine is u for u in used)]
        return groups

    def _engine_of(self, row: Row) -> Engine:
        method: Method = row.request.method if row.request.method is not None else self.engine.method
        sampling: Sampling = row.request.sampling if row.request.sampling is not None else self.engine.sampling
        for engine in (self.engine, *self._programs):
            if engine.method == method and engine.sampling == sampling:
                return engine
        self._programs.append(self.engine.with_program(method, sampling))
        return self._programs[-1]

    # -- memory ------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Room for what the next round may add to the caches: from the youngest rows, where the limits leave no other."""
        while len(self.active) > 1 and not self.room.fits(self.active):
            self._put_back(self.active.pop())
            self.put_back += 1
        self.room.make(self.active, self.limit)

    def _start_smaller(self, rows: list[Row], reason: str) -> Iterator[Row]:
        """After a failed allocation: free the caches and go on with half the rows; a row that was alone is tried once more, then it fails."""
        self.failed_allocations += 1
        self._calm = 0
        self.active, self._reading = [], []
        self.engine.riders.clear()
        for row in rows:
            self._close(row)
            row.forget_caches()
        self.room.free()
        if len(rows) == 1 and rows[0] is self._alone:
            rows[0].fail(f"out of memory with no other row beside it: {reason}", "memory")
            yield rows[0]
            return
        self._alone = rows[0] if len(rows) == 1 else None
        self.limit = max(1, min(self.limit, len(rows)) // 2)
        self._waiting.extendleft(reversed(rows))
