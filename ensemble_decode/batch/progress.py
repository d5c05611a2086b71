"""A job's progress for people: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from ensemble_decode.decode.batch_run import Counts

LOG_SECONDS = 10.0
_ROWS_FOR_A_PACE = 4


def describe(counts: Counts) -> str:
    """Tokens per second, acceptance and memory in a few words."""
    parts = [f"{counts.tokens / max(counts.seconds, 1e-9):.1f} tokens/s"]
    if counts.drafted:
        parts.append(f"{counts.accepted / counts.drafted:.0%} accepted")
    if counts.tokens:
        parts.append(f"{counts.ensembled / counts.tokens:.0%} ensembled")
    parts.append(f"{counts.running} running")
    parts.append(f"caches {counts.cache_bytes / 2**20:.0f} MiB")
    if counts.errors:
        parts.append(f"{sum(counts.errors.values())} errors")
    return ", ".join(parts)


def left(done: int, lines: int, counts: Counts) -> float | None:
    """Seconds that the rest takes at the run's pace so far; None while there is no telling.

    The first rows to end say little: they are the shortest of those that run side by side, or end together with all of
    them. A pace is known when as many rows have been written to their end as run at once.

    Args:
        done: Lines that have their result.
        lines: All lines.
        counts: Of this run.
    """
    written = counts.rows - sum(counts.errors.values())
    if written < max(_ROWS_FOR_A_PACE, counts.most_running):
        return None
    return (lines - done) * counts.seconds / counts.rows


class _Bar(Progress):
    """The bar with rows and time left, which must not be squeezed, and below it a line of figures, which may wrap."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.figures, style="dim")


class BarWatcher:
    """A progress bar on a terminal."""

    def __init__(self, console: Console) -> None:
        """The bar appears with the first progress.

        Args:
            console: The terminal.
        """
        self._console = console
        self._bar = _Bar(
            BarColumn(None),
            TextColumn("{task.completed}/{task.total} rows", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> BarWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """As ``Watcher.note``."""
        self._console.print(text, markup=False, highlight=False)

    def progress(self, done: int, lines: int, counts: Counts) -> None:
        """As ``Watcher.progress``."""
        self._bar.start()  # not while models load, which shows progress of its own
        rest = left(done, lines, counts)
        self._bar.figures = describe(counts)
        self._bar.update(
            self._task,
            completed=done,
            total=lines,
            left="" if rest is None else f"{timedelta(seconds=round(rest))} left",
        )


class LogWatcher:
    """A plain line every few seconds."""

    def __init__(self, console: Console, every: float = LOG_SECONDS) -> None:
        """Nothing is written yet.

        Args:
            console: Where the lines go.
            every: Seconds between two lines.
        """
        self._console, self._every = console, every
        self._last = time.monotonic() - every

    def __enter__(self) -> LogWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, text: str) -> None:
        """As ``Watcher.note``."""
        self._write(text)

    def progress(self, done: int, lines: int, counts: Counts) -> None:
        """As ``Watcher.progress``."""
        now = time.monotonic()
        if now - self._last >= self._every or done == lines:
            self._last = now
            rest = left(done, lines, counts)
            self._write(f"{done}/{lines} rows, {describe(counts)}" + ("" if rest is None else f", {rest:.0f} s left"))

    def _write(self, text: str) -> None:
        self._console.file.write(time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n")
        self._console.file.flush()
