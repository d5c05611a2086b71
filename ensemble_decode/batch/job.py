"""A batch job from file to file: what it is, and how it runs on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ensemble_decode.batch.fields import BadField, Defaults, as_request, encode_result, error_result
from ensemble_decode.batch.output import Output
from ensemble_decode.batch.source import Line, format_of, identify, read_lines
from ensemble_decode.batch.summary import Summary
from ensemble_decode.decode.requests import BatchRequest, BatchResult, Order, as_stops, check_max_new_tokens
from ensemble_decode.errors import InputError
from ensemble_decode.sampling import Sampling

if TYPE_CHECKING:
    from ensemble_decode.decode.batch_run import BatchRun, Counts
    from ensemble_decode.ensemble import Ensemble


@dataclass(frozen=True)
class Job:
    """What a batch job depends on. ``models``: as ``Ensemble.load`` takes them, with ``load``: its other arguments.

    ``input`` and ``output`` end in ``.jsonl``, ``.jsonl.gz`` or ``.parquet``. ``ids``: write ``token_ids`` too. ``strict``: the first bad line stops the
    job. ``overwrite``: start anew whatever lies there. ``batch_size``, ``memory`` and ``prefill_tokens`` change the speed, no result.
    """

    input: Path
    output: Path
    models: Sequence[str]
    load: Mapping[str, Any] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)
    max_new_tokens: int = 128
    stop: Sequence[str] = ()
    chat: str = "template"
    system: str = "error"
    order: Order = "input"
    ids: bool = False
    strict: bool = False
    overwrite: bool = False
    batch_size: int = 32
    memory: int | float | str | None = None
    prefill_tokens: int = 2048

    def identity(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What the results depend on, as the manifest keeps it; ``found``: what identifies the input."""
        from ensemble_decode.version import __version__

        load = {name: _told(value) for name, value in self.load.items()}
        sampling = self.defaults.sampling
        return {
            "version": __version__,
            "input": dict(found),
            "models": [str(model) for model in self.models],
            "load": load,
            "method": self.defaults.method,
            "options": {name: _told(v) for name, v in (self.defaults.options or {}).items() if v is not None},
            "sampling": [sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p],
            "seed": sampling.seed,
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "chat": self.chat,
            "system": self.system,
            "order": self.order,
            "ids": self.ids,
        }

    def begin(self) -> Output:
        """Check everything that needs no model, and open the output. Raises ``InputError``."""
        format_of(self.output)
        self.defaults.build()
        check_max_new_tokens(self.max_new_tokens)
        as_stops(self.stop)
        if self.input.resolve() == self.output.resolve():
            raise InputError(f"{self.input}: input and output are the same file")
        found = identify(self.input)
        if self.strict:
            for line in read_lines(self.input):
                self.request(line)
        job = self.identity(found)
        output = Output(self.output, job, found["lines"], order=self.order, overwrite=self.overwrite)
        if output.job["seed"] is None:
            output.set_seed(secrets.randbits(62))
        return output

    def request(self, line: Line) -> BatchRequest:
        """The request of a line; ``BadField``, or where ``strict`` ``InputError`` with the line's number, for a bad one."""
        try:
            return as_request(line, self.defaults)
        except BadField as error:
            if self.strict:
                raise InputError(f"{self.input}: line {line.number}: {error}") from error
            raise

    def sampling(self, seed: int) -> Sampling:
        return replace(self.defaults.sampling, seed=seed)

    def start(self, ensemble: Ensemble, requests: Iterator[BatchRequest], seed: int) -> BatchRun:
        """The results of requests in this process, as they finish."""
        return ensemble.generate_batch(
            requests,
            method=self.defaults.build(),
            max_new_tokens=self.max_new_tokens,
            stop=list(self.stop),
            sampling=self.sampling(seed),
            batch_size=self.batch_size,
            memory=self.memory,
            order="finished",
            prefill_tokens=self.prefill_tokens,
            chat=self.chat,  # type: ignore[arg-type]
            system=self.system,  # type: ignore[arg-type]
        )

    def encode(self, result: BatchResult) -> bytes:
        line: Line = result.request.tag
        return encode_result(line, result.completion, result.error_kind, ids=self.ids)

    def refuse(self, line: Line, error: BadField) -> bytes:
        return error_result(line, error, len(self.models), ids=self.ids)


class Watcher(Protocol):
    """Sees a job run."""

    def note(self, text: str) -> None: ...

    def progress(self, done: int, lines: int, counts: Counts) -> None: ...


def run_local(job: Job, load: Callable[[], Ensemble], watcher: Watcher) -> Summary:
    """Run a job, or go on with it, on this machine; ``load`` is called once, and not where nothing is left to do.

    Whatever ends it early, the rows that are done are safe. Raises ``InputError`` and ``OutputError``.
    """
    return carry_out(job, watcher, lambda output, summary: _run(job, output, load, watcher, summary))


def carry_out(job: Job, watcher: Watcher, work: Callable[[Output, Summary], None]) -> Summary:
    """Open a job's output, let ``work`` write the results that are missing, if any, and finish the output."""
    output = job.begin()
    try:
        for note in output.notes:
            watcher.note(note)
        summary = Summary(str(job.input), str(job.output), output.tally["rows"])
        if not output.complete:
            if output.tally["rows"]:
                watcher.note(f"going on: {output.tally['rows']} of {len(output.done)} lines have their results")
            if output.done.count(0):
                work(output, summary)
            output.finish()
        return summary.end(output)
    finally:
        output.close()


def _run(job: Job, output: Output, load: Callable[[], Ensemble], watcher: Watcher, summary: Summary) -> None:
    ensemble = load()
    results = job.start(ensemble, _requests(job, output), output.job["seed"])
    results.on_step = output.flush_if_due
    try:
        for result in results:
            check_strict(job, result)
            output.add(result.request.tag.number, job.encode(result), result.error_kind)
            watcher.progress(output.taken, len(output.done), results.counts)
        output.flush()
        # lines that never became rows may have come last
        watcher.progress(output.taken, len(output.done), results.counts)
    except BaseException:
        output.flush_quietly()
        watcher.note(
            f"stopped: {output.tally['rows']} of {len(output.done)} lines have their results; the same command goes on"
        )
        raise
    finally:
        summary.count(results.counts, [model.name for model in ensemble.vocab.models], results.limits)
        results.close()


def check_strict(job: Job, result: BatchResult) -> None:
    """Raise ``InputError`` for a row in error where the job is strict."""
    if job.strict and result.error_kind is not None:
        raise InputError(f"{job.input}: line {result.request.tag.number}: {result.completion.error}")


def _requests(job: Job, output: Output) -> Iterator[BatchRequest]:
    for line in read_lines(job.input):
        if output.done[line.number - 1]:
            continue
        try:
            request = job.request(line)
        except BadField as error:
            output.add(line.number, job.refuse(line, error), error.kind)
        else:
            yield request


def _told(value: Any) -> Any:
    return (
        [_told(v) for v in value]
        if isinstance(value, (list, tuple))
        else value
        if isinstance(value, (int, float, bool)) or value is None
        else str(value)
    )
