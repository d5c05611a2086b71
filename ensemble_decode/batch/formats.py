"""File formats of a batch job: which there are, and opening what is packed."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ensemble_decode.errors import InputError

STANDARD = Path("-")
"""Standard input as an input, standard output as an output: lines of JSON."""


class Format(NamedTuple):
    """How a file holds its rows.

    Attributes:
        rows: "jsonl", "json" (one array), "csv" or "parquet".
        packing: "gz", "zst", or "" for none.
    """

    rows: str
    packing: str = ""


_ROWS, _PACKINGS = ("jsonl", "json", "csv", "parquet"), ("gz", "zst")
FORMATS = (
    ".jsonl",
    ".json",
    ".csv",
    ".parquet",
    ".jsonl.gz",
    ".jsonl.zst",
    ".json.gz",
    ".csv.gz",
    ".json.zst",
    ".csv.zst",
)


def format_of(path: Path) -> Format:
    """The format that a file's name tells; ``-`` is JSONL.

    Raises:
        InputError: The name has no known ending.
    """
    if path == STANDARD:
        return Format("jsonl")
    endings = path.name.lower().split(".")[1:]
    packing = endings.pop() if endings and endings[-1] in _PACKINGS else ""
    rows = endings[-1] if endings else ""
    if rows not in _ROWS or (packing and rows == "parquet"):
        raise InputError(f"{path}: the name must end in {', '.join(FORMATS)}")
    return Format(rows, packing)


def unpacked(file: IO[bytes], packing: str) -> IO[bytes]:
    """What a packed file holds.

    Args:
        file: The file as it lies on the disk.
        packing: As in ``Format``.

    Raises:
        InputError: zstandard is missing.
    """
    if packing == "gz":
        return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]
    if packing == "zst":
        return io.BufferedReader(_Zstd(file), 1 << 20)  # type: ignore[arg-type]
    return file


@contextlib.contextmanager
def packed(file: IO[bytes], packing: str) -> Iterator[IO[bytes]]:
    """A writer of a packed file whose bytes depend on what is written alone: no name, no time.

    Args:
        file: The file as it is to lie on the disk; it stays open.
        packing: As in ``Format``.

    Raises:
        InputError: zstandard is missing.
    """
    if packing == "gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
            yield zipped  # type: ignore[misc]
    elif packing == "zst":
        with import_zstandard().ZstdCompressor().stream_writer(file, closefd=False) as zipped:
            yield zipped
    else:
        yield file


class _Zstd(io.RawIOBase):
    """The frames of a zstd file, one behind the other; a last one that is cut off is an ``EOFError``."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._zstandard = file, import_zstandard()
        self._frame: Any = None
        self._input, self._output = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            self._input = self._input or self._file.read(1 << 16)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the file ends inside a zstd frame")
                return 0
            if self._frame is None:
                self._frame = self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._output = self._frame.decompress(self._input)
            except self._zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


def import_zstandard() -> Any:
    """The module ``zstandard``.

    Raises:
        InputError: It is missing; the message says how to install it.
    """
    try:
        import zstandard
    except ImportError as error:
        raise InputError("files that end in .zst need zstandard: pip install 'ensemble-decode[zstd]'") from error
    return zstandard


def import_parquet(path: Path) -> Any:
    """The module ``pyarrow.parquet``.

    Args:
        path: The file that needs it.

    Raises:
        InputError: It is missing; the message says how to install it.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'ensemble-decode[parquet]'") from error
    return parquet
