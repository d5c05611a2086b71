"""The output files of a job: in their format, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ensemble_decode.batch.formats import format_of, import_parquet, packed, unpacked
from ensemble_decode.errors import InputError
from ensemble_decode.paths import sync_folder

SHARD = "{shard}"
"""Stands in the name of an output that is several files: ``out-{shard}.jsonl`` is ``out-00000.jsonl`` and so on."""
_ROWS = 4096  # of Parquet per group
Row = dict[str, Any]
Lines = Callable[[], Iterable[bytes]]
Writer = Callable[[IO[bytes], Iterable[bytes]], None]


def shard_path(path: Path, shard: int) -> Path:
    """The file of a shard; of an output that is one file, that file."""
    return path.with_name(path.name.replace(SHARD, f"{shard:05}"))


def write_final(path: Path, lines: Lines, shard_rows: int | None = None) -> int:
    """Write an output from the lines of its results: into new files first, which then take their places.

    The bytes depend on the lines alone: no time stamps, no trace of blocks.

    Args:
        path: The output, with ``{shard}`` in its name where ``shard_rows`` is given.
        lines: Gives the results, as JSON, in the order of the output. Called more than once.
        shard_rows: Rows per file; None: one file for all.

    Returns:
        The number of files. An output without rows is one file.

    Raises:
        InputError: A library is missing, or Parquet cannot hold the results.
        OSError: The disk cannot hold the output.
    """
    form = format_of(path)
    write = _WRITERS[form.rows](lines)
    rest = iter(lines())
    first = next(rest, None)
    made: list[Path] = []
    while first is not None or not made:
        some = islice(() if first is None else chain([first], rest), shard_rows)
        target = shard_path(path, len(made))
        fresh = target.with_name(target.name + ".new")
        with fresh.open("wb") as file:
            with packed(file, form.packing) as opened:
                write(opened, some)
            file.flush()
            os.fsync(file.fileno())
        made.append(target)
        first = next(rest, None)
    for target in made:
        os.replace(target.with_name(target.name + ".new"), target)
    sync_folder(path.parent)
    return len(made)


def read_final(path: Path, shards: int) -> Iterator[bytes]:
    """The lines of a finished output of JSON, as ``write_final`` was given them.

    Args:
        path: The output.
        shards: The number of its files.

    Raises:
        InputError: The format does not hold the lines as they were.
    """
    form = format_of(path)
    if form.rows not in ("jsonl", "json"):
        raise InputError(
            f"{path}: rows cannot be added to a finished {form.rows} file; expected an output of JSON lines"
        )
    for shard in range(shards):
        with shard_path(path, shard).open("rb") as raw, unpacked(raw, form.packing) as file:
            for line in file:
                if line[:1] == b"{":  # the items of an array stand on lines of their own, between those of its brackets
                    yield line.rstrip(b",\n") + b"\n"


def _jsonl_writer(lines: Lines) -> Writer:
    def write(file: IO[bytes], some: Iterable[bytes]) -> None:
        for line in some:
            file.write(line)

    return write


def _json_writer(lines: Lines) -> Writer:
    """One array, an item a line."""

    def write(file: IO[bytes], some: Iterable[bytes]) -> None:
        file.write(b"[")
        for number, line in enumerate(some):
            file.write((b",\n" if number else b"\n") + line.rstrip(b"\n"))
        file.write(b"\n]\n")

    return write


def _csv_writer(lines: Lines) -> Writer:
    """One table; its columns are those of all files."""
    names = list(dict.fromkeys(name for line in lines() for name in json.loads(line)))

    def write(file: IO[bytes], some: Iterable[bytes]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.DictWriter(text, names, restval="", lineterminator="\n")
        table.writeheader()
        for line in some:
            table.writerow({name: _cell(value) for name, value in json.loads(line).items()})
        text.detach()

    return write


def _cell(value: Any) -> str:
    return "" if value is None else _text(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _text(value: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair becomes U+FFFD."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parquet_writer(lines: Lines) -> Writer:
    """A column has one type in all files. One whose values no type of Arrow holds is text: their JSON."""
    parquet = import_parquet(Path("the output"))
    import pyarrow

    types: dict[str, Any] = {}
    large: set[str] = set()  # columns with integers that a 64-bit float does not hold
    for block in _blocks(lines()):
        for name in dict.fromkeys(name for row in block for name in row):
            values = [row.get(name) for row in block]
            large |= {name} if any(isinstance(v, int) and abs(v) > 2**53 for v in values) else set()
            types[name] = _column_type(pyarrow, types.get(name), values)
            if name in large and types[name] != "json" and pyarrow.types.is_floating(types[name]):
                types[name] = "json"
    schema = pyarrow.schema([(name, pyarrow.string() if kind == "json" else kind) for name, kind in types.items()])

    def cell(name: str, value: Any) -> Any:
        return json.dumps(value, allow_nan=False) if types[name] == "json" and value is not None else value

    def write(file: IO[bytes], some: Iterable[bytes]) -> None:
        with parquet.ParquetWriter(file, schema) as writer:
            for block in _blocks(some):
                rows = [{name: cell(name, value) for name, value in row.items()} for row in block]
                try:
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                except pyarrow.ArrowException as error:
                    raise InputError(
                        f"Parquet cannot hold these results: {error}; they are all in the .part file, as JSONL"
                    ) from error

    return write


def _column_type(pyarrow: Any, known: Any, values: list[Any]) -> Any:
    """The type of a column, with further values: one of Arrow's, or "json"."""
    if known == "json":
        return known
    try:
        found = pyarrow.array(values).type
        if known is not None:
            both = [pyarrow.schema([("", kind)]) for kind in (known, found)]
            found = pyarrow.unify_schemas(both, promote_options="permissive").field(0).type
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError):
        return "json"
    return "json" if _is_empty_struct(pyarrow, found) else found


def _is_empty_struct(pyarrow: Any, kind: Any) -> bool:
    """Whether there is a struct without fields in a type, which Parquet cannot hold."""
    if pyarrow.types.is_struct(kind):
        return kind.num_fields == 0 or any(
            _is_empty_struct(pyarrow, kind.field(i).type) for i in range(kind.num_fields)
        )
    return pyarrow.types.is_list(kind) and _is_empty_struct(pyarrow, kind.value_type)


def _blocks(lines: Iterable[bytes]) -> Iterator[list[Row]]:
    lines = iter(lines)
    while block := [json.loads(line) for line in islice(lines, _ROWS)]:
        for row in block:
            if row.get("stop_reason") is not None:  # an id or a string: a column has one type
                row["stop_reason"] = str(row["stop_reason"])
        yield [_whole(row) for row in block]


def _whole(value: Any) -> Any:
    """A value whose texts are all UTF-8."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_text(name): _whole(item) for name, item in value.items()}
    return value


_WRITERS: dict[str, Callable[[Lines], Writer]] = {
    "jsonl": _jsonl_writer,
    "json": _json_writer,
    "csv": _csv_writer,
    "parquet": _parquet_writer,
}
