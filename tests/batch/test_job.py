"""Jobs from file to file: killed at random moments, with bad lines, strict, from the command line."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from support import batches
from support.batches import results

import ensemble_decode as ed
from ensemble_decode.batch.job import Job, run_local

BATCH = 4


class Silent:
    def note(self, text):
        pass

    def progress(self, done, lines, counts):
        pass


def job(path: Path, output: str = "out.jsonl", **options) -> Job:
    return Job(
        path, path.with_name(output), list(batches.NAMES), **{"batch_size": BATCH, "max_new_tokens": 8} | options
    )


def run(job: Job):
    return run_local(job, batches.pair, Silent())


def test_every_line_has_one_result_and_it_is_what_its_prompt_gives_alone(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 40)
    summary = run(job(path, ids=True))
    lines, told = path.read_text().split("\n")[:-1], results(tmp_path / "out.jsonl")
    assert [one["line"] for one in told] == list(range(1, 41))
    assert summary.rows == 40
    bad = 0
    for line, one in zip(lines, told, strict=True):
        if one["error_kind"] in ("line", "prompt", "field"):
            bad += 1
            continue
        fields = json.loads(line)
        assert {key: one[key] for key in fields} == fields
        method = ed.SAFE(draft_length=3) if "method" in fields else ed.UniTE()
        (done,) = batches.pair().generate(
            [fields.get("prompt") or fields["messages"]],
            method=method,
            max_new_tokens=fields["max_new_tokens"],
            stop=fields.get("stop"),
        )
        assert (one["text"], one["token_ids"], one["finish_reason"]) == (done.text, done.token_ids, done.finish_reason)
        assert one["stats"]["rounds"] == done.stats.rounds
    assert bad == 8
    assert sum(summary.errors.values()) == bad
    run_ = summary.this_run
    assert run_["tokens"] == sum(len(one["token_ids"]) for one in told)
    assert [model["name"] for model in run_["models"]] == list(batches.NAMES)
    assert run_["cache_peak_bytes"] <= run_["cache_limit_bytes"]
    parts = run_["seconds_forward"] + run_["seconds_fusion"] + run_["seconds_host"]
    assert 0.3 * run_["seconds"] < parts <= run_["seconds"]


def _killed_once(one: Job, started: Path, delay: float) -> bool:
    """Run a job in a process of its own and kill it after a while; whether it was still running then."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)

        class Noting(Silent):
            def progress(self, done, lines, counts):
                with started.open("a") as file:
                    file.write(f"{os.getpid()} {counts.rows}\n")

        try:
            run_local(one, batches.pair, Noting())
        finally:
            os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _kill_often(tmp_path: Path, lines: int, kills: int, seed: int) -> None:
    path = batches.write_lines(tmp_path / "in.jsonl", lines, seed=seed)
    began = time.monotonic()
    run(job(path, "whole.jsonl"))
    usual = time.monotonic() - began
    draw, done, journal = random.Random(seed), 0, tmp_path / "journal"
    # Where a machine is faster than just now, the job is complete before it was killed so often: another attempt then.
    for attempt in range(kills):
        output = tmp_path / f"out{attempt}.jsonl"
        while done < kills and not output.exists():
            done += _killed_once(job(path, output.name), journal, draw.uniform(0, 2 * usual / kills))
        run(job(path, output.name))
        assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
        assert not output.with_name(output.name + ".part").exists()
        # each killed run may lose the rows that ran, and those that ended with them and were not on the disk yet
        finished: dict[str, int] = {}
        for record in journal.read_text().splitlines() if journal.exists() else ():
            process, rows = record.split()
            finished[process] = int(rows)
        assert sum(finished.values()) <= (attempt + 1) * lines + done * 2 * BATCH
        if done >= kills:
            break
    assert done >= kills
    assert [one["line"] for one in results(tmp_path / "whole.jsonl")] == list(range(1, lines + 1))


def test_killed_again_and_again_the_output_is_the_same(tmp_path):
    _kill_often(tmp_path, lines=60, kills=20, seed=3)


@pytest.mark.slow
def test_killed_from_outside_sixty_times(tmp_path):
    _kill_often(tmp_path, lines=600, kills=60, seed=4)


