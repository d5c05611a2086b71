"""A batch job over many machines with Ray Data: actors decode, and the process that began the job writes the
results."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ensemble_decode.batch.fields import BadField
from ensemble_decode.batch.job import Job, Watcher, carry_out, check_strict, requests
from ensemble_decode.batch.lines import parse_line
from ensemble_decode.batch.results import Results
from ensemble_decode.batch.source import Source
from ensemble_decode.batch.summary import Summary
from ensemble_decode.decode.batch_run import Counts
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.members.transformers.remarks import quiet_libraries

_BATCHES = 8  # rows of one task, in batches: what an actor takes at a time, and loses when it dies


@dataclass(frozen=True)
class Workers:
    """The actors of a job. Each holds all models of the ensemble.

    Attributes:
        count: How many there are.
        cpus: CPUs that Ray reserves for each.
        gpus: GPUs that Ray reserves for each.

    Raises:
        InputError: ``count`` is below 1, or a number negative.
    """

    count: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.cpus < 0 or self.gpus < 0:
            raise InputError(f"workers must be at least 1, their CPUs and GPUs not negative; got {self}")


class EnsembleWorker:
    """The models of a job, loaded once, for ``ray.data.Dataset.map_batches``.

    ``dataset.map_batches(EnsembleWorker, fn_constructor_kwargs={"job": job, "seed": 0}, batch_size=256,
    compute=ray.data.ActorPoolStrategy(size=2))``.
    """

    def __init__(self, job: Job, seed: int) -> None:
        """Load the models.

        Args:
            job: Everything but its input and output is used.
            seed: Of the lines that have none of their own.
        """
        quiet_libraries()
        self._job, self._seed = job, seed
        self._ensemble = Ensemble.load(list(job.models), **job.load)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The results of a batch of lines, by continuous batching of ``job.batch_size``.

        Args:
            batch: The columns ``number`` (of the line, from 1) and ``raw`` (its JSON as bytes).

        Returns:
            The columns ``number``, ``result`` (a line of output as bytes), ``kind`` (of its error, "" for none) and
            ``counts`` (of the whole batch, as JSON, in its first row; "" in the others). A bad line is an error row.

        Raises:
            InputError: The job is strict and a line is bad.
        """
        job, numbers, results = self._job, [], []
        kinds: list[str] = []
        lines = [parse_line(int(n), bytes(raw)) for n, raw in zip(batch["number"], batch["raw"], strict=True)]
        good = []
        for line in lines:
            try:
                good.append(job.request(line))
            except BadField as error:
                numbers.append(line.number)
                results.append(job.refuse(line, error))
                kinds.append(error.kind)
        run = job.start(self._ensemble, iter(good), self._seed)
        for result in run:
            check_strict(job, result)
            numbers.append(result.request.tag.number)
            results.append(job.encode(result))
            kinds.append(result.error_kind or "")
        counts = json.dumps(asdict(run.counts))
        run.close()
        return {
            "number": np.array(numbers, dtype=np.int64),
            "result": np.array(results, dtype=object),
            "kind": np.array(kinds, dtype=object),
            "counts": np.array([counts] + [""] * (len(numbers) - 1), dtype=object),
        }


def run_ray(job: Job, watcher: Watcher, workers: Workers | None = None, address: str | None = None) -> Summary:
    """Run a job, or go on with it, on a Ray cluster.

    This process reads the input and writes the output, under the same manifest as ``run_local``; the two may take turns
    at one job. Ray Data holds back what actors are not ready for, starts dead actors again, and repeats their batches.

    Args:
        job: The job. Names of models must mean the same on every machine.
        watcher: Sees it run.
        workers: The actors; default: one, on a CPU.
        address: The cluster, as ``ray.init`` takes it; None: one on this machine.

    Raises:
        InputError: Ray is missing; and as ``run_local``, as do the next two.
        OutputError: The output cannot be written.
        TooManyErrors: More rows than the job allows are errors.
    """
    ray = _import_ray()
    actors = workers or Workers()

    def work(source: Source, results: Results, summary: Summary) -> None:
        ours = not ray.is_initialized()
        if ours:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        try:
            _run(ray, job, source, results, watcher, actors, summary)
        finally:
            if ours:
                ray.shutdown()

    return carry_out(job, watcher, work)


def _run(
    ray: Any, job: Job, source: Source, results: Results, watcher: Watcher, workers: Workers, summary: Summary
) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    began, total = 0.0, None
    try:
        rows = max(1, min(job.batch_size * _BATCHES, -(-results.done.count(0) // (2 * workers.count))))
        tables = list(_tables(job, source, results, rows))
        if not tables:  # every line was bad in itself
            results.flush()
            return
        dataset = ray.data.from_arrow(tables).map_batches(
            EnsembleWorker,
            fn_constructor_kwargs={"job": job, "seed": results.job["seed"]},
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=workers.count),
            num_cpus=workers.cpus,
            num_gpus=workers.gpus or None,
        )
        for block in dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
            columns = (block[name] for name in ("number", "result", "kind", "counts"))
            for number, result, kind, told in zip(*columns, strict=True):
                if told:
                    more = Counts(**json.loads(told))
                    began = began or time.perf_counter() - more.seconds  # not while the actors loaded their models
                    total = more if total is None else _added(total, more)
                    total.seconds = time.perf_counter() - began
                results.add(int(number), bytes(result), kind or None)
                job.check_errors(results)
            if total is not None:
                total.most_running = workers.count * rows  # before each actor has ended a block, there is no telling
                watcher.progress(results.taken, len(results.done), total)
        results.flush()
    except BaseException as error:
        results.flush_quietly()
        watcher.note(results.stopped())
        ours = _our_error(error)
        if ours is not None and ours is not error:
            raise ours from error
        raise
    finally:
        if total is not None:
            summary.count(total, [str(model) for model in job.models])


def _tables(job: Job, source: Source, results: Results, rows: int) -> Iterator[Any]:
    """The lines without a result, in blocks of ``rows``; bad ones get theirs here."""
    import pyarrow

    lines = (request.tag for request in requests(job, source, results))
    while block := list(itertools.islice(lines, rows)):
        raws = [json.dumps(line.fields, allow_nan=False).encode() for line in block]
        numbers = [line.number for line in block]
        yield pyarrow.table({"number": numbers, "raw": pyarrow.array(raws, pyarrow.binary())})


def _our_error(error: BaseException | None) -> EnsembleError | None:
    """The error of this package that an actor died of, under what Ray has wrapped around it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, EnsembleError):
            return error
        seen.add(id(error))
        error = getattr(error, "cause", None) or error.__cause__
    return None


def _added(total: Counts, more: Counts) -> Counts:
    """The counts of one more batch added to those so far."""
    for field in fields(Counts):
        one, other = getattr(total, field.name), getattr(more, field.name)
        if isinstance(one, list):
            setattr(total, field.name, [a + b for a, b in zip(one, other, strict=True)])
        elif isinstance(one, dict):
            setattr(total, field.name, {k: one.get(k, 0) + other.get(k, 0) for k in {**one, **other}})
        elif field.name in ("cache_bytes", "peak_cache_bytes"):
            setattr(total, field.name, max(one, other))  # of one actor
        else:
            setattr(total, field.name, one + other)
    return total


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError("a job on Ray needs it installed: pip install 'ensemble-decode[ray]'") from error
    return ray


__all__ = ["EnsembleWorker", "Workers", "run_ray"]
