"""``Session``: rows come and go while others run, each streamed and cancelled alone; what a service embeds."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.loop import step
from ensemble_decode.decode.models import Defaults, Models
from ensemble_decode.decode.prompts import Prompt
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.decode.scheduler import Scheduler
from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import EnsembleError
from ensemble_decode.outputs import Completion, Delta

_PAUSE = 0.001  # seconds between two looks at rows that wait for other runs' memory
Message = tuple[str, "BatchRequest | None", "weakref.ref[Generation] | None", int]


class Generation(Iterator[Delta], AsyncIterator[Delta]):
    """One request of a session: an iterator of its deltas, also with ``async for``, and its completion.

    Closing it, leaving its ``with`` block or dropping it cancels the row: its memory is free after the round under way.

    Attributes:
        index: The request's place in the session.
    """

    def __init__(self, session: Session, index: int, inbox: queue.SimpleQueue[Message]) -> None:
        self.index = index
        self._session = session  # kept alive as long as somebody waits for this row
        self._deltas: deque[Delta] = deque()
        self._changed = threading.Condition()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._completion: Completion | None = None
        self._broken: BaseException | None = None
        self._over = weakref.finalize(self, inbox.put, ("cancel", None, None, index))
        self._over.atexit = False

    def __next__(self) -> Delta:
        with self._changed:
            self._changed.wait_for(lambda: self._deltas or self.done)
            if self._deltas:
                return self._deltas.popleft()
            self._raise_if_broken()
        raise StopIteration

    async def __anext__(self) -> Delta:
        while True:
            with self._changed:
                if self._deltas:
                    return self._deltas.popleft()
                if self.done:
                    self._raise_if_broken()
                    raise StopAsyncIteration
                waiter = self._waiter()
            await waiter

    @property
    def done(self) -> bool:
        """Whether the row has ended."""
        return self._completion is not None or self._broken is not None

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the row's end.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes.

        Returns:
            The completion; of a cancelled row with ``finish_reason`` "cancelled" and the text so far.

        Raises:
            TimeoutError: The row has not ended in time; it goes on.
            EnsembleError: The session broke down; its cause is the error.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"row {self.index} has not ended after {timeout} seconds")
            return self._ended()

    async def completed(self) -> Completion:
        """Like ``result``, for coroutines."""
        while True:
            with self._changed:
                if self.done:
                    return self._ended()
                waiter = self._waiter()
            await waiter

    def cancel(self) -> None:
        """End the row as it stands. A row that has ended stays as it is."""
        self._over()

    close = cancel

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _ended(self) -> Completion:
        self._raise_if_broken()
        assert self._completion is not None
        return self._completion

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise EnsembleError(f"the session broke down: {self._broken}") from self._broken

    def _waiter(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        return future

    def tell(self, delta: Delta | None, completion: Completion | None, broken: BaseException | None = None) -> None:
        """What the session's thread has to say of this row."""
        with self._changed:
            if delta is not None and (delta.text or delta.token_ids or delta.finish_reason):
                self._deltas.append(delta)
            self._completion, self._broken = completion, broken
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Session:
    """Rows of one batch that callers add, stream and cancel at any time, from any thread and from coroutines.

    One thread runs the rows; they join and leave between its rounds, which take turns with other calls on the ensemble.
    A session is closed by ``close``, at the end of a ``with`` or ``async with`` block, and when nobody holds it.

    Args:
        models: The models.
        defaults: What requests are asked that say nothing else.
        batch_size: The most rows that run at a time.
        limits: Bytes that the cache of each model may take.
        prefill_tokens: The most prompt tokens that one round reads of each model.
    """

    def __init__(
        self, models: Models, defaults: Defaults, *, batch_size: int, limits: list[int], prefill_tokens: int
    ) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._given = 0
        self._loop = _Loop(models, defaults, self._inbox, batch_size, limits, prefill_tokens)
        self._thread = threading.Thread(target=self._loop.run, name="ensemble_decode session", daemon=True)
        self._over = weakref.finalize(self, self._inbox.put, ("close", None, None, 0))
        self._over.atexit = False
        self._thread.start()

    def add(self, request: Prompt | BatchRequest) -> Generation:
        """Add a row. It returns at once.

        Args:
            request: A prompt as ``Ensemble.generate`` takes it, or a ``BatchRequest`` with settings of its own. Without
                a seed of its own its draws are keyed by its place in the session.

        Returns:
            The row, to iterate over and to wait for. Dropping it cancels the row.

        Raises:
            EnsembleError: The session is closed.
        """
        asked = request if isinstance(request, BatchRequest) else BatchRequest(request)
        with self._lock:
            if not self._over.alive or self._loop.stopped.is_set():
                raise EnsembleError("the session is closed")
            made = Generation(self, self._given, self._inbox)
            self._inbox.put(("add", asked, weakref.ref(made), self._given))
            self._given += 1
        return made

    def close(self) -> None:
        """Cancel the rows in flight and wait for the thread's end."""
        with self._lock:
            self._over()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


