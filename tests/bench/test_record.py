"""Records: nothing is lost on the way to paper, and runs are never mixed."""

import pytest
from support.bench import MODELS

from ensemble_decode.bench.record import Record, join
from ensemble_decode.errors import InputError


def test_a_record_comes_back_as_it_was(record, tmp_path):
    record.write(tmp_path / "run.json")
    back = Record.read(tmp_path / "run.json")
    assert back == record
    assert join([back, Record.read(tmp_path / "run.json")]) == record  # pieces of one run


def test_runs_are_not_compared(record, tmp_path):
    other = Record.begin(MODELS, "bfloat16", ["cpu", "cpu"], "")
    assert other.run["id"] != record.run["id"]
    with pytest.raises(InputError, match="did not alternate in one process"):
        join([record, other])


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"schema": 1, "run": {}, "cells": [{}], "skipped": [], "parts": {}}', '{"schema": 99}']
)
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=r"x\.json"):
        Record.read(tmp_path / "x.json")
