"""A batch job from file to file: what it is, and how it runs on this machine."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, get_args

from ensemble_decode.batch.fields import BadField, Wanted, as_request, encode_result, error_result
from ensemble_decode.batch.finish import SHARD
from ensemble_decode.batch.formats import STANDARD, format_of
from ensemble_decode.batch.lines import Line
from ensemble_decode.batch.output import Output, check_target
from ensemble_decode.batch.results import Results, StandardOutput
from ensemble_decode.batch.source import Source, open_source
from ensemble_decode.batch.summary import Summary
from ensemble_decode.decode.batch_run import BatchRun, Counts
from ensemble_decode.decode.prompts import ChatMode, Rendering, SystemMode
from ensemble_decode.decode.requests import BatchRequest, BatchResult, Order, check_limits
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.methods import Method, UniTE
from ensemble_decode.methods.options import describe
from ensemble_decode.settings import Sampling
from ensemble_decode.version import __version__

SHARD_ROWS = 100_000
"""Rows per file of an output in shards, where nothing else is asked for."""


class TooManyErrors(EnsembleError):
    """More rows than ``max_errors`` are errors. The results so far are safe."""


@dataclass(frozen=True)
class Job:
    """What a batch job depends on.

    Attributes:
        input: Lines with a prompt each, in a format that the name tells; ``-`` is standard input.
        output: Where the results go, likewise; ``{shard}`` in the name makes several files, ``-`` is standard output.
        models: As ``Ensemble.load`` takes them.
        load: Its other arguments.
        method: Of lines that name none.
        sampling: Of lines that change nothing about it.
        max_new_tokens: The most tokens of the primary, of lines that say nothing else.
        stop: Stop strings, of lines that have none.
        chat: How chat messages become prompts, as in ``Ensemble.generate``.
        system: What becomes of a system message that a template refuses, as there.
        order: Of the output: "input", or "finished": as rows end.
        ids: Write ``token_ids``.
        logprobs: Write ``logprobs``, the logarithm of the probability of every choice.
        trace: Write ``trace``, every step's candidates and choice.
        shard_rows: Rows per file, where the output's name has ``{shard}``; None: ``SHARD_ROWS``.
        strict: The first bad line stops the job.
        max_errors: So many rows may be errors; one more stops the job. None: any number.
        overwrite: Start anew, whatever the output holds.
        append: Where lines have been added to the end of the input since the job began, do them too.
        batch_size: Rows at a time, at most. Changes the speed, no result; so do the next two.
        memory: What all KV caches may take, as in ``Ensemble.generate_batch``.
        prefill_tokens: Prompt tokens that are read in one round, at most.
    """

    input: Path
    output: Path
    models: Sequence[str]
    load: Mapping[str, Any] = field(default_factory=dict)
    method: Method = field(default_factory=UniTE)
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    stop: Sequence[str] = ()
    chat: ChatMode = "template"
    system: SystemMode = "error"
    order: Order = "input"
    ids: bool = False
    logprobs: bool = False
    trace: bool = False
    shard_rows: int | None = None
    strict: bool = False
    max_errors: int | None = None
    overwrite: bool = False
    append: bool = False
    batch_size: int = 32
    memory: int | float | str | None = None
    prefill_tokens: int = 2048

    @property
    def wanted(self) -> Wanted:
        """What a line of output has beside its text."""
        return Wanted(self.ids, self.logprobs, self.trace)

    def check(self) -> None:
        """Check everything that needs no file and no model.

        Raises:
            InputError: A setting cannot be used, or two exclude each other.
        """
        format_of(self.input)
        format_of(self.output)
        if self.order not in get_args(Order):
            raise InputError(f"order must be one of {', '.join(map(repr, get_args(Order)))}, got {self.order!r}")
        Rendering(self.chat, self.system)
        check_limits(self.max_new_tokens, self.stop)
        describe(self.method)
        for name, value, least in (("shard_rows", self.shard_rows, 1), ("max_errors", self.max_errors, 0)):
            if value is not None and value < least:
                raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.shard_rows is not None and SHARD not in self.output.name:
            raise InputError(f"shard_rows needs an output with {SHARD} in its name, such as out-{SHARD}.jsonl")
        if self.append and self.overwrite:
            raise InputError("append goes on with an output and overwrite replaces it; expected one of them")
        if self.output == STANDARD and (self.append or self.overwrite):
            raise InputError("append and overwrite need an output that is a file; standard output keeps nothing")

    def identity(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What the results depend on, as the manifest keeps it.

        Args:
            found: What identifies the input.
        """
        sampling = self.sampling
        return {
            "version": __version__,
            "input": dict(found),
            "models": [str(model) for model in self.models],
            "load": {name: _told(value) for name, value in self.load.items()},
            "method": describe(self.method),
            "sampling": [sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p],
            "seed": sampling.seed,
            "max_new_tokens": self.max_new_tokens,
            "stop": list(check_limits(stop=self.stop).stop),
            "chat": self.chat,
            "system": self.system,
            "order": self.order,
            "ids": self.ids,
            "logprobs": self.logprobs,
            "trace": self.trace,
        }

    def begin(self, source: Source) -> Results:
        """Open the output for the results of an input.

        Raises:
            InputError: Input and output are one file, the output is another job's, or the job is strict and a line bad.
            OutputError: The output cannot be written.
        """
        job = self.identity(source.identity)
        results: Results
        if self.output == STANDARD:
            results = StandardOutput(sys.stdout.buffer, job, source.lines, order=self.order)
        else:
            if source.path.resolve() == check_target(self.output):
                raise InputError(f"{self.input}: input and output are the same file")
            if self.strict:
                for line in source.read():
                    self.request(line)
            results = Output(
                self.output,
                job,
                source.lines,
                order=self.order,
                overwrite=self.overwrite,
                append=self.append,
                continues=source.continues,
                shard_rows=(self.shard_rows or SHARD_ROWS) if SHARD in self.output.name else None,
            )
        if results.job["seed"] is None:
            results.set_seed(secrets.randbits(62))
        return results

    def request(self, line: Line) -> BatchRequest:
        """The request of a line.

        Raises:
            BadField: The line is bad.
            InputError: The line is bad and the job strict; the message has the line's number.
        """
        try:
            return as_request(line, self.sampling, self.wanted.steps)
        except BadField as error:
            if self.strict:
                raise InputError(f"{self.input}: line {line.number}: {error}") from error
            raise

    def start(self, ensemble: Ensemble, requests: Iterator[BatchRequest], seed: int) -> BatchRun:
        """The results of requests in this process, as they finish.

        Args:
            ensemble: The job's models.
            requests: What ``request`` gives.
            seed: Of lines that have none of their own.
        """
        return ensemble.generate_batch(
            requests,
            method=self.method,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            sampling=replace(self.sampling, seed=seed),
            batch_size=self.batch_size,
            memory=self.memory,
            order="finished",
            prefill_tokens=self.prefill_tokens,
            chat=self.chat,
            system=self.system,
        )

    def encode(self, result: BatchResult) -> bytes:
        """The line of output of a result."""
        return encode_result(result.request.tag, result.completion, result.error_kind, self.wanted)

    def refuse(self, line: Line, error: BadField) -> bytes:
        """The line of output of a line that never became a request."""
        return error_result(line, error, len(self.models), self.wanted)

    def check_errors(self, results: Results) -> None:
        """Stop where too many rows are errors.

        Raises:
            TooManyErrors: More than ``max_errors`` are.
        """
        if self.max_errors is not None and results.failed > self.max_errors:
            raise TooManyErrors(
                f"{results.failed} of {results.taken} rows are errors, and max_errors allows {self.max_errors}; "
                f"'error' in {results.name} says why"
            )


