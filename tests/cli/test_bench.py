"""``ensemble-decode bench`` from the command line, on tiny models in folders."""

import json

import pytest
from support import tiny_models, tokenizers


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    options = []
    for seed, name in enumerate(["llama3", "gemma"]):
        folder = tmp_path_factory.mktemp(name)
        tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=seed).save_pretrained(folder)
        tokenizers.build(name).save_pretrained(folder)
        options += ["-m", str(folder)]
    return options


def test_measures_prints_and_writes(run, pair, tmp_path):
    files = ["--json", tmp_path / "run.json", "--plots", tmp_path / "plots", "--html", tmp_path / "page.html"]
    names = ["-r", "single", "-r", "unite", "-r", "dictionary"]
    code, out, err = run("bench", *pair, *names, "--batch", "1", "--batch", "2", "-n", "6", "--rounds", "2", *files)
    assert code == 0, err
    assert "UniTE by dictionaries, one cache" in out
    assert "not measured at batch 2" in out
    assert "energy: not reported" in out
    record = json.loads((tmp_path / "run.json").read_text())
    sizes = {(cell["subject"], cell["batch"]) for cell in record["cells"]}
    assert sizes == {(name, batch) for name in ("single-0", "single-1", "unite") for batch in (1, 2)} | {
        ("dictionary", 1)
    }
    assert all(len(cell["samples"]) == 2 for cell in record["cells"])
    assert (tmp_path / "plots" / "time_split.png").is_file()
    assert (tmp_path / "page.html").is_file()
    again = run("bench", "report", tmp_path / "run.json")
    assert again[0] == 0
    assert again[1] == out
    record["run"]["id"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(record))
    code, _, err = run("bench", "report", tmp_path / "run.json", tmp_path / "other.json")
    assert code == 2
    assert "cannot be compared" in err


def test_quality(run, pair, tmp_path):
    code, out, err = run("bench", "quality", *pair, "--questions", "2", "--seed", "5", "--json", tmp_path / "q.json")
    assert code == 0, err
    assert "seed 5" in out
    assert "bits per byte" in out
    assert len(json.loads((tmp_path / "q.json").read_text())["answers"]) == 6


def test_predictions_say_that_they_are(run):
    code, out, _ = run("bench", "predict", "--pair", "llama3.1-70b", "--pair", "qwen2.5-72b", "--bits", "4")
    assert code == 0
    assert "PREDICTED, not measured" in out
    assert "does not fit" in out
    assert "mi300x" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["quality", "--questions", "0"], "--questions must be at least 1"),
        (["predict", "--pair", "gpt-9"], "there are qwen2.5-7b"),
        (["predict", "--bits", "0"], "--bits must be above 0"),
        (["report", "missing.json"], "missing.json"),
    ],
)
def test_refusals(run, arguments, words):
    code, _, err = run("bench", *arguments)
    assert code == 2
    assert words in err


def test_a_method_with_its_options_is_a_configuration(run, pair, tmp_path):
    options = ["-r", "unite(3)", "-n", "4", "--rounds", "1", "--json", tmp_path / "run.json"]
    code, out, err = run("bench", *pair, *options)
    assert code == 0, err
    assert "unite(top_k=3)" in out
    assert {cell["subject"] for cell in json.loads((tmp_path / "run.json").read_text())["cells"]} == {"unite(3)"}


def test_unknown_configurations_are_refused(run, pair):
    code, _, err = run("bench", *pair, "-r", "beam")
    assert code == 2
    assert "there are single, unite" in err
