"""Durable output: rows are appended in blocks that a manifest vouches for, so that a killed job goes on where it was.

Beside ``out.jsonl`` lie ``out.jsonl.manifest`` and ``out.jsonl.lock``, and until the job is complete
``out.jsonl.part``: results in the order in which rows ended. A block is written and synced first, then its record in
the manifest. When the job goes on, bytes of the part file that no record vouches for are cut off.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import socket
import stat
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from ensemble_decode.batch.finish import SHARD, read_final, shard_path, write_final
from ensemble_decode.batch.results import OutputError, Results
from ensemble_decode.errors import InputError
from ensemble_decode.paths import sync_folder

_NUMBER = re.compile(rb'\{"line": (\d+),')
# Results wait until so many times the last block's writing time has passed: at most 5 % goes into it.
_SYNC_SHARE = 20
_BLOCK_ROWS = 256  # rows that wait at most


def check_target(path: Path) -> Path:
    """The file that an output is: a link is followed, so that its target is written and the link stays.

    Args:
        path: As the user gave it. It need not exist.

    Raises:
        InputError: A folder, a device or a pipe lies there, the file is read-only, there is no folder to put it in, or
            a link leads in a circle.
    """
    try:
        real = Path(os.path.realpath(path))
        mode = os.stat(real).st_mode if real.exists() else stat.S_IFREG
        if real.is_symlink():
            raise InputError(f"{path}: this link leads in a circle")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: cannot be written: it is a folder; expected the name of a file")
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{path}: cannot be written: it is a device or a pipe; expected a file, or - for standard output"
        )
    if real.exists() and not os.access(real, os.W_OK):
        raise InputError(f"{path}: cannot be written: the file is read-only")
    if not real.parent.is_dir():
        raise InputError(f"{path}: cannot be written: there is no folder {real.parent}")
    return real


class Output(Results):
    """The output of one job, in a file or in shards, locked against any other run until ``close``."""

    def __init__(
        self,
        path: Path,
        job: Mapping[str, Any],
        lines: int,
        *,
        order: str,
        overwrite: bool = False,
        append: bool = False,
        continues: Callable[[Mapping[str, Any]], bool] = lambda known: False,
        shard_rows: int | None = None,
    ) -> None:
        """Open the output, or go on with it.

        Args:
            path: The file, or with ``{shard}`` in its name the files; links are followed.
            job: Everything that the results depend on; it must equal the manifest's where the job goes on.
            lines: Lines of the input.
            order: Of the output: "input", or "finished": as rows ended.
            overwrite: Start anew, whatever lies there.
            append: Take the input as the job's, where it is the job's with lines added to its end.
            continues: Whether it is, given what the manifest knows of the input.
            shard_rows: Rows per file; None: one file.

        Raises:
            InputError: Another run is alive, the job differs, or what lies at ``path`` belongs to no job.
            OutputError: The files cannot be written.
        """
        self.path = check_target(path)
        super().__init__(str(path), job, lines)
        self.order, self._continues, self._append, self._shard_rows = order, continues, append, shard_rows
        self.part, self.manifest = (self.path.with_name(self.path.name + end) for end in (".part", ".manifest"))
        self._offsets = array("q", [-1]) * lines
        self._pending: list[tuple[int, bytes, str | None]] = []
        self._last_block, self._cost, self._end = 0.0, 0.0, 0
        self._files: list[IO[bytes]] = []
        lock = self.path.with_name(self.path.name + ".lock")
        self._lock = FileLock(lock)
        try:
            lock.open("ab").close()  # filelock takes some errors for another run's lock
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{path}: another run is writing it ({self._owner()}); wait for it or stop it") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error}") from error
        try:
            with self._failing("opened"):
                self._begin(overwrite)
        except BaseException:
            self.close()
            raise

    # -- opening -----------------------------------------------------------------------------------------------------

    def _begin(self, overwrite: bool) -> None:
        if overwrite:
            for old in (self.manifest, self.part, *self._present()):
                old.unlink(missing_ok=True)
        records = self._records()
        if not records and self._present():
            raise InputError(
                f"{self._present()[0]} exists and is not of an unfinished batch job; overwrite replaces it"
            )
        known = records[0]["job"] if records else None
        if known is not None:
            self._same_job(known)
        grown = known is not None and known.get("input") != self.job.get("input")
        blocks = [record for record in records if "end" in record]
        shards = next((record["shards"] for record in records if "complete" in record), None)
        if shards is not None:
            missing = [p for n in range(shards) if not (p := shard_path(self.path, n)).exists()]
            if missing:
                raise InputError(f"{missing[0]} was completed and is gone; overwrite runs the job again")
            if not grown:
                for record in blocks:
                    self._count(record["rows"], record["errors"])
                self.part.unlink(missing_ok=True)
                self.done = bytearray(b"\1") * len(self.done)
                self.complete = True
                return
            blocks = self._reopen(blocks, shards)
        good, end = self._verify(blocks)
        run = {"pid": os.getpid(), "host": socket.gethostname(), "started": int(time.time())}
        self._write_manifest([{"job": self.job}, *good, {"run": run}])
        self.part.open("ab").close()
        os.truncate(self.part, end)
        self._end = end
        self._files = [self.part.open("ab"), self.manifest.open("ab")]
        sync_folder(self.path.parent)

    def _present(self) -> list[Path]:
        """The files of the output that exist."""
        pattern = glob.escape(str(self.path)).replace(SHARD, "[0-9]" * 5)
        return [Path(found) for found in sorted(glob.glob(pattern))]

    def _reopen(self, blocks: list[dict[str, Any]], shards: int) -> list[dict[str, Any]]:
        """Make a part file of a finished output, so that lines can be added; its blocks."""
        rows = sum(block["rows"] for block in blocks)
        errors: dict[str, int] = {}
        for block in blocks:
            for kind, count in block["errors"].items():
                errors[kind] = errors.get(kind, 0) + count
        end, seen = 0, bytearray(rows)
        made: list[dict[str, Any]] = []
        lines = read_final(self.path, shards)
        with self.part.open("wb") as file:
            while some := list(itertools.islice(lines, _BLOCK_ROWS)):
                for line in some:
                    match = _NUMBER.match(line)
                    if match and 1 <= int(match[1]) <= rows:
                        seen[int(match[1]) - 1] += 1
                data = b"".join(some)
                end += len(data)
                file.write(data)
                made.append({"rows": len(some), "errors": {}, "end": end, "crc": zlib.crc32(data)})
            _sync(file)
        if sum(record["rows"] for record in made) != rows or seen.count(1) != rows:
            self.part.unlink()
            raise InputError(f"{self.name} was changed since it was completed; rows can only be added to it as it was")
        if made:
            made[0]["errors"] = errors
        return made

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
            raise InputError(f"{self.manifest} is no manifest of a batch job; overwrite replaces it")
        return records

    def _same_job(self, known: dict[str, Any]) -> None:
        """Check that the job is the manifest's; its input may be longer where rows are to be added."""
        if self.job.get("seed") is None:
            self.job["seed"] = known.get("seed")
        differing = [name for name in {**known, **self.job} if known.get(name) != self.job.get(name)]
        if differing == ["input"]:
            was, now = known["input"], self.job["input"]
            if not self._continues(was):
                raise InputError(
                    f"{self.name} belongs to a job with another input: it had {was['lines']} lines and {was['bytes']} "
                    f"bytes, and now there are {now['lines']} lines and {now['bytes']} bytes that do not begin like "
                    "it. "
                    "Give the same input, another output, or overwrite"
                )
            if not self._append:
                raise InputError(
                    f"the input of {self.name} has grown from {was['lines']} to {now['lines']} lines since the job "
                    "began. append finishes what was there and goes on with the new lines; overwrite starts anew"
                )
            return
        if differing:
            told = "; ".join(f"{name}: {known.get(name)!r} then, {self.job.get(name)!r} now" for name in differing)
            raise InputError(
                f"{self.name} belongs to a job that differs ({told}): "
                "give the same settings, another output, or overwrite"
            )

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
                self._count(record["rows"], record["errors"])
        return good, at

    def _owner(self) -> str:
        try:
            runs = [record["run"] for record in self._records() if "run" in record]
        except InputError:
            runs = []
        return f"process {runs[-1]['pid']} on {runs[-1]['host']}" if runs else "it has just begun"

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, number: int, data: bytes, kind: str | None) -> None:
        """As ``Results.add``; written soon, a block at a time."""
        if self.done[number - 1]:
            return
        self.done[number - 1] = 1
        self._pending.append((number, data, kind))
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """As ``Results.flush_if_due``."""
        waited = time.monotonic() - self._last_block
        if len(self._pending) >= _BLOCK_ROWS or waited >= _SYNC_SHARE * self._cost:
            self.flush()

    def flush(self) -> None:
        """As ``Results.flush``."""
        if not self._pending:
            return
        began = time.monotonic()
        part, manifest = self._files
        block = b"".join(data for _, data, _ in self._pending)
        at = self._end
        rows = len(self._pending)
        errors: dict[str, int] = {}
        for _, _, kind in self._pending:
            if kind is not None:
                errors[kind] = errors.get(kind, 0) + 1
        record = {"rows": rows, "errors": errors, "end": at + len(block), "crc": zlib.crc32(block)}
        with self._failing("written"):
            part.write(block)
            _sync(part)
            manifest.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            _sync(manifest)
        for number, data, _ in self._pending:
            self._offsets[number - 1] = at
            at += len(data)
        self._pending, self._end = [], at
        self._count(rows, errors)
        self._last_block = time.monotonic()
        self._cost = self._last_block - began

    def finish(self) -> None:
        """As ``Results.finish``: write the output in its order and format, and say so in the manifest."""
        super().finish()
        self.complete = False
        with self._failing("finished"):
            try:
                shards = write_final(self.path, self._lines, self._shard_rows)
            except InputError as error:
                raise InputError(f"{self.name}: {error}") from error
            self._files[1].write(json.dumps({"complete": True, "shards": shards}).encode() + b"\n")
            _sync(self._files[1])
        self.complete = True
        self.part.unlink(missing_ok=True)

    @property
    def taken(self) -> int:
        """As ``Results.taken``."""
        return super().taken + len(self._pending)

    @property
    def failed(self) -> int:
        """As ``Results.failed``."""
        return super().failed + sum(kind is not None for _, _, kind in self._pending)

    def stopped(self) -> str:
        """As ``Results.stopped``."""
        return f"{super().stopped()}; the same command goes on"

    def set_seed(self, seed: int) -> None:
        """As ``Results.set_seed``."""
        super().set_seed(seed)
        if not self.complete:
            with self._failing("opened"):
                self._files[1].close()
                records = self._records()
                records[0] = {"job": self.job}
                self._write_manifest(records)
                self._files[1] = self.manifest.open("ab")

    def close(self) -> None:
        """As ``Results.close``."""
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

    def _write_manifest(self, records: list[dict[str, Any]]) -> None:
        fresh = self.manifest.with_name(self.manifest.name + ".new")
        with fresh.open("wb") as file:
            file.write(b"".join(json.dumps(record, allow_nan=False).encode() + b"\n" for record in records))
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
            rows, name = self._output.tally["rows"], self._output.name
            raise OutputError(
                f"{name}: cannot be {self._what}: {error}. {rows} results are safe; run the same command again to go on"
            ) from error


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
