"""Where a job's results go: what every destination has in common, and standard output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from ensemble_decode.errors import EnsembleError


class OutputError(EnsembleError):
    """The output cannot be written: no space left, no permission, a closed pipe. What was written before is safe."""


class Results:
    """The results of a job, one per line of input.

    Attributes:
        name: What messages call the destination.
        job: Everything that the results depend on.
        done: ``done[n - 1]`` says whether line n has its result.
        tally: "rows" that are safe, and of them "errors" by kind.
        notes: What was found on opening that a user should know.
        complete: Whether every line has its result, and the output is whole.
    """

    def __init__(self, name: str, job: Mapping[str, Any], lines: int) -> None:
        self.name, self.job = name, dict(job)
        self.done = bytearray(lines)
        self.tally: dict[str, Any] = {"rows": 0, "errors": {}}
        self.notes: list[str] = []
        self.complete = False

    def add(self, number: int, data: bytes, kind: str | None) -> None:
        """Take the result of a line. A second one for the same line is dropped.

        Args:
            number: The line, from 1.
            data: Its result, as a line of JSON.
            kind: The kind of its error; None where it has none.

        Raises:
            OutputError: It cannot be written.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Make all results so far safe.

        Raises:
            OutputError: They cannot be written.
        """

    def flush_if_due(self) -> None:
        """Make results safe where they have waited long enough. Raises as ``flush``."""

    def flush_quietly(self) -> None:
        """Make safe what can be, where something else has already gone wrong and is about to be reported."""
        try:
            self.flush()
        except OutputError as error:
            self.notes.append(str(error))

    @property
    def taken(self) -> int:
        """Lines that have their result, safe or about to be."""
        return int(self.tally["rows"])

    @property
    def failed(self) -> int:
        """Lines whose result is an error, safe or about to be."""
        return sum(self.tally["errors"].values())

    def set_seed(self, seed: int) -> None:
        """Note the seed that was drawn for the job, so that it goes on with the same."""
        self.job["seed"] = seed

    def finish(self) -> None:
        """Every line has its result: make the output whole.

        Raises:
            OutputError: A line has none, or the output cannot be written.
        """
        self.flush()
        missing = self.done.count(0)
        if missing:
            raise OutputError(f"{self.name}: {missing} lines have no result yet")
        self.complete = True

    def stopped(self) -> str:
        """What to tell when the job ends early."""
        return f"stopped: {self.tally['rows']} of {len(self.done)} lines have their results"

    def close(self) -> None:
        """Let go of files and locks; what was not flushed is lost."""

    def _count(self, rows: int, errors: Mapping[str, int]) -> None:
        self.tally["rows"] += rows
        for kind, count in errors.items():
            self.tally["errors"][kind] = self.tally["errors"].get(kind, 0) + count


class StandardOutput(Results):
    """Results written to a stream as soon as it is their turn. Nothing is kept: a job that is stopped begins anew."""

    def __init__(self, stream: IO[bytes], job: Mapping[str, Any], lines: int, *, order: str) -> None:
        """Nothing is written yet.

        Args:
            stream: Where the lines go.
            job: Everything that the results depend on.
            lines: Lines of the input.
            order: "input", or "finished": as rows end.
        """
        super().__init__("standard output", job, lines)
        self._stream, self._in_order = stream, order == "input"
        self._waiting: dict[int, bytes] = {}
        self._due = 1

    def add(self, number: int, data: bytes, kind: str | None) -> None:
        """As ``Results.add``."""
        if self.done[number - 1]:
            return
        self.done[number - 1] = 1
        self._count(1, {} if kind is None else {kind: 1})
        if not self._in_order:
            self._write(data)
            return
        self._waiting[number] = data
        while self._due in self._waiting:
            self._write(self._waiting.pop(self._due))
            self._due += 1

    def flush(self) -> None:
        """As ``Results.flush``."""
        self._write(b"")

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            raise OutputError(f"standard output cannot be written: {error}") from error
