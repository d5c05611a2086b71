"""A job on a real Ray cluster of this machine: two actors, one of them killed half-way."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from support import batches, tiny_models

from ensemble_decode.batch.job import Job, run_local
from ensemble_decode.batch.ray import Workers, run_ray
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import InputError

pytest.importorskip("ray")
LINES = 160


class Watching:
    def __init__(self):
        self.seen = 0
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def progress(self, done, lines, counts):
        self.seen = done


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    home = tmp_path_factory.mktemp("ray")
    folders = [
        tiny_models.save_tiny(home / name, family, tokens)
        for name, family, tokens in (("a", "llama", "llama3"), ("b", "gpt2", "gpt2"))
    ]
    path = batches.write_lines(home / "in.jsonl", LINES)
    load = {"device": "cpu", "dtype": "float32"}
    return Job(path, home / "out.jsonl", [str(folder) for folder in folders], load, max_new_tokens=8, batch_size=2)


def actors() -> list[int]:
    """Process ids of the running actors that hold models."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if name.startswith(b"ray::MapWorker(MapBatches(EnsembleWorker))") or b"EnsembleWorker" in name.split(b"\0")[0]:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_two_actors_one_killed_half_way(job, monkeypatch):
    import dataclasses

    from ensemble_decode.batch import ray as module

    monkeypatch.setattr(module, "_BATCHES", 5)
    whole = dataclasses.replace(job, output=job.output.with_name("whole.jsonl"))
    run_local(whole, lambda: Ensemble.load(job.models, **job.load), Watching())
    watching, killed = Watching(), []

    def kill():
        while not killed and watching.seen < LINES:
            running = actors()
            if watching.seen > LINES // 5 and len(running) == 2:
                os.kill(running[0], signal.SIGKILL)
                killed.append(running[0])
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    summary = run_ray(job, watching, Workers(count=2, cpus=0.5))
    watching.seen = LINES
    thread.join()
    assert killed
    assert summary.rows == LINES
    assert job.output.read_bytes() == whole.output.read_bytes()
    assert [json.loads(line)["line"] for line in job.output.read_bytes().splitlines()] == list(range(1, LINES + 1))
    assert run_ray(job, watching).this_run is None  # complete: no cluster is started


def test_workers_are_checked():
    with pytest.raises(InputError, match="at least 1"):
        Workers(count=0)


def test_the_worker_of_map_batches_equals_a_local_job(job):
    import numpy as np

    from ensemble_decode.batch.ray import EnsembleWorker

    raws = job.input.read_bytes().split(b"\n")[:12]
    out = EnsembleWorker(job, seed=0)({"number": np.arange(1, 13), "raw": np.array(raws, dtype=object)})
    assert sorted(out["number"]) == list(range(1, 13))
    ensemble = Ensemble.load(job.models, **job.load)
    for number, result, kind in zip(out["number"], out["result"], out["kind"], strict=True):
        told = json.loads(result)
        assert told["line"] == number
        assert (told["error_kind"] or "") == kind
        if not kind and "method" not in told:
            prompt = told.get("prompt") or told["messages"]
            (done,) = ensemble.generate([prompt], max_new_tokens=told["max_new_tokens"], stop=told.get("stop"))
            assert told["text"] == done.text
