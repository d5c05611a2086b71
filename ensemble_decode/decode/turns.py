"""Calls side by side: whose turn it is to work on the members, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Turns:
    """What the runs on the same members share. One thread at a time has the turn: ``with turns: ...``.

    A thread that has the turn may take it again. Threads that wait get it in the order in which they came, so that runs
    side by side advance round by round.

    Attributes:
        rooms: Of every run its ``Room``: what the caches hold of it.
        rounds: How many rounds there have been.
    """

    def __init__(self) -> None:
        self.rooms: WeakSet[Any] = WeakSet()
        self.rounds = 0
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0
        self._left: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self._owner in (None, me):
                self._owner = me
                self._depth += 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append((me, gate))
        try:
            gate.acquire()
        except BaseException:  # an interrupt: leave the line, or pass on the turn that has just come
            with self._mutex:
                if (me, gate) in self._waiting:
                    self._waiting.remove((me, gate))
                    raise
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        while self._left:
            self._left.popleft()()
        self._hand_over()

    def _hand_over(self) -> None:
        with self._mutex:
            self._owner, self._depth = None, 0
            if self._waiting:
                self._owner, gate = self._waiting.popleft()
                self._depth = 1
                gate.release()

    def soon(self, work: Callable[[], None]) -> None:
        """Do some work on the members: at once where nobody has the turn, else at the end of the turn under way.

        It never waits, so it may be called where Python collects an object, in whatever thread and at whatever moment.
        """
        self._left.append(work)
        if not self._mutex.acquire(blocking=False):
            return  # somebody is about to take a turn or to give it back, and will see to it
        try:
            free = self._owner is None
            if free:
                self._owner, self._depth = threading.get_ident(), 1
        finally:
            self._mutex.release()
        if free:
            self.__exit__()

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        """Give the turn up for a while, where this thread has it."""
        depth = self._depth if self._owner == threading.get_ident() else 0
        if depth:
            self._hand_over()
        try:
            yield
        finally:
            if depth:
                self.__enter__()
                self._depth = depth

    def outside(self, items: Iterable[T]) -> Iterator[T]:
        """The items, each of them read without the turn: a source that waits stops nobody else."""
        with self._given_up():
            source = iter(items)
        while True:
            try:
                with self._given_up():
                    item = next(source)
            except StopIteration:
                return
            yield item
