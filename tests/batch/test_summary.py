"""The report of a job, and the exit code that follows from it."""

import pytest

from ensemble_decode.batch.summary import Summary
from ensemble_decode.decode.batch_run import Counts


@pytest.mark.parametrize(
    ("rows", "errors", "code"),
    [(0, {}, 0), (5, {}, 0), (5, {"field": 1}, 3), (5, {"field": 3, "line": 1}, 3), (5, {"field": 3, "line": 2}, 1)],
)
def test_exit_codes(rows, errors, code):
    summary = Summary("in", "out", rows, errors)
    assert summary.exit_code == summary.as_dict()["exit_code"] == code


def test_a_summary_as_text():
    summary = Summary("in", "out", 5, {"line": 1, "field": 2})
    assert summary.lines() == ["5 rows in out, 3 of them errors (2 field, 1 line)", "nothing was left to do"]
    counts = Counts(
        rows=4, tokens=40, ensembled=10, drafted=8, accepted=4, seconds=2.0, rounds=9, forwards=[3, 4],
        forwarded=[30, 40], prefix_tokens_reused=[0, 7], forward_seconds=[0.5, 0.25], peak_cache_bytes=1 << 20,
    )  # fmt: skip
    summary.count(counts, ["a", "b"], [1 << 20, 1 << 20])
    assert "4 rows, 40 tokens in 2.0 s: 20.0 tokens/s, 2.00 rows/s" in summary.lines()[1]
    assert "25% of the tokens ensembled; 50% of the drafted accepted" in summary.lines()
    assert "b: 4 forwards of 40 tokens, 0.2 s; 7 tokens of prompts copied from rows that begin alike" in summary.lines()
    assert "caches: 1.0 MiB at most of 2.0 MiB allowed" in summary.lines()
