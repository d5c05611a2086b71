"""The harness's own command line on the YAML tasks of this folder, in this process."""

import json
import sys
from pathlib import Path

import pytest

from ensemble_decode.cli import app as cli


@pytest.fixture
def documents():
    """The data of the tasks; a module may have its own."""
    return [
        {"question": "The quick brown", "options": ["fox", "press", "dog"], "answer": 0},
        {"question": "The printing", "options": ["cat", "press"], "answer": 1},
        {"question": "Größe und", "options": ["Länge", "Breite"], "answer": 0},
    ]


@pytest.fixture
def tasks(tmp_path, documents):
    """A folder of the YAML tasks on that data."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in documents), encoding="utf-8")
    home = tmp_path / "tasks"
    home.mkdir()
    for file in (Path(__file__).parent / "tasks").glob("*.yaml"):
        (home / file.name).write_text(file.read_text().replace("DATA", str(data)))
    return home


@pytest.fixture
def lm_eval(monkeypatch, tmp_path, tasks):
    """Run `ensemble-decode lm-eval`; results and samples by task."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")

    def run(*arguments):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        command = [
            "lm-eval",
            "run",
            *arguments,
            "--include_path",
            str(tasks),
            "--output_path",
            str(out),
            "--log_samples",
        ]
        monkeypatch.setattr(sys, "argv", ["ensemble-decode", *command])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        results = json.loads(next(out.rglob("results_*.json")).read_text())["results"]
        samples = {file.name.split("_20")[0].removeprefix("samples_"): file for file in out.rglob("samples_*.jsonl")}
        return results, samples

    return run
