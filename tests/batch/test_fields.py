"""Lines in and out: every sort of bad line by its kind and reason, every override, every field carried through."""

import gzip
import json

import pytest

import ensemble_decode as ed
from ensemble_decode.batch.fields import BadField, Defaults, as_request, encode_result, error_result
from ensemble_decode.batch.source import Line, identify, parse_line, read_lines
from ensemble_decode.errors import InputError
from ensemble_decode.members.memory import parse_memory

PROMPT = {"prompt": "a"}


@pytest.mark.parametrize(
    ("raw", "kind", "reason"),
    [
        (b"{broken", "line", "not JSON"),
        (b"", "line", "empty"),
        (b"  \r\n", "line", "empty"),
        (b"[1]", "line", "not a JSON object but list"),
        (b'"text"', "line", "not a JSON object but str"),
        (b'{"prompt": "\xff"}', "line", "not UTF-8"),
        (b'{"prompt": "a", "x": NaN}', "line", "NaN is not a JSON value"),
        (b"[" * 100000, "line", "not JSON"),
        (b"{}", "prompt", "neither"),
        (b'{"prompt": "a", "messages": []}', "prompt", "both"),
        (b'{"prompt": ""}', "prompt", "empty"),
        (b'{"prompt": 3}', "prompt", "must be a string, got int"),
        (b'{"prompt": null}', "prompt", "must be a string, got NoneType"),
        (b'{"prompt": "\\ud800"}', "prompt", "lone surrogate"),
        (b'{"messages": "hi"}', "prompt", "list of chat messages"),
        (b'{"messages": []}', "prompt", "non-empty list"),
        (b'{"messages": [{"role": "user"}]}', "prompt", "'content'"),
        (b'{"messages": ["hi"]}', "prompt", "message 0"),
        (b'{"prompt": "a", "max_new_tokens": 0}', "field", "max_new_tokens must be a positive integer"),
        (b'{"prompt": "a", "max_new_tokens": "5"}', "field", "max_new_tokens"),
        (b'{"prompt": "a", "max_new_tokens": true}', "field", "max_new_tokens"),
        (b'{"prompt": "a", "stop": 5}', "field", "stop must be"),
        (b'{"prompt": "a", "stop": [""]}', "field", "stop must be"),
        (b'{"prompt": "a", "seed": 1.5}', "field", "seed must be"),
        (b'{"prompt": "a", "seed": -1}', "field", "seed must be"),
        (b'{"prompt": "a", "temperature": "hot"}', "field", "temperature must be a number"),
        (b'{"prompt": "a", "temperature": -1}', "field", "temperature"),
        (b'{"prompt": "a", "top_p": 2}', "field", "top_p"),
        (b'{"prompt": "a", "method": "best"}', "field", "'method' must be one of unite"),
        (b'{"prompt": "a", "method": 3}', "field", "'method' must be one of"),
        (b'{"prompt": "a", "settings": 3}', "field", "'settings' must be an object"),
        (b'{"prompt": "a", "settings": {"speed": 3}}', "field", "no option of any method"),
        (b'{"prompt": "a", "settings": {"threshold": 0.5}}', "field", "not of unite"),
        (b'{"prompt": "a", "settings": {"top_k": "x"}}', "field", "top_k"),
        (b'{"prompt": "a", "settings": {"gate": 5}}', "field", ""),
        (b'{"prompt": "a", "method": "safe", "settings": {"draft_length": 0}}', "field", "draft_length"),
        (b'{"prompt": "a", "text": 1, "input_text": 2}', "field", "rename one"),
    ],
)
def test_bad_lines_by_kind_and_reason(raw, kind, reason):
    line = parse_line(7, raw)
    with pytest.raises(BadField) as bad:
        as_request(line, Defaults())
    assert bad.value.kind == kind
    assert reason in str(bad.value)
    told = json.loads(error_result(line, bad.value, 2, ids=True))
    assert told["line"] == 7
    assert told["finish_reason"] == "error"
    assert told["error_kind"] == kind
    assert told["error"] == str(bad.value)
    assert told["text"] == ""


