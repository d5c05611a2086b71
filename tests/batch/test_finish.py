"""Output files in every format: what they hold, for rows of every kind."""

import csv
import gzip
import json

import pytest
import zstandard

from ensemble_decode.batch.finish import read_final, write_final

ROWS = [
    {
        "line": 1,
        "prompt": 'a,\n"b"',
        "id": 3,
        "text": "größer",
        "stop_reason": "x",
        "nested": {"x": [1]},
        "error": None,
    },
    {"line": 2, "prompt": "b", "id": "four", "text": "", "stop_reason": 7, "odd": "\ud800", "error": "bad"},
    {"line": 3, "prompt": "c", "id": 1.5, "text": "c", "stop_reason": None, "big": 10**30, "empty": {}, "error": None},
]
LINES = [json.dumps(row, ensure_ascii="\\ud800" in json.dumps(row)).encode() + b"\n" for row in ROWS]


def written(path, rows=LINES, shard_rows=None):
    assert write_final(path, lambda: iter(rows), shard_rows) >= 1
    return path.read_bytes()


def test_lines_stay_as_they_are(tmp_path):
    assert written(tmp_path / "a.jsonl") == b"".join(LINES)
    assert gzip.decompress(written(tmp_path / "a.jsonl.gz")) == b"".join(LINES)
    assert zstandard.ZstdDecompressor().decompressobj().decompress(written(tmp_path / "a.jsonl.zst")) == b"".join(LINES)
    assert json.loads(written(tmp_path / "a.json")) == ROWS
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json"):
        assert list(read_final(tmp_path / name, 1)) == LINES


def test_a_table_has_a_column_for_every_field(tmp_path):
    rows = list(csv.DictReader(written(tmp_path / "a.csv").decode().splitlines(keepends=True)))
    assert list(rows[0]) == ["line", "prompt", "id", "text", "stop_reason", "nested", "error", "odd", "big", "empty"]
    assert [row["prompt"] for row in rows] == ['a,\n"b"', "b", "c"]
    assert [row["id"] for row in rows] == ["3", "four", "1.5"]
    assert [row["nested"] for row in rows] == ['{"x": [1]}', "", ""]
    assert (rows[1]["odd"], rows[1]["error"], rows[2]["big"]) == ("\ufffd", "bad", str(10**30))


def test_parquet_holds_rows_of_every_kind(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    written(tmp_path / "a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["text"] for row in rows] == ["größer", "", "c"]
    assert [row["id"] for row in rows] == ["3", '"four"', "1.5"]  # no type holds all three: their JSON
    assert [row["stop_reason"] for row in rows] == ["x", "7", None]
    assert (rows[0]["nested"], rows[1]["odd"], rows[2]["big"]) == ({"x": [1]}, "\ufffd", str(10**30))
    assert rows[2]["empty"] == "{}"


def test_parquet_types_are_those_of_all_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        json.dumps({"line": n, "x": n if n < 5000 else n + 0.5, "big": 2**60 + 1 if n < 9000 else 0.5}).encode()
        for n in range(9999)
    ]
    written(tmp_path / "a.parquet", rows)
    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [table[n]["x"] for n in (0, 5000)] == [0.0, 5000.5]
    assert [table[n]["big"] for n in (0, 9998)] == [str(2**60 + 1), "0.5"]


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet", "jsonl.zst"])
def test_no_rows_are_a_file(tmp_path, ending):
    written(tmp_path / f"a.{ending}", [])
    assert (tmp_path / f"a.{ending}").exists()
    if ending == "json":
        assert json.loads((tmp_path / "a.json").read_bytes()) == []


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_every_shard_is_a_whole_file(tmp_path, ending):
    assert write_final(tmp_path / f"a-{{shard}}.{ending}", lambda: iter(LINES), 2) == 2
    names = [f"a-00000.{ending}", f"a-00001.{ending}"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    if ending == "json":
        assert [json.loads((tmp_path / name).read_bytes()) for name in names] == [ROWS[:2], ROWS[2:]]
    elif ending == "csv":
        assert len({(tmp_path / name).read_text().splitlines()[0] for name in names}) == 1
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        first, second = (parquet.read_schema(tmp_path / name) for name in names)
        assert first.equals(second)
