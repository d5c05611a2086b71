"""A source that may wait, read in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
_POLL = 0.05  # seconds after which a reader whose items nobody takes looks whether anybody still wants them
_END = object()


def read_ahead(items: Iterable[T], most: int) -> Generator[T | None, None, None]:
    """The items in order, and None wherever the next one is not there yet.

    Args:
        items: Read in a thread of its own, which ends with them, or when this generator is closed and they give one
            more.
        most: Items that are read ahead.

    Raises:
        BaseException: Whatever reading the items raises.
    """
    ready: queue.Queue[object] = queue.Queue(most)
    closed = threading.Event()
    errors: list[BaseException] = []

    def put(item: object) -> None:
        while not closed.is_set():
            try:
                ready.put(item, timeout=_POLL)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for item in items:
                put(item)
                if closed.is_set():
                    return
        except BaseException as error:
            errors.append(error)
        finally:
            put(_END)

    threading.Thread(target=read, name="ensemble_decode source", daemon=True).start()
    try:
        while True:
            try:
                item = ready.get_nowait()
            except queue.Empty:
                yield None
                continue
            if item is _END:
                if errors:
                    raise errors[0]
                return
            yield item  # type: ignore[misc]
    finally:
        closed.set()
