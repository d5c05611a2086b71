"""`ensemble-decode batch` from the command line."""

import gzip
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
    assert code == 3, err  # a fifth of the lines is bad
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
    assert code == 3
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
        (["in.jsonl", "out.jsonl", "-m", "x", "--shard-rows", "5"], "shard_rows needs an output with {shard}"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--append", "--overwrite"], "expected one of them"),
        (["in.jsonl", "-", "-m", "x", "--append"], "standard output keeps nothing"),
        (["in.jsonl", "out.jsonl", "-m", "x", "--max-errors", "-1"], "max_errors must be an integer of at least 0"),
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


@pytest.mark.parametrize(
    ("lines", "code"),
    [(["a", "b"], 0), (["a", None], 3), ([None, None], 1), ([], 0)],
)
def test_exit_codes_say_what_was_done(run, pair, tmp_path, lines, code):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in lines))
    assert run("batch", path, tmp_path / "out.jsonl", *pair, "-n", "2")[0] == code


def test_too_many_errors_stop_the_job_and_it_goes_on_with_more(run, pair, tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 20)
    line = ["batch", path, tmp_path / "out.jsonl", *pair, "-n", "2"]
    code, _, err = run(*line, "--max-errors", "1")
    assert code == 1
    assert "2 of " in err
    assert "max_errors allows 1" in err
    code, _, err = run(*line, "--max-errors", "1")  # at once
    assert code == 1
    assert not (tmp_path / "out.jsonl").exists()
    code, _, err = run(*line, "--max-errors", "4")
    assert code == 3, err
    assert len(results(tmp_path / "out.jsonl")) == 20


def test_from_standard_input_to_standard_output(pair, tmp_path):
    """The results alone are on standard output, in order; the report is not."""
    path = batches.write_lines(tmp_path / "in.jsonl", 12)
    command = [
        Path(sys.executable).with_name("ensemble-decode"),
        "batch",
        "-",
        "-",
        *pair,
        "-n",
        "4",
        "--ids",
        "--json",
    ]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True)
    assert done.returncode == 3, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["line"] for line in lines] == list(range(1, 13))
    report = json.loads(done.stderr.splitlines()[-1])
    assert (report["rows"], report["output"], report["exit_code"]) == (12, "-", 3)


def test_logprobs_traces_and_shards(run, pair, library, tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("prompt,max_new_tokens\n" + "".join(f"item {n},{n}.0\n" for n in range(1, 6)))
    output = tmp_path / "out-{shard}.jsonl.gz"
    code, _, err = run("batch", path, output, *pair, "--logprobs", "--trace", "--shard-rows", "2")
    assert code == 0, err
    shards = sorted(tmp_path.glob("out-0*.jsonl.gz"))
    rows = [json.loads(line) for shard in shards for line in gzip.decompress(shard.read_bytes()).splitlines()]
    assert len(shards) == 3
    for number, row in enumerate(rows, 1):
        (done,) = library.generate([f"item {number}"], max_new_tokens=number, trace=True)
        assert row["text"] == done.text
        assert [step["chosen"] for step in row["trace"]] == [
            s.chosen.decode(errors="backslashreplace") for s in done.trace
        ]
        assert len(row["logprobs"]) == len(done.trace)
        assert all(value < 0 for value in row["logprobs"])


@pytest.mark.slow
def test_the_command_itself_killed_and_run_again(pair, tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 150)
    line = [Path(sys.executable).with_name("ensemble-decode"), "batch", path]
    options = [*pair, "-n", "6", "--batch-size", "4"]
    assert subprocess.run([*line, tmp_path / "whole.jsonl", *options], capture_output=True).returncode == 3
    killed = 0
    while not (tmp_path / "out.jsonl").exists() and killed < 8:
        process = subprocess.Popen([*line, tmp_path / "out.jsonl", *options], stderr=subprocess.PIPE, text=True)
        process.stderr.readline()
        process.kill()
        process.wait()
        killed += 1
    assert subprocess.run([*line, tmp_path / "out.jsonl", *options], capture_output=True).returncode == 3
    assert killed >= 3
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
