"""Lines of every format: what is one, and what is wrong with what is none."""

import io
import json

import pytest

from ensemble_decode.batch.lines import Line, parse_line, plain, read_array, read_csv
from ensemble_decode.errors import InputError


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{broken", "not JSON"),
        (b"  \r\n", "empty"),
        (b'"text"', "not a JSON object but str"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"x": NaN}', "NaN is not a JSON value"),
        (b'{"x": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"x": 1e999}', "inf is not a JSON value"),
        (b'{"x": [{"y": -1e999}]}', "-inf is not a JSON value"),
        (b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 deep"),
        (b"[" * 100000, "not JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_lines_that_are_none_say_why(raw, reason):
    line = parse_line(3, raw)
    assert (line.number, line.fields) == (3, None)
    assert reason in line.error


def test_a_line_is_its_object():
    assert parse_line(1, b'\xef\xbb\xbf{"a": 1e308}\r\n') == Line(1, {"a": 1e308})
    assert "not JSON" in parse_line(2, b"\xef\xbb\xbf{}").error  # a byte-order mark stands at the beginning alone


def test_an_array_s_items_are_lines_and_bad_ones_are_told_apart():
    lines = list(read_array(io.BytesIO(b'\xef\xbb\xbf[{"a": 1}, 3, {"a": NaN}, {"a": 1e999}, {"b": null}]')))
    assert [line.fields for line in lines] == [{"a": 1}, None, None, None, {"b": None}]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert "not a JSON object but int" in lines[1].error
    assert "nan is not" in lines[2].error
    assert list(read_array(io.BytesIO(b"[]"))) == []


@pytest.mark.parametrize("raw", [b"", b"{}", b'[{"a": 1}', b"\xff", b"[" * 100000])
def test_a_file_that_is_no_array_is_refused(raw):
    with pytest.raises(InputError, match="not a JSON array"):
        list(read_array(io.BytesIO(raw)))


def test_csv_is_text_but_for_the_fields_of_the_schema():
    long = "x" * 200_000
    raw = (
        "\ufeffprompt,max_new_tokens,stop,method,messages,temperature,id\r\n"
        '"a, ""b""\nc",24.0,"[""x"", ""y""]",safe(draft_length=3),,0.5,007\r\n'
        "\r\n"
        f'{long},,5,"{{""name"": ""gac""}}",,,\r\n'
        ',three,[x,,"[{""role"": ""user"", ""content"": ""ü""}]",1e999,\r\n'
    )
    first, second, third = read_csv(io.BytesIO(raw.encode()))
    assert first.fields == {
        "prompt": 'a, "b"\nc',
        "max_new_tokens": 24.0,
        "stop": ["x", "y"],
        "method": "safe(draft_length=3)",
        "temperature": 0.5,
        "id": "007",
    }
    assert second == Line(2, {"prompt": long, "stop": "5", "method": {"name": "gac"}})
    assert third.fields is None  # 1e999 in a field that is a number
    assert "inf is not" in third.error


def test_bad_csv_records_are_told_and_the_others_go_on():
    raw = b'prompt,id\na,1\nb\nc,3,4\n\xff,5\n"d"x,6\ne,7\n'
    lines = list(read_csv(io.BytesIO(raw)))
    assert [line.fields and line.fields["id"] for line in lines] == ["1", None, None, None, None, "7"]
    assert "the record has 1 fields, the first line 2" in lines[1].error
    assert "3 fields" in lines[2].error
    assert "not UTF-8" in lines[3].error
    assert "not CSV" in lines[4].error


@pytest.mark.parametrize("raw", [b"", b"prompt,,id\n", b"prompt,prompt\n"])
def test_csv_without_names_is_refused(raw):
    with pytest.raises(InputError, match="the first line must name every column"):
        list(read_csv(io.BytesIO(raw)))


def test_values_of_parquet_have_their_json_form():
    import datetime
    import decimal

    assert plain({"t": datetime.date(2024, 1, 2), "d": decimal.Decimal("1.50"), "n": None, "l": [1, None]}) == {
        "t": "2024-01-02",
        "d": "1.50",
        "l": [1, None],
    }
    for bad in (b"\x00", float("inf"), [float("nan")]):
        with pytest.raises(ValueError, match=r"JSON"):
            plain({"x": bad})
    assert json.dumps(plain({"x": 1.5}))