def test_overrides_change_the_run_s_settings_and_nothing_else():
    run = Defaults("safe", {"draft-length": "4", "top-k": 7}, ed.Sampling(temperature=0.5, top_p=0.9, seed=1))
    plain = as_request(Line(3, PROMPT), run)
    assert (plain.method, plain.sampling, plain.seed, plain.row_id) == (None, None, None, 2)
    own = as_request(Line(3, PROMPT | {"settings": {"draft_length": 2}, "top_p": 0.5, "seed": 8, "stop": "x"}), run)
    assert own.method == ed.SAFE(base=ed.UniTE(top_k=7), draft_length=2)
    assert own.sampling == ed.Sampling(temperature=0.5, top_p=0.5)
    assert (own.seed, own.stop) == (8, ["x"])
    other = as_request(Line(3, PROMPT | {"method": "specfuse", "settings": {"literal": ["yes"], "trim": "none"}}), run)
    assert other.method == ed.SpecFuse(literals=("yes",), trim="none")
    assert as_request(Line(1, PROMPT | {"method": "safe"}), run).method == run.build()
    assert as_request(Line(1, PROMPT | {"settings": {"draft_length": "auto"}}), run).method.draft_length == "auto"


def test_every_field_is_carried_through():
    fields = {
        "prompt": "a",
        "id": 7,
        "nested": {"x": [1, None, "ü"]},
        "text": "mine",
        "error": "mine too",
        "odd": "\ud800",
    }
    done = ed.Completion("out", b"out", [3, 4], "stop", 4)
    told = json.loads(encode_result(Line(2, fields), done, None, ids=True))
    assert {k: v for k, v in told.items() if k in ("prompt", "id", "nested", "odd")} == {
        k: v for k, v in fields.items() if k in ("prompt", "id", "nested", "odd")
    }
    assert (told["input_text"], told["input_error"], told["text"], told["error"]) == ("mine", "mine too", "out", None)
    assert told["token_ids"] == [3, 4]
    assert "token_ids" not in json.loads(encode_result(Line(2, fields), done, None, ids=False))
    assert not {"forward_seconds", "forwarded", "host_seconds"} & set(told["stats"])  # would differ after a restart


def test_jsonl_gz_and_parquet_hold_the_same_lines(tmp_path):
    rows = [{"prompt": "a", "n": 1}, {"prompt": "ü\n", "n": 2, "tags": ["x"]}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode().replace(b"\n", b"\r\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.rstrip("\n").encode()))
    expected = [Line(n, row) for n, row in enumerate(rows, 1)]
    assert list(read_lines(tmp_path / "a.jsonl")) == expected
    assert list(read_lines(tmp_path / "b.jsonl.gz")) == expected
    assert identify(tmp_path / "a.jsonl")["lines"] == identify(tmp_path / "b.jsonl.gz")["lines"] == 2
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist([{"tags": None} | row for row in rows]), tmp_path / "c.parquet")
    assert list(read_lines(tmp_path / "c.parquet")) == expected
    assert identify(tmp_path / "c.parquet")["lines"] == 2
    parquet.write_table(pa.Table.from_pylist([{"prompt": "a", "blob": b"\x00"}]), tmp_path / "d.parquet")
    assert "bytes" in next(read_lines(tmp_path / "d.parquet")).error


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        identify(tmp_path / "missing.jsonl")
    (tmp_path / "x.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be read"):
        identify(tmp_path / "x.jsonl.gz")
    with pytest.raises(InputError, match="must end in"):
        list(read_lines(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [(5, 5), ("8GiB", 8 << 30), ("500MB", 500_000_000), ("1.5 k", 1500), ("2gib", 2 << 30), ("50%", 0.5), (0.25, 0.25)],
)
def test_sizes_of_memory(given, bytes_):
    assert parse_memory(given) == bytes_
