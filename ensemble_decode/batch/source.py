"""The input of a batch job, as it was when the job began: a file that may grow, a pipe, or standard input."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ensemble_decode.batch.formats import STANDARD, format_of, import_parquet, unpacked
from ensemble_decode.batch.lines import Line, read_array, read_csv, read_jsonl, read_parquet
from ensemble_decode.errors import InputError

_READERS = {"jsonl": read_jsonl, "json": read_array, "csv": read_csv}
_BLOCK = 1 << 20


class Source:
    """A file of lines, limited to the bytes that it had when it was opened here: what is added later is not read.

    Attributes:
        name: What the user called it.
        path: The file that is read.
        lines: How many lines it has.
        identity: What tells it from another: lines, bytes, SHA-256, and whether it ends with the end of a line.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Read the file once.

        Args:
            path: A regular file.
            name: What errors call it; default: its path.

        Raises:
            InputError: It cannot be read, or its name tells no format.
        """
        self.path, self.name = path, name or str(path)
        self._format = format_of(path)
        with self._reading():
            self._size = path.stat().st_size
            start = _Start(path, self._size)
            self.lines, self._ends = 0, True
            if self._format.rows == "parquet":
                self.lines = int(import_parquet(path).ParquetFile(path).metadata.num_rows)
            elif self._format.rows == "jsonl":
                last = b"\n"
                with unpacked(io.BufferedReader(start, _BLOCK), self._format.packing) as file:
                    for raw in file:
                        last = raw
                        self.lines += 1
                    start.drain()
                self._ends = last.endswith(b"\n")
            else:
                self.lines = sum(1 for _ in self._read(start))
                self._ends = not self._format.packing and self._bytes_at(self._size - 1) == b"\n"
            start.drain()
        self.identity: dict[str, Any] = {
            "lines": self.lines,
            "bytes": self._size,
            "sha256": start.digest(),
            "ends_line": self._ends,
        }

    def read(self) -> Iterator[Line]:
        """Every line, in order.

        Raises:
            InputError: The file cannot be read, or is another than when it was opened here.
        """
        with self._reading():
            start = _Start(self.path, self._size)
            count = 0
            for line in self._read(start):
                count = line.number
                if count > self.lines:
                    break
                yield line
            start.drain()
            if count != self.lines or (start.digest() != self.identity["sha256"]):
                raise InputError(
                    f"{self.name} was changed while the job ran, in what it held when the job began. Put it back and "
                    "run the same command again, or begin anew with overwrite"
                )

    def has_grown(self) -> bool:
        """Whether the file is longer now than it was."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_size > self._size
        return False

    def continues(self, known: Mapping[str, Any]) -> bool:
        """Whether this is an earlier input with whole lines added to its end.

        Args:
            known: The earlier input's ``identity``.
        """
        if self._format.rows not in ("jsonl", "csv") or known["bytes"] >= self._size:
            return False
        if not known["ends_line"] and (self._format.packing or self._bytes_at(known["bytes"]) not in (b"\n", b"\r")):
            return False  # its last line has become longer
        start = _Start(self.path, known["bytes"])
        start.drain()
        return start.digest() == known["sha256"] and known["lines"] <= self.lines

    def _read(self, start: _Start) -> Iterator[Line]:
        if self._format.rows == "parquet":
            yield from read_parquet(import_parquet(self.path).ParquetFile(self.path).iter_batches(batch_size=1024))
            return
        with unpacked(io.BufferedReader(start, _BLOCK), self._format.packing) as file:
            yield from _READERS[self._format.rows](file)
            start.drain()

    def _bytes_at(self, place: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(max(0, place))
            return file.read(1)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            if str(error).startswith(self.name):
                raise
            raise InputError(f"{self.name}: {error}") from error
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error


class _Start(io.RawIOBase):
    """The first bytes of a file, hashed as they are read."""

    def __init__(self, path: Path, size: int) -> None:
        self._file, self._left = path.open("rb"), size
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._hash.update(data)
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read what is left, so that the hash is of all bytes."""
        if not self.closed:
            while self.read(_BLOCK):
                continue
            self.close()

    def close(self) -> None:
        self._file.close()
        super().close()

    def digest(self) -> str:
        """The SHA-256 of what was read, in hexadecimal digits."""
        return self._hash.hexdigest()


@contextlib.contextmanager
def open_source(path: Path, note: Callable[[str], None]) -> Iterator[Source]:
    """The input of a job. Standard input and pipes are read to their end first, into a file that is removed afterwards.

    Args:
        path: A file, a pipe, or ``-`` for standard input.
        note: Is told what takes time.

    Raises:
        InputError: There is no such file, it is no file but a folder or a device, or it cannot be read.
    """
    if path == STANDARD or _is_pipe(path):
        note("reading standard input to its end" if path == STANDARD else f"{path} is a pipe: reading it to its end")
        with tempfile.TemporaryDirectory(prefix="ensemble-decode-") as folder:
            copy = Path(folder, "input.jsonl" if path == STANDARD else _named(path))
            with copy.open("wb") as file:
                if path == STANDARD:
                    shutil.copyfileobj(sys.stdin.buffer, file, _BLOCK)
                else:
                    with path.open("rb") as pipe:
                        shutil.copyfileobj(pipe, file, _BLOCK)
            yield Source(copy, str(path))
    else:
        yield Source(path)


def _named(path: Path) -> str:
    """A pipe's name, where it tells a format. The shell's pipes (``<(zcat in.gz)``) have none, and hold JSONL."""
    try:
        format_of(path)
    except InputError:
        return "input.jsonl"
    return path.name


def _is_pipe(path: Path) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a socket"
        raise InputError(f"{path}: cannot be read: it is {what}; expected a file, a pipe, or - for standard input")
    return stat.S_ISFIFO(mode)