class _Loop:
    """What the session's thread runs. It does not hold the session, which may be dropped while it works."""

    def __init__(
        self,
        models: Models,
        defaults: Defaults,
        inbox: queue.SimpleQueue[Message],
        batch_size: int,
        limits: list[int],
        prefill_tokens: int,
    ) -> None:
        self.stopped = threading.Event()
        self._models, self._defaults, self._inbox, self._limits = models, defaults, inbox, limits
        self._engine = models.engine(defaults)
        with models.turns:
            self._room = Room(models.members, limits, models.turns)
        self._scheduler = Scheduler(
            models.members, batch_size, room=self._room, prefill_tokens=prefill_tokens, share=True
        )
        self._new: deque[Row] = deque()
        self._rows: dict[int, tuple[Row, weakref.ref[Generation]]] = {}

    def run(self) -> None:
        """Rounds, until the session is closed or an error ends it."""
        broken: BaseException | None = None
        try:
            while self._read():
                with self._models.turns:
                    moved = list(self._scheduler.admit(self._source()))
                    if self._scheduler.active:
                        moved += step(self._engine, self._scheduler)
                        self._models.turns.rounds += 1
                self._tell(moved)
                if not moved and not self._scheduler.active:
                    time.sleep(_PAUSE)
        except BaseException as error:
            broken = error
        self.stopped.set()
        with self._models.turns:
            self._engine.abandon()
            self._scheduler.close()
            self._room.restore_limits()
        for index in list(self._rows):
            self._cancel(index, broken)
        while not self._inbox.empty():  # rows that came too late
            self._take(self._inbox.get())
            for index in list(self._rows):
                self._cancel(index, broken)

    def _read(self) -> bool:
        """Take in what came, waiting where there is nothing else to do; whether the session goes on."""
        going = True
        while going and (not self._rows or not self._inbox.empty()):
            going = self._take(self._inbox.get())
        return going

    def _take(self, message: Message) -> bool:
        what, asked, generation, index = message
        if what == "cancel":
            self._cancel(index)
        elif what == "add":
            assert asked is not None
            assert generation is not None
            row = self._models.row(index, asked, self._defaults)
            self._rows[index] = (row, generation)
            self._new.append(row)
        return what != "close"

    def _cancel(self, index: int, broken: BaseException | None = None) -> None:
        if index not in self._rows:
            return
        row, generation = self._rows.pop(index)
        with self._models.turns:
            if row in self._new:
                self._new.remove(row)
            self._scheduler.drop(row)
        if broken is None:
            row.cancel()
        wanted = generation()
        if wanted is not None:
            wanted.tell(None if broken else row.delta(), None if broken else row.completion(), broken)

    def _source(self) -> Iterator[Row | None]:
        while True:
            yield self._new.popleft() if self._new else None

    def _tell(self, moved: list[Row]) -> None:
        for row in moved:
            index = row.request.number
            _, generation = self._rows[index]
            wanted = generation()
            if row.finished:
                del self._rows[index]
            if wanted is not None:
                wanted.tell(row.delta(), row.completion() if row.finished else None)
