"""`determine --demo`: its questions, its shortened model, and, on the demo models, its report from one command."""

import json
import sys

import pytest
import torch
from support import tiny_models
from support.determine_figures import check

import ensemble_decode as ed
from ensemble_decode.cli import app as cli
from ensemble_decode.determination import demo
from ensemble_decode.determination.data import read_items
from ensemble_decode.determination.tokens import common_words
from ensemble_decode.determination.words import shell
from ensemble_decode.errors import InputError
from ensemble_decode.members.transformers.loading import load, load_tokenizer


def test_questions_are_of_three_kinds_in_turn_all_different_and_seeded(tmp_path):
    made = demo.questions()
    assert made == demo.questions()
    assert made != demo.questions(seed=1)
    assert [line["id"] for line in made[:4]] == ["arithmetic-0", "completion-0", "choice-0", "arithmetic-1"]
    assert len({line["prompt"] for line in made}) == len(made) == 72
    assert {line["grader"] for line in made} == {"numeric:first", "regex", "choice"}
    assert [item.line for item in read_items(demo.write_questions(tmp_path / "a" / "q.jsonl"))] == made
    with pytest.raises(InputError, match="completion"):
        demo.questions(100)


def test_right_answers_are_right_and_others_wrong():
    """As models write them: on the rest of the line, with a space before."""
    for item, question in zip(read_items(demo.questions()), demo.questions(), strict=True):
        word = question["answer"].removeprefix(r"(?i)^\W*").removesuffix(r"\b")
        wrong = {"choice": "BCA"["ABC".index(word)] if item.grader == "choice" else "", "regex": "none"}
        assert item.grade(f" {word}.").score == 1, item
        assert item.grade(f" {wrong.get(item.grader, word + '1')}.").score == 0, item


def test_a_shortened_model_is_the_model_without_those_layers(tmp_path):
    whole = tiny_models.save_tiny(tmp_path / "whole", "llama", "llama3", num_hidden_layers=4)
    folder = demo.shortened(tmp_path / "out" / "short", str(whole), (1, 2))
    short, full = (load(str(path), device="cpu", dtype="float32").model for path in (folder, whole))
    assert (short.config.num_hidden_layers, full.config.num_hidden_layers) == (2, 4)
    ids = torch.tensor([[5, 6, 7]])
    del full.model.layers[1:3]
    torch.testing.assert_close(short(ids, use_cache=False).logits, full(ids, use_cache=False).logits)
    before = (folder / "config.json").stat().st_mtime_ns
    assert demo.shortened(folder, str(whole), (1, 2)) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before  # made once: responses are kept by its files' times
    for without in ((4,), (0, 1, 2, 3)):
        with pytest.raises(InputError, match="4 layers"):
            demo.shortened(tmp_path / "out" / "other", str(whole), without)
    assert not (tmp_path / "out" / "other").exists()


def test_what_it_runs_is_said_in_words_for_a_shell():
    assert shell("\n") == "$'\\n'"
    assert shell("it's\n") == "$'it\\'s\\n'"
    assert shell("a b") == "'a b'"


@pytest.mark.real
@pytest.mark.slow
def test_one_command_reports_on_the_demo_models(tmp_path, monkeypatch, capsys):
    """Every number is recomputed from what it leaves; a second call runs nothing."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ensemble-decode", "determine", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        return capsys.readouterr()

    said = call("--demo", "--out", "study")
    study = tmp_path / "study"
    whole = json.loads((study / "report.json").read_text())
    items = [json.loads(line) for line in (study / "questions.jsonl").read_text().splitlines()]
    specs = [model["name"] for model in whole["models"]]
    assert specs == ["demo:smollm2", "demo:gemma3", "study/smollm2-short"]
    vocabs = [ed.ModelVocab.build(load_tokenizer(spec), name=spec) for spec in specs]
    check(whole, (study / "report.html").read_text(), study, specs, vocabs, items, common_words(10_000))
    assert "The same as: ensemble-decode determine" in said.err

    def load_again(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("ensemble_decode.determination.running.Ensemble.load", load_again)
    assert json.loads(call("--demo", "--out", "study", "--json").out) == whole