def test_interrupted_the_finished_rows_are_kept(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 40)

    class Interrupting(Silent):
        def progress(self, done, lines, counts):
            if counts.rows >= 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(job(path), batches.pair, Interrupting())
    notes = []

    class Noting(Silent):
        def note(self, text):
            notes.append(text)

    summary = run_local(job(path), batches.pair, Noting())
    assert any("going on" in note for note in notes)
    assert summary.rows == 40
    assert summary.this_run["rows"] <= 40 - 8 - 12
    assert run(job(path)).this_run is None


def test_a_sampled_job_goes_on_with_the_seed_it_began_with(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 30)
    hot = ed.Sampling(temperature=1.0)

    class Interrupting(Silent):
        def progress(self, done, lines, counts):
            if counts.rows >= 8:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(job(path, sampling=hot), batches.pair, Interrupting())
    run(job(path, sampling=hot))
    seed = json.loads((tmp_path / "out.jsonl.manifest").read_text().splitlines()[0])["job"]["seed"]
    run(job(path, "again.jsonl", sampling=ed.Sampling(temperature=1.0, seed=seed)))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_strict_stops_at_a_bad_line_before_any_model_is_loaded(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 30)
    with pytest.raises(ed.InputError, match=r"line 5: "):
        run_local(job(path, strict=True), lambda: pytest.fail("loaded"), Silent())
    assert not (tmp_path / "out.jsonl").exists()
    path.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "the cat " * 600}) + "\n")
    with pytest.raises(ed.InputError, match=r"line 2: the prompt has .* tokens in model"):
        run(job(path, "long.jsonl", strict=True))


def test_input_and_output_are_two_files(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 3)
    with pytest.raises(ed.InputError, match="same file"):
        run(job(path, "in.jsonl"))


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_one_line_files(tmp_path, count):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}' * count)  # no newline at the end
    assert run(job(path)).rows == count
    assert len(results(tmp_path / "out.jsonl")) == count


# -- inputs that grow ------------------------------------------------------------------------------------------------


class Growing(Silent):
    """Adds lines to the input as soon as a row has ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.notes, self.grown = path, [], False

    def note(self, text):
        self.notes.append(text)

    def progress(self, done, lines, counts):
        if not self.grown:
            self.grown = True
            with self.path.open("a") as file:
                file.writelines(f'{{"prompt": "new {n}"}}\n' for n in range(7))


def test_an_input_that_grows_while_the_job_runs(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 30)
    watcher = Growing(path)
    summary = run_local(job(path), batches.pair, watcher)
    assert (summary.rows, summary.complete) == (30, True)
    assert "has grown since the job began" in watcher.notes[-1]
    first = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(ed.InputError, match="has grown from 30 to 37 lines"):
        run(job(path))
    summary = run(job(path, append=True))
    assert (summary.rows, summary.this_run["rows"]) == (37, 7)
    assert (tmp_path / "out.jsonl").read_bytes().startswith(first)
    run(job(path, "whole.jsonl"))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert run(job(path)).this_run is None


def test_a_job_that_was_stopped_takes_the_new_lines_too(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 30)

    class Stopping(Growing):
        def progress(self, done, lines, counts):
            super().progress(done, lines, counts)
            if counts.rows >= 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(job(path), batches.pair, Stopping(path))
    assert run(job(path, append=True)).rows == 37
    run(job(path, "whole.jsonl"))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_pipe_as_input(tmp_path):
    path = batches.write_lines(tmp_path / "in.jsonl", 10)
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    data = path.read_bytes()
    thread = threading.Thread(target=lambda: pipe.write_bytes(data))
    thread.start()
    assert run(job(pipe)).rows == 10
    thread.join()
    run(job(path, "whole.jsonl"))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_every_number_in_the_output_is_json(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a", "score": 1e999}\n{"prompt": "a", "score": 1e308}\n{"score": -1e999}\n')
    summary = run(job(path, trace=True, logprobs=True))
    assert summary.errors == {"line": 2}
    for line in (tmp_path / "out.jsonl").read_bytes().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert results(tmp_path / "out.jsonl")[1]["score"] == 1e308


def test_a_job_s_method_needs_a_name(tmp_path):
    class Mine(ed.UniTE):
        pass

    path = batches.write_lines(tmp_path / "in.jsonl", 3)
    with pytest.raises(ed.InputError, match="Mine"):
        run(job(path, method=Mine()))
