"""Durable output: rows are appended in blocks that a manifest vouches for, so that a job can be killed anywhere and go on.

Beside ``out.jsonl`` lie, while the job is not complete, ``out.jsonl.part`` (results in the order in which rows ended) and, for good,
``out.jsonl.manifest`` and ``out.jsonl.lock``. A block is written and synced first, then its record in the manifest: bytes of the part
file that no record vouches for are cut off when the job goes on.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ensemble_decode.batch.finish import write_final
from ensemble_decode.errors import EnsembleError, InputError

_NUMBER = re.compile(rb'\{"line": (\d+),')
_SYNC_SHARE = (
    20  # results wait until this many times the last block's writing time has passed: at most 5 % goes into it
)
_BLOCK_ROWS = 256  # rows that wait at most


class OutputError(EnsembleError):
    """The output cannot be written: no space left, no permission. What was written before is safe."""


class Output:
    """The output of one job, locked against any other run until ``close``.

    ``job``: everything that the results depend on; a job that goes on must equal the one in the manifest. ``lines``: of the
    input. ``done[n - 1]``: whether line n has its result. ``notes``: what was found on opening that a user should know. Raises
    ``InputError`` where another run is alive, where the job differs, or where ``path`` exists and no manifest belongs to it.
    """

    def __init__(self, path: Path, job: Mapping[str, Any], lines: int, *, order: str, overwrite: bool = False) -> None:
        self.path, self.order = path, order
        self.part, self.manifest = (path.with_name(path.name + end) for end in (".part", ".manifest"))
        self.notes: list[str] = []
        self.tally: dict[str, Any] = {"rows": 0, "errors": {}}
        self.done = bytearray(lines)
        self._offsets = array("q", [-1]) * lines
        self._pending: list[tuple[int, bytes, str | None]] = []
        self._last_block, self._cost, self._end = 0.0, 0.0, 0
        self._files: list[IO[bytes]] = []
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}")
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{path}: another run is writing it ({self._owner()}); wait for it or stop it") from None
        try:
            self._begin(dict(job), overwrite)
        except BaseException:
            self.close()
            raise

    # -- opening -----------------------------------------------------------------------------------------------------

    def _begin(self, job: dict[str, Any], overwrite: bool) -> None:
        if overwrite:
            for old in (self.manifest, self.part, self.path):
                old.unlink(missing_ok=True)
        records = self._records()
        if not records and self.path.exists():
            raise InputError(f"{self.path} exists and is not of an unfinished batch job; --overwrite replaces it")
        if records:
            job = self._same_job(records[0]["job"], job)
        self.job = job
        self.complete = any("complete" in record for record in records)
        blocks = [record for record in records if "end" in record]
        if self.complete:
            if not self.path.exists():
                raise InputError(f"{self.path} was completed and is gone; --overwrite runs the job again")
            for record in blocks:
                self._count(record)
            self.part.unlink(missing_ok=True)
            return
        with self._failing("opened"):
            good, end = self._verify(blocks)
            kept = [{"job": job}, *good] if records else [{"job": job}]
            kept.append({"run": {"pid": os.getpid(), "host": socket.gethostname(), "started": int(time.time())}})
            self._write_manifest(kept)
            self.part.open("ab").close()
            os.truncate(self.part, end)
            self._end = end
            self._files = [self.part.open("ab"), self.manifest.open("ab")]
            _sync_folder(self.path.parent)

    def _records(self) -> list[dict[str, Any]]:
        """The manifest's records; a last one that was cut off by a crash is left out."""
        if not self.manifest.exists():
            return []
        records = []
        for line in self.manifest.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                break
            records.append(record)
        if records and "job" not in records[0]:
            raise InputError(f"{self.manifest} is no manifest of a batch job; --overwrite replaces it")
        return records

    def _same_job(self, known: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
        if job.get("seed") is None:
            job["seed"] = known.get("seed")
        differing = [name for name in {**known, **job} if known.get(name) != job.get(name)]
        if differing:
            told = "; ".join(f"{name}: {known.get(name)!r} then, {job.get(name)!r} now" for name in differing)
            raise InputError(
                f"{self.path} belongs to a job that differs ({told}): give the same settings, another output, or --overwrite"
            )
        return known

    def _verify(self, blocks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
        """Read back every block that the manifest knows; the good ones and where they end."""
        good: list[dict[str, Any]] = []
        at = 0
        if not blocks:
            return good, at
        with self.part.open("rb") if self.part.exists() else open(os.devnull, "rb") as file:
            for record in blocks:
                data = file.read(record["end"] - at)
                if len(data) < record["end"] - at or zlib.crc32(data) != record["crc"]:
                    lost = sum(other["rows"] for other in blocks[len(good) :])
                    self.notes.append(f"{self.part}: damaged behind byte {at}; {lost} rows are done again")
                    break
                for line in data.splitlines(keepends=True):
                    match = _NUMBER.match(line)
                    assert match is not None
                    self.done[int(match[1]) - 1] = 1
                    self._offsets[int(match[1]) - 1] = at
                    at += len(line)
                good.append(record)
                self._count(record)
        return good, at

    def _owner(self) -> str:
        try:
            runs = [record["run"] for record in self._records() if "run" in record]
        except InputError:
            runs = []
        return f"process {runs[-1]['pid']} on {runs[-1]['host']}" if runs else "it has just begun"

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, number: int, data: bytes, kind: str | None) -> None:
        """The result of line ``number``; ``kind`` of error, None where it is none. Written soon, a block at a time."""
        if self.done[number - 1]:
            return
        self.done[number - 1] = 1
        self._pending.append((number, data, kind))
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Make results durable where they have waited long enough."""
        waited = time.monotonic() - self._last_block
        if len(self._pending) >= _BLOCK_ROWS or waited >= _SYNC_SHARE * self._cost:
            self.flush()

    def flush(self) -> None:
        """Make all results so far durable."""
        if not self._pending:
            return
        began = time.monotonic()
        part, manifest = self._files
        block = b"".join(data for _, data, _ in self._pending)
        at = self._end
        errors: dict[str, int] = {}
        for _, _, kind in self._pending:
            if kind is not None:
                errors[kind] = errors.get(kind, 0) + 1
        record = {"rows": len(self._pending), "errors": errors, "end": at + len(block), "crc": zlib.crc32(block)}
        with self._failing("written"):
            part.write(block)
            _sync(part)
            manifest.write(json.dumps(record).encode() + b"\n")
            _sync(manifest)
        for number, data, _ in self._pending:
            self._offsets[number - 1] = at
            at += len(data)
        self._pending, self._end = [], at
        self._count(record)
        self._last_block = time.monotonic()
        self._cost = self._last_block - began

    def finish(self) -> None:
        """Every line has its result: write the output in its order and format, and say so in the manifest."""
        self.flush()
        missing = self.done.count(0)
        if missing:
            raise OutputError(f"{self.path}: {missing} lines have no result yet")
        with self._failing("finished"):
            write_final(self.path, self._lines)
            _sync_folder(self.path.parent)
            self._files[1].write(b'{"complete": true}\n')
            _sync(self._files[1])
        self.complete = True
        self.part.unlink(missing_ok=True)

    def flush_quietly(self) -> None:
        """Make durable what can be, where something else has already gone wrong and is about to be reported."""
        try:
            self.flush()
        except OutputError as error:
            self.notes.append(str(error))

    @property
    def taken(self) -> int:
        """Lines that have their result, durable or about to be."""
        return int(self.tally["rows"]) + len(self._pending)

    def set_seed(self, seed: int) -> None:
        """Note the seed that was drawn for the job, so that it goes on with the same."""
        self.job["seed"] = seed
        if not self.complete:
            with self._failing("opened"):
                self._files[1].close()
                records = self._records()
                records[0] = {"job": self.job}
                self._write_manifest(records)
                self._files[1] = self.manifest.open("ab")

    def close(self) -> None:
        """Let go of the files and the lock; what was not flushed is lost."""
        for file in self._files:
            try:
                file.close()
            except OSError:  # a block that could not be written: reported when it failed
                continue
        self._files = []
        self._lock.release()

    def _lines(self) -> Iterator[bytes]:
        """The results, in the order of the output."""
        with self.part.open("rb") as file:
            for offset in self._offsets if self.order == "input" else sorted(self._offsets):
                file.seek(offset)
                yield file.readline()

    def _count(self, record: Mapping[str, Any]) -> None:
        self.tally["rows"] += record["rows"]
        for kind, count in record["errors"].items():
            self.tally["errors"][kind] = self.tally["errors"].get(kind, 0) + count

    def _write_manifest(self, records: list[dict[str, Any]]) -> None:
        fresh = self.manifest.with_name(self.manifest.name + ".new")
        with fresh.open("wb") as file:
            file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))
            _sync(file)
        os.replace(fresh, self.manifest)

    def _failing(self, what: str) -> _Failing:
        return _Failing(self, what)


class _Failing:
    """Turns an ``OSError`` inside into an ``OutputError`` that says what is safe."""

    def __init__(self, output: Output, what: str) -> None:
        self._output, self._what = output, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            rows, path = self._output.tally["rows"], self._output.path
            raise OutputError(
                f"{path}: cannot be {self._what}: {error}. {rows} results are safe; run the same command again to go on"
            ) from error


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
