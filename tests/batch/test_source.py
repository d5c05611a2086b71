"""Inputs as they were when the job began: every format, pipes, standard input, files that grow or change."""

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import zstandard

from ensemble_decode.batch.lines import Line
from ensemble_decode.batch.source import Source, open_source
from ensemble_decode.errors import InputError

ROWS = [{"prompt": "a", "n": 1}, {"prompt": "ü\n", "n": 2, "tags": ["x"]}]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
LINES = [Line(n, row) for n, row in enumerate(ROWS, 1)]


def frames(data: bytes) -> bytes:
    """Zstd as tools that append to a file write it: several frames, one of them empty."""
    half = len(data) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], b"", data[half:]))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n")),
        ("b.jsonl.gz", gzip.compress(TEXT.rstrip(b"\n"))),
        ("c.jsonl.gz", gzip.compress(TEXT[:30]) + gzip.compress(TEXT[30:])),
        ("d.JSONL.zst", frames(TEXT)),
        ("e.json", json.dumps(ROWS, indent=1).encode()),
        ("f.json.zst", frames(json.dumps(ROWS).encode())),
    ],
)
def test_every_format_holds_the_same_lines(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    source = Source(path)
    assert source.lines == source.identity["lines"] == 2
    assert source.identity["bytes"] == len(data)
    assert list(source.read()) == list(source.read()) == LINES


def test_csv_and_parquet(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,n\na,1\n"ü\n",2\n')
    assert [line.fields for line in Source(tmp_path / "a.csv").read()] == [
        {**row, "n": str(row["n"])} | {} for row in ({"prompt": "a", "n": 1}, {"prompt": "ü\n", "n": 2})
    ]
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist([{"tags": None} | row for row in ROWS]), tmp_path / "c.parquet")
    source = Source(tmp_path / "c.parquet")
    assert (source.lines, list(source.read())) == (2, LINES)
    parquet.write_table(pa.Table.from_pylist([{"prompt": "a", "blob": b"\x00"}]), tmp_path / "d.parquet")
    assert "bytes" in next(Source(tmp_path / "d.parquet").read()).error


def test_tables_with_gaps_as_pandas_writes_them(tmp_path):
    """300 rows with mixed options: none is refused, in JSONL, Parquet and CSV alike."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from ensemble_decode.batch.fields import as_request
    from ensemble_decode.settings import Sampling

    rows = []
    for i in range(300):
        row = {"id": i, "prompt": "a"} if i % 3 else {"id": i, "messages": [{"role": "user", "content": "a"}]}
        rows.append(row | ({"max_new_tokens": 24} if i % 2 else {"stop": "x", "seed": i}))
    table = pandas.DataFrame(rows)
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "a.parquet")
    table.assign(messages=table["messages"].map(json.dumps, na_action="ignore")).to_csv(tmp_path / "a.csv", index=False)
    for name in ("a.jsonl", "a.parquet", "a.csv"):
        asked = [as_request(line, Sampling()) for line in Source(tmp_path / name).read()]
        assert [one.max_new_tokens for one in asked] == [24 if i % 2 else None for i in range(300)], name
        assert [one.seed for one in asked] == [None if i % 2 else i for i in range(300)]
        assert [isinstance(one.prompt, str) for one in asked] == [bool(i % 3) for i in range(300)]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("x.jsonl.gz", b"no gzip", "cannot be read"),
        ("x.jsonl.gz", gzip.compress(TEXT)[:-9], "cannot be read"),
        ("x.jsonl.zst", b"no zstd", "cannot be read"),
        ("x.jsonl.zst", zstandard.ZstdCompressor().compress(TEXT)[:-3], "ends inside a zstd frame"),
        ("x.json", b"{}", "not a JSON array"),
        ("x.csv", b"", "must name every column"),
        ("x.parquet", b"no parquet", "cannot be read"),
        ("x.txt", b"", "must end in"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, name, data, reason):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=reason) as refused:
        Source(tmp_path / name)
    assert str(refused.value).startswith(str(tmp_path / name))


# -- growing and changing --------------------------------------------------------------------------------------------


def test_what_is_added_later_is_not_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(TEXT)
    source = Source(path)
    assert not source.has_grown()
    lines = source.read()
    first = next(lines)
    with path.open("ab") as file:
        file.write(b'{"prompt": "new"}\n' * 50_000)
    assert [first, *lines] == LINES
    assert source.has_grown()
    assert list(source.read()) == LINES
    longer = Source(path)
    assert longer.lines == 50_002
    assert longer.continues(source.identity)
    assert not source.continues(longer.identity)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv"])
def test_an_input_continues_another_where_whole_lines_were_added(tmp_path, name):
    pack = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(name.split(".")[-1], bytes)
    path = tmp_path / name
    path.write_bytes(pack(TEXT))
    before = Source(path).identity
    with path.open("ab") as file:
        file.write(pack(b"{}\n"))
    assert Source(path).continues(before) == (name != "a.csv" or before["ends_line"])
    path.write_bytes(pack(TEXT.replace(b"a", b"b", 1) + b"{}\n"))
    assert not Source(path).continues(before)


def test_a_last_line_that_became_longer_is_another_input(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(TEXT + b'{"prompt": "half')
    before = Source(path).identity
    path.write_bytes(TEXT + b'{"prompt": "half a line"}\n')
    assert not Source(path).continues(before)
    path.write_bytes(TEXT + b'{"prompt": "half\n{}\n')
    assert Source(path).continues(before)


@pytest.mark.parametrize("change", ["other", "shorter", "more lines"])
def test_an_input_that_changes_while_it_is_read_is_told(tmp_path, change):
    path = tmp_path / "a.jsonl"
    path.write_bytes(TEXT * 3)
    source = Source(path)
    data = {"other": TEXT.replace(b"a", b"b", 1) * 3, "shorter": TEXT, "more lines": b"\n" * len(TEXT * 3)}[change]
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.jsonl was changed while the job ran"):
        list(source.read())


# -- pipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipe.jsonl.gz", "pipe"])
def test_a_pipe_is_read_to_its_end_and_can_be_read_again(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    data = gzip.compress(TEXT) if name.endswith(".gz") else TEXT
    thread = threading.Thread(target=lambda: path.write_bytes(data))
    thread.start()
    notes = []
    with open_source(path, notes.append) as source:
        assert list(source.read()) == list(source.read()) == LINES
        assert source.name == str(path)
        copy = source.path
    thread.join()
    assert "pipe" in notes[0]
    assert not copy.exists()


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    with open_source(Path("-"), lambda note: None) as source:
        assert list(source.read()) == LINES
        assert (source.name, source.lines) == ("-", 2)
    assert not sys.stdin.closed


@pytest.mark.parametrize(("path", "reason"), [("", "it is a folder"), ("no.jsonl", "No such file")])
def test_what_is_no_file_is_refused(tmp_path, path, reason):
    with pytest.raises(InputError, match=reason), open_source(tmp_path / path, print):
        pass
    with pytest.raises(InputError, match="it is a device"), open_source(Path("/dev/zero"), print):
        pass
