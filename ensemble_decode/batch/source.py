"""Input of a batch job: the lines of a JSONL file (``.gz`` too) or the rows of a Parquet file, one by one."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ensemble_decode.errors import InputError

FORMATS = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Line:
    """One line of input. ``number`` counts from 1. ``fields``: its JSON object; None where ``error`` says why there is none."""

    number: int
    fields: dict[str, Any] | None
    error: str | None = None


def format_of(path: Path) -> str:
    """One of ``FORMATS``, from a file's name."""
    name = path.name.lower()
    for ending in (".jsonl.gz", ".jsonl", ".parquet"):
        if name.endswith(ending):
            return ending
    raise InputError(f"{path}: the name must end in {', '.join(FORMATS)}")


def read_lines(path: Path) -> Iterator[Line]:
    """Every line of a file, in order; a line that is not a JSON object comes with its error."""
    if format_of(path) == ".parquet":
        yield from _parquet_rows(path)
        return
    with _open(path) as file:
        for number, raw in enumerate(file, 1):
            yield parse_line(number, raw)


def parse_line(number: int, raw: bytes) -> Line:
    """One line of JSONL as it stands in the file."""
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if not text.strip():
            return Line(number, None, "the line is empty")
        fields = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return Line(number, None, f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Line(number, None, f"not JSON: {error or 'too deeply nested'}")
    if not isinstance(fields, dict):
        return Line(number, None, f'not a JSON object but {type(fields).__name__}: write {{"prompt": ...}}')
    return Line(number, fields)


def identify(path: Path) -> dict[str, Any]:
    """What tells an input from another: lines, bytes and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
        return {"lines": _count(path), "bytes": size, "sha256": digest.hexdigest()}
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _count(path: Path) -> int:
    if format_of(path) == ".parquet":
        return int(_parquet(path).metadata.num_rows)
    with _open(path) as file:
        return sum(1 for _ in file)


def _open(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _parquet(path: Path) -> Any:
    return import_parquet(path).ParquetFile(path)


def import_parquet(path: Path) -> Any:
    """``pyarrow.parquet``; InputError that says how to install it."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'ensemble-decode[parquet]'") from error
    return parquet


def _parquet_rows(path: Path) -> Iterator[Line]:
    number = 0
    for block in _parquet(path).iter_batches(batch_size=1024):
        for fields in block.to_pylist():
            number += 1
            try:
                # as a JSONL file would hold them; a null stands for a field that is not there
                told = {key: plain(value) for key, value in fields.items() if value is not None}
                yield Line(number, told)
            except ValueError as error:
                yield Line(number, None, str(error))


def plain(value: Any) -> Any:
    """A Parquet value as JSON has it: dates and times in ISO form, decimals as text; ValueError for bytes and the like."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is not a JSON value")
        return value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "Decimal":
        return str(value)
    raise ValueError(f"a value of type {type(value).__name__} has no JSON form")
