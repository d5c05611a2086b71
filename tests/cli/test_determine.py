"""`ensemble-decode determine`: its rules."""

import dataclasses

import pytest

import ensemble_decode as ed
from ensemble_decode.cli import determine
from ensemble_decode.schema.options import meanings


def test_the_help_names_every_rule():
    assert determine.RULES.split(", ") == [field.name for field in dataclasses.fields(ed.Rules)]
    assert list(meanings(ed.Rules)) == determine.RULES.split(", ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_gap=-1", "Rules: max_gap must be a number of at least 0, got -1"),
        ("gap=some", "Rules: gap must be one of 'points', 'relative', got 'some'"),
        ("size=3", "rules has no option 'size'"),
        ("max_models=", "expected a value"),
    ],
)
def test_rules_that_cannot_be_are_refused_before_anything_runs(run, tmp_path, text, message):
    code, _, err = run("determine", "-m", "a", "--data", tmp_path / "none.jsonl", "--rules", text)
    assert code == 2
    assert message in err
