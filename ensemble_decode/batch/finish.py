"""The output file of a job: in its format, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ensemble_decode.batch.source import format_of, import_parquet
from ensemble_decode.errors import InputError

_ROWS = 4096  # of Parquet per group


def write_final(path: Path, lines: Callable[[], Iterable[bytes]]) -> None:
    """Write ``path`` from the lines of its results: into a new file first, which then takes its place.

    The bytes depend on the lines alone: no time stamps, no trace of blocks. Raises ``InputError`` where Parquet cannot
    hold the lines, ``OSError`` where the disk cannot.
    """
    fresh = path.with_name(path.name + ".new")
    form = format_of(path)
    if form == ".parquet":
        _write_parquet(fresh, lines)
    elif form == ".jsonl.gz":
        with fresh.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            packed.writelines(lines())
    else:
        with fresh.open("wb") as file:
            file.writelines(lines())
    with fresh.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(fresh, path)


def _write_parquet(path: Path, lines: Callable[[], Iterable[bytes]]) -> None:
    parquet = import_parquet(path)
    import pyarrow

    try:
        schema = None  # of all lines together: a field may be missing, or null, in some
        for block in _blocks(lines()):
            found = pyarrow.Table.from_pylist(block, pyarrow.schema(_guess(pyarrow, block))).schema
            schema = found if schema is None else pyarrow.unify_schemas([schema, found], promote_options="permissive")
        with parquet.ParquetWriter(path, schema or pyarrow.schema([])) as writer:
            for block in _blocks(lines()):
                writer.write_table(pyarrow.Table.from_pylist(block, schema))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise InputError(
            f"{path.with_suffix('')}: Parquet cannot hold these results, a field has values of several types: {error}; the results "
            "are all in the .part file, as JSONL"
        ) from error


def _guess(pyarrow: Any, block: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Name and type of every field of a block, not of its first row's alone."""
    names = dict.fromkeys(name for row in block for name in row)
    return [(name, pyarrow.array([row.get(name) for row in block]).type) for name in names]


def _blocks(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
    lines = iter(lines)
    while block := [json.loads(line) for line in islice(lines, _ROWS)]:
        for row in block:
            if row.get("stop_reason") is not None:  # an id or a string: a column has one type
                row["stop_reason"] = str(row["stop_reason"])
        yield block
