"""The lines of an input, one by one: of JSONL, of a JSON array, of CSV, of Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, Any

from ensemble_decode.errors import InputError

_DEEPEST = 100  # levels of nesting; Python's own reader and writer give up at some hundreds
# what CSV writes as text and stands for something else
_JSON_IN_CSV = ("messages", "max_new_tokens", "seed", "temperature", "top_p", "top_k", "min_p")
_TEXT_OR_JSON_IN_CSV = ("stop", "method")


@dataclass(frozen=True)
class Line:
    """One line of input.

    Attributes:
        number: Its place, from 1: of a line in JSONL, an item in an array, a record in CSV, a row in Parquet.
        fields: Its JSON object; None where there is none.
        error: Why there is none.
    """

    number: int
    fields: dict[str, Any] | None
    error: str | None = None


def read_jsonl(file: IO[bytes]) -> Iterator[Line]:
    """Every line of a JSONL file. A line that is no JSON object comes with its error."""
    for number, raw in enumerate(file, 1):
        yield parse_line(number, raw)


def parse_line(number: int, raw: bytes) -> Line:
    """One line of JSONL as it stands in the file.

    Args:
        number: Its place, from 1; the first may begin with a byte-order mark.
        raw: The line, with or without its end.
    """
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if not text.strip():
            return Line(number, None, "the line is empty")
        found = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return Line(number, None, f"not UTF-8: {error.reason} at byte {error.start}")
    except RecursionError:
        return Line(number, None, "not JSON: too deeply nested")
    except ValueError as error:
        return Line(number, None, f"not JSON: {error}")
    return as_line(number, found)


def as_line(number: int, found: object) -> Line:
    """The line of a value that was read from JSON."""
    if not isinstance(found, dict):
        return Line(number, None, f'not a JSON object but {type(found).__name__}: write {{"prompt": ...}}')
    try:
        _check(found, 0)
    except ValueError as error:
        return Line(number, None, str(error))
    return Line(number, found)


def read_array(file: IO[bytes]) -> Iterator[Line]:
    """Every item of a file that is one JSON array. The array is read whole.

    Raises:
        InputError: The file is no JSON array.
    """
    try:
        found = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON array: {error or 'too deeply nested'}") from error
    if not isinstance(found, list):
        raise InputError(f"not a JSON array but {type(found).__name__}")
    for number, item in enumerate(found, 1):
        yield as_line(number, item)


def read_csv(file: IO[bytes]) -> Iterator[Line]:
    """Every record of a CSV file whose first names the columns. Blank lines are skipped, and empty fields are absent.

    Everything is text, except the fields of the schema that are numbers or messages, which are read as JSON. So are
    ``stop`` and ``method`` where they begin like a JSON array or object.

    Raises:
        InputError: The first record is missing, or names a column twice or not at all.
    """
    csv.field_size_limit(2**31 - 1)  # a prompt may be longer than the module's default of 128 KiB
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[type-var]
    records = csv.reader(text, strict=True)
    try:
        names = next(records, None)
    except csv.Error as error:
        raise InputError(f"the first line does not name the columns: {error}") from error
    if not names or "" in names or len(set(names)) < len(names):
        raise InputError(f"the first line must name every column, each by a name of its own; got {names!r}")
    number = 0
    while True:
        try:
            values = next(records, None)
        except csv.Error as error:
            number += 1
            yield Line(number, None, f"not CSV: {error}")
            continue
        if values is None:
            return
        if values:
            number += 1
            yield _record(number, names, values)


def _record(number: int, names: list[str], values: list[str]) -> Line:
    if len(values) != len(names):
        return Line(number, None, f"the record has {len(values)} fields, the first line {len(names)}")
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return Line(number, None, "not UTF-8")
    return as_line(number, {n: _from_text(n, v) for n, v in zip(names, values, strict=True) if v})


def _from_text(name: str, value: str) -> Any:
    if name in _JSON_IN_CSV or (name in _TEXT_OR_JSON_IN_CSV and value.lstrip()[:1] in ("[", "{")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # which the field refuses, with its own words
    return value


def read_parquet(blocks: Iterable[Any]) -> Iterator[Line]:
    """Every row of a Parquet file, from its record batches, as JSONL would hold it. A null is a field that is
    absent."""
    number = 0
    for block in blocks:
        for fields in block.to_pylist():
            number += 1
            try:
                yield Line(number, {key: plain(value) for key, value in fields.items() if value is not None})
            except ValueError as error:
                yield Line(number, None, str(error))


def plain(value: Any) -> Any:
    """A Parquet value as JSON has it: dates and times in ISO form, decimals as text.

    Raises:
        ValueError: JSON has no such value (bytes, infinity, NaN).
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        _check(value, 0)
        return value
    raise ValueError(f"a value of type {type(value).__name__} has no JSON form")


def _check(value: Any, depth: int) -> None:
    """Refuse what no JSON writer can write: numbers beyond float64, and nesting that is too deep."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON value; a number must lie within the range of a 64-bit float")
    if isinstance(value, (dict, list)):
        if depth == _DEEPEST:
            raise ValueError(f"not usable: nested more than {_DEEPEST} deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth + 1)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
