"""A batch job over many machines with Ray Data: one actor per set of devices, results written by the one process that began it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ensemble_decode.batch.fields import BadField
from ensemble_decode.batch.job import Job, Watcher, carry_out, check_strict
from ensemble_decode.batch.output import Output
from ensemble_decode.batch.source import read_lines
from ensemble_decode.batch.summary import Summary
from ensemble_decode.errors import EnsembleError, InputError

if TYPE_CHECKING:
    from ensemble_decode.decode.batch_run import Counts

_BATCHES = 8  # rows of one task, in batches: what an actor takes at a time, and loses when it dies


@dataclass(frozen=True)
class Workers:
    """The actors of a job: how many, and what Ray reserves for each. One actor holds all models of the ensemble."""

    count: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1 or self.cpus < 0 or self.gpus < 0:
            raise InputError(f"workers must be at least 1, their CPUs and GPUs not negative; got {self}")


class EnsembleWorker:
    """The models of a job, loaded once, for ``ray.data.Dataset.map_batches``.

    ``dataset.map_batches(EnsembleWorker, fn_constructor_kwargs={"job": job, "seed": 0}, batch_size=256,
    compute=ray.data.ActorPoolStrategy(size=2))``. A batch has the
    columns ``number`` (the line, from 1) and ``raw`` (its JSON as bytes); what comes back has ``number``, ``result`` (a line of output as
    bytes), ``kind`` (of error, "" for none) and ``counts`` (the batch's ``Counts`` as JSON, in its first row). Rows are decoded by
    continuous batching of ``job.batch_size``. A bad line is an error row; with ``job.strict`` it raises.
    """

    def __init__(self, job: Job, seed: int) -> None:
        from ensemble_decode.ensemble import Ensemble
        from ensemble_decode.members.transformers.remarks import quiet_libraries

        quiet_libraries()
        self._job, self._seed = job, seed
        self._ensemble = Ensemble.load(list(job.models), **job.load)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        import json

        import numpy as np

        from ensemble_decode.batch.source import parse_line

        job, numbers, results = self._job, [], []
        kinds: list[str] = []
        lines = [parse_line(int(n), bytes(raw)) for n, raw in zip(batch["number"], batch["raw"], strict=True)]
        requests = []
        for line in lines:
            try:
                requests.append(job.request(line))
            except BadField as error:
                numbers.append(line.number)
                results.append(job.refuse(line, error))
                kinds.append(error.kind)
        run = job.start(self._ensemble, iter(requests), self._seed)
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
    """Run a job, or go on with it, on a Ray cluster: ``address`` as ``ray.init`` takes it, None for one on this machine.

    This process reads the input and writes the output under the same manifest as ``run_local``; the two may take turns at one job.
    Actors that die are started again, as Ray Data does by default, and the batches they had are done again; Ray Data holds back what actors are not ready for.
    Model names must mean the same on every machine. Raises as ``run_local``, and ``InputError`` where Ray is missing.
    """
    ray = _import_ray()
    workers = workers or Workers()
    job = replace(job, output=job.output.absolute(), input=job.input.absolute())

    def work(output: Output, summary: Summary) -> None:
        ours = not ray.is_initialized()
        if ours:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        try:
            _run(ray, job, output, watcher, workers, summary)
        finally:
            if ours:
                ray.shutdown()

    return carry_out(job, watcher, work)


def _run(ray: Any, job: Job, output: Output, watcher: Watcher, workers: Workers, summary: Summary) -> None:
    import json
    import logging
    import time

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = job.batch_size * _BATCHES
    tables = list(_tables(job, output, rows, workers.count))
    began, total = time.perf_counter(), None
    dataset = ray.data.from_arrow(tables).map_batches(
        EnsembleWorker,
        fn_constructor_kwargs={"job": job, "seed": output.job["seed"]},
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=workers.count),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus or None,
    )
    try:
        for block in dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
            for number, result, kind, told in zip(
                *(block[c] for c in ("number", "result", "kind", "counts")), strict=True
            ):
                if told:
                    total = _added(total, json.loads(told))
                    total.seconds = time.perf_counter() - began
                output.add(int(number), bytes(result), kind or None)
            if total is not None:
                watcher.progress(output.taken, len(output.done), total)
        output.flush()
    except BaseException as error:
        output.flush_quietly()
        watcher.note(
            f"stopped: {output.tally['rows']} of {len(output.done)} lines have their results; the same command goes on"
        )
        ours = _our_error(error)
        if ours is not None and ours is not error:
            raise ours from error
        raise
    finally:
        if total is not None:
            summary.count(total, [str(model) for model in job.models])


def _tables(job: Job, output: Output, rows: int, workers: int) -> Iterator[Any]:
    """The lines without a result, as blocks of about ``rows``, and at least as many blocks as workers."""
    import json

    import pyarrow

    left = output.done.count(0)
    rows = max(1, min(rows, -(-left // (2 * workers))))
    numbers: list[int] = []
    raws: list[bytes] = []
    for line in read_lines(job.input):
        if output.done[line.number - 1]:
            continue
        if line.fields is None:
            error = BadField(line.error or "the line cannot be read", "line")
            if job.strict:
                raise InputError(f"{job.input}: line {line.number}: {error}")
            output.add(line.number, job.refuse(line, error), "line")
            continue
        numbers.append(line.number)
        raws.append(json.dumps(line.fields).encode())
        if len(numbers) == rows:
            yield pyarrow.table({"number": numbers, "raw": pyarrow.array(raws, pyarrow.binary())})
            numbers, raws = [], []
    if numbers:
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


def _added(total: Counts | None, told: dict[str, Any]) -> Counts:
    """The counts of one more batch added to those so far."""
    from ensemble_decode.decode.batch_run import Counts

    more = Counts(**told)
    if total is None:
        return more
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
        raise InputError("--engine ray needs Ray: pip install 'ensemble-decode[ray]'") from error
    return ray


__all__ = ["EnsembleWorker", "Workers", "run_ray"]