class Watcher(Protocol):
    """Sees a job run."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def progress(self, done: int, lines: int, counts: Counts) -> None:
        """So many of all lines have their result; ``counts`` are of this run."""


def run_local(job: Job, load: Callable[[], Ensemble], watcher: Watcher) -> Summary:
    """Run a job, or go on with it, on this machine. Whatever ends it early, the rows that are done are safe.

    Args:
        job: The job.
        load: Gives the models; called once, and not where nothing is left to do.
        watcher: Sees it run.

    Raises:
        InputError: A setting, the input or the output cannot be used; or the job is strict, and a line is bad.
        OutputError: The output cannot be written.
        TooManyErrors: More rows than the job allows are errors.
    """
    return carry_out(job, watcher, lambda source, results, summary: _run(job, source, results, load, watcher, summary))


def carry_out(job: Job, watcher: Watcher, work: Callable[[Source, Results, Summary], None]) -> Summary:
    """Open a job's input and output, let ``work`` add the results that are missing, if any, and finish the output.

    Args:
        job: The job.
        watcher: Sees it run.
        work: Adds the result of every line that has none.

    Raises:
        As ``run_local``.
    """
    job.check()
    with open_source(job.input, watcher.note) as source:
        results = job.begin(source)
        try:
            for note in results.notes:
                watcher.note(note)
            summary = Summary(str(job.input), str(job.output))
            job.check_errors(results)
            if not results.complete:
                if results.taken:
                    watcher.note(f"going on: {results.taken} of {len(results.done)} lines have their results")
                if results.done.count(0):
                    work(source, results, summary)
                results.finish()
            if source.has_grown():
                watcher.note(
                    f"{source.name} has grown since the job began: the lines that were added have no results; the same "
                    "command with append does them"
                )
            summary.rows, summary.errors = results.tally["rows"], dict(results.tally["errors"])
            summary.complete = results.complete
            return summary
        finally:
            results.close()


def _run(
    job: Job, source: Source, results: Results, load: Callable[[], Ensemble], watcher: Watcher, summary: Summary
) -> None:
    ensemble = load()
    run = job.start(ensemble, requests(job, source, results), results.job["seed"])
    run.on_step = results.flush_if_due
    try:
        for result in run:
            check_strict(job, result)
            results.add(result.request.tag.number, job.encode(result), result.error_kind)
            job.check_errors(results)
            watcher.progress(results.taken, len(results.done), run.counts)
        results.flush()
        # lines that never became rows may have come last
        watcher.progress(results.taken, len(results.done), run.counts)
    except BaseException:
        results.flush_quietly()
        watcher.note(results.stopped())
        raise
    finally:
        summary.count(run.counts, [model.name for model in ensemble.vocab.models], run.limits)
        run.close()


def check_strict(job: Job, result: BatchResult) -> None:
    """Stop a strict job at a row that is an error.

    Raises:
        InputError: The job is strict and the row is one.
    """
    if job.strict and result.error_kind is not None:
        raise InputError(f"{job.input}: line {result.request.tag.number}: {result.completion.error}")


def requests(job: Job, source: Source, results: Results) -> Iterator[BatchRequest]:
    """The requests of the lines that have no result yet; a line that is bad in itself gets its result here.

    Raises:
        InputError: The job is strict and a line is bad.
        TooManyErrors: More lines than the job allows are errors.
    """
    for line in source.read():
        if results.done[line.number - 1]:
            continue
        try:
            request = job.request(line)
        except BadField as error:
            results.add(line.number, job.refuse(line, error), error.kind)
            job.check_errors(results)
        else:
            yield request


def _told(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_told(v) for v in value]
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)
