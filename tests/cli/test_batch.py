"""`ensemble-decode batch` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import batches
from support.batches import results

import ensemble_decode as ed


def test_the_command_runs_a_job_and_reports_it(run, pair, tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 20)
    options = ["--method", "safe(draft_length=3)", "--batch-size", "4", "--memory", "64MiB", "--ids", "-n", "6"]
    code, out, err = run("batch", path, tmp_path / "out.jsonl", *pair, *options, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["rows"], summary["complete"]) == (20, True)
    assert summary["errors"] == {
        kind: sum(one["error_kind"] == kind for one in results(tmp_path / "out.jsonl")) for kind in summary["errors"]
    }
    assert summary["this_run"]["cache_limit_bytes"] <= 64 << 20
    assert "20/20 rows" in err  # plain lines where there is no terminal
    assert "tokens/s" in err
    library = ed.Ensemble.load([pair[1], pair[3]], device="cpu", dtype="float32", cache_dir=None)
    one = next(
        one
        for one in results(tmp_path / "out.jsonl")
        if one["error"] is None and "method" not in one and "prompt" in one
    )
    (done,) = library.generate([one["prompt"]], method=ed.SAFE(draft_length=3), max_new_tokens=one["max_new_tokens"])
    assert (one["text"], one["token_ids"]) == (done.text, done.token_ids)
    code, out, err = run("batch", path, tmp_path / "out.jsonl", *pair, *options)
    assert code == 0
    assert "20 rows" in out
    assert "nothing was left to do" in out
    code, _, err = run("batch", path, tmp_path / "out.jsonl", *pair, *options, "--method", "unite")
    assert code == 2
    assert "method" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in.jsonl", "out.jsonl"], "no model given"),
        (["in.jsonl", "out.txt", "-m", "x"], "the name must end in"),
        (["no.jsonl", "out.jsonl", "-m", "x"], "cannot be read"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--engine", "spark"], "expected local or ray"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--workers", "2"], "options of --engine ray"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--order", "random"], "--order"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--system-role", "none"], "--system-role"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--memory", "lots"], "memory 'lots'"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--strict"], "line 5"),
        (
            ["in.jsonl", "out.jsonl", "-m", "x", "--method", "unite(draft_length=3)"],
            "unite has no option 'draft_length'",
        ),
    ],
)
def test_wrong_usage_is_told_before_models_are_loaded(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    batches.write_lines(tmp_path / "in.jsonl", 10)
    code, _, err = run("batch", *arguments)
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.slow
def test_the_command_itself_killed_and_run_again(pair, tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 150)
    line = [Path(sys.executable).with_name("ensemble-decode"), "batch", path]
    options = [*pair, "-n", "6", "--batch-size", "4"]
    subprocess.run([*line, tmp_path / "whole.jsonl", *options], check=True, capture_output=True)
    killed = 0
    while not (tmp_path / "out.jsonl").exists() and killed < 8:
        process = subprocess.Popen([*line, tmp_path / "out.jsonl", *options], stderr=subprocess.PIPE, text=True)
        process.stderr.readline()
        process.kill()
        process.wait()
        killed += 1
    subprocess.run([*line, tmp_path / "out.jsonl", *options], check=True, capture_output=True)
    assert killed >= 3
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
