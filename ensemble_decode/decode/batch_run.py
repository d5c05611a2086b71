"""``BatchRun``: rows of any number of requests through the scheduler, results as they end or in order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, get_args

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.engine import Engine
from ensemble_decode.decode.loop import run
from ensemble_decode.decode.prompts import ChatMode, Prompt, SystemMode
from ensemble_decode.decode.requests import BatchRequest, BatchResult, Order, as_stops, check_max_new_tokens, check_seed
from ensemble_decode.decode.scheduler import Scheduler
from ensemble_decode.decode.sequence import Request, Row
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.members.memory import cache_limits
from ensemble_decode.members.protocol import Member
from ensemble_decode.methods import Method
from ensemble_decode.methods.base import participants
from ensemble_decode.outputs import Completion, ErrorKind
from ensemble_decode.sampling import Sampling
from ensemble_decode.vocab.aligned import AlignedVocab

_AHEAD = 16  # batches of finished rows that may wait for an earlier row


class Models(Protocol):
    """What a run needs of an ensemble."""

    @property
    def runners(self) -> Sequence[Member]:
        """The models; the first is the primary."""

    @property
    def vocab(self) -> AlignedVocab:
        """Their vocabularies, aligned."""

    @property
    def weights(self) -> Sequence[float]:
        """One weight per model; they sum to 1."""

    def make_row(
        self, prompt: Prompt, request: Request, method: Method, used: Sequence[int], chat: ChatMode, system: SystemMode
    ) -> Row:
        """A row of ``method`` for a prompt, which has already failed where the prompt cannot be used."""


@dataclass
class Counts:
    """A run so far.

    Attributes:
        rows: Rows that have ended, with or without an error.
        running: Rows that are being written now.
        tokens: Tokens of the rows that have ended.
        ensembled: Those of them that several models chose together.
        drafted: Tokens that were drafted, of the rows that have ended.
        accepted: Those of them that were accepted.
        errors: Rows in error by kind.
        forwards: Forwards of each model, for rows that still run too.
        forwarded: Tokens in these forwards, per model.
        prefix_tokens_reused: Tokens of prompts that were copied from another row instead of being forwarded, per model.
        forward_seconds: Seconds in forwards per model, of the rows that have ended.
        fusion_seconds: Seconds in the operators, of the rows that have ended.
        host_seconds: Seconds in everything else, of the rows that have ended.
        seconds: Seconds since the first result was asked for.
        rounds: Rounds of decoding.
        cache_bytes: What the caches hold now.
        peak_cache_bytes: The most that they have held, the copies of growing caches included.
        put_back: How often a row had to make room for others.
        failed_allocations: How often an allocation failed and the batch was halved.
    """

    rows: int = 0
    running: int = 0
    tokens: int = 0
    ensembled: int = 0
    drafted: int = 0
    accepted: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    forwards: list[int] = field(default_factory=list)
    forwarded: list[int] = field(default_factory=list)
    prefix_tokens_reused: list[int] = field(default_factory=list)
    forward_seconds: list[float] = field(default_factory=list)
    fusion_seconds: float = 0.0
    host_seconds: float = 0.0
    seconds: float = 0.0
    rounds: int = 0
    cache_bytes: int = 0
    peak_cache_bytes: int = 0
    put_back: int = 0
    failed_allocations: int = 0

    def add(self, completion: Completion, kind: ErrorKind | None) -> None:
        """Count a finished row in."""
        stats = completion.stats
        self.rows += 1
        self.tokens += len(completion.token_ids)
        self.ensembled += stats.ensembled
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.fusion_seconds += stats.fusion_seconds
        self.host_seconds += stats.host_seconds
        for m, seconds in enumerate(stats.forward_seconds):
            self.forward_seconds[m] += seconds
        if kind is not None:
            self.errors[kind] = self.errors.get(kind, 0) + 1


class BatchRun(Iterator[BatchResult]):
    """The results of ``Ensemble.generate_batch``, an iterator; it begins with the first result that is asked for.

    Until then it holds nothing: no cache is limited and no prompt is read.

    Attributes:
        limits: Bytes that the cache of each model may take.
        seed: The seed of the rows that have none of their own.
        on_step: Called whenever rows have moved, even where none has ended; None: not wanted.
    """

    def __init__(
        self,
        ensemble: Models,
        requests: Iterable[Prompt | BatchRequest],
        *,
        method: Method,
        max_new_tokens: int,
        stop: object,
        sampling: Sampling,
        batch_size: int,
        memory: int | float | str | None,
        order: Order,
        prefill_tokens: int,
        share_prefixes: bool,
        chat: ChatMode,
        system: SystemMode,
    ) -> None:
        if isinstance(requests, str):
            raise InputError(
                "generate_batch: pass an iterable of prompts; a single string is one prompt, put it into a list"
            )
        for name, number in (("batch_size", batch_size), ("prefill_tokens", prefill_tokens)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(f"{name} must be a positive integer, got {number!r}")
        for name, value, choices in (
            ("order", order, get_args(Order)),
            ("chat", chat, get_args(ChatMode)),
            ("system", system, get_args(SystemMode)),
        ):
            if value not in choices:
                raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        self._ensemble, self._method, self._chat, self._system = ensemble, method, chat, system
        self._max_new_tokens = check_max_new_tokens(max_new_tokens)
        self._stops = as_stops(stop)
        self._used = participants(method, ensemble.runners)
        self.seed = sampling.seed if sampling.seed is not None else secrets.randbits(62)
        self._sampling = replace(sampling, seed=None)
        self._window = _AHEAD * batch_size if order == "input" else None
        runners = ensemble.runners
        self.limits = cache_limits(runners, memory)
        self._engine = Engine(runners, ensemble.vocab, ensemble.weights, method, self._sampling)
        self._batch_size, self._prefill_tokens, self._share = batch_size, prefill_tokens, share_prefixes
        self._scheduler: Scheduler | None = None
        self._at_start: list[tuple[int, int, int]] = []
        self._began = 0.0
        none = [0] * len(runners)
        self._counts = Counts(
            forwards=none, forwarded=none, prefix_tokens_reused=none, forward_seconds=[0.0] * len(runners)
        )
        self.on_step: Callable[[], None] | None = None
        self._given = 0
        self._items = requests
        self._requests: dict[int, BatchRequest] = {}
        self._results: Generator[BatchResult, None, None] = (
            self._in_order() if order == "input" else self._as_finished()
        )

    def __next__(self) -> BatchResult:
        result = next(self._results)
        self._given += 1
        return result

    def close(self) -> None:
        """Drop the rows in flight and give the caches back their former limits."""
        self._results.close()

    @property
    def counts(self) -> Counts:
        """The run so far (a snapshot of its own)."""
        runners = self._ensemble.runners
        if self._scheduler is None:
            return replace(self._counts)
        return replace(
            self._counts,
            errors=dict(self._counts.errors),
            forward_seconds=list(self._counts.forward_seconds),
            running=len(self._scheduler.active),
            forwards=[r.stats.forwards - was for r, (was, _, _) in zip(runners, self._at_start, strict=True)],
            forwarded=[r.stats.tokens - was for r, (_, was, _) in zip(runners, self._at_start, strict=True)],
            prefix_tokens_reused=[r.stats.reused - was for r, (_, _, was) in zip(runners, self._at_start, strict=True)],
            seconds=time.perf_counter() - self._began,
            rounds=self._scheduler.rounds,
            cache_bytes=sum(runner.bytes_allocated for runner in runners),
            peak_cache_bytes=sum(runner.peak_bytes for runner in runners),
            put_back=self._scheduler.put_back,
            failed_allocations=self._scheduler.failed_allocations,
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def _as_finished(self) -> Generator[BatchResult, None, None]:
        # What has to be undone begins here, inside the generator: one that is dropped before it ran never ends.
        runners = self._ensemble.runners
        self._at_start = [(r.stats.forwards, r.stats.tokens, r.stats.reused) for r in runners]
        self._began = time.perf_counter()
        room = Room(runners, self.limits)
        rows: Generator[Row, None, None] | None = None
        try:
            for runner in runners:  # after the limits, for which an empty cache may have been freed
                runner.watch_peak()
            self._scheduler = Scheduler(
                runners, self._batch_size, room=room, prefill_tokens=self._prefill_tokens, share=self._share
            )
            rows = run(self._engine, self._scheduler, self._rows())
            for row in rows:
                if self.on_step is not None:
                    self.on_step()
                if row.finished:
                    completion, kind = row.completion(), row.error_kind
                    self._counts.add(completion, kind)
                    yield BatchResult(row.request.number, self._requests.pop(row.request.number), completion, kind)
        finally:
            if rows is not None:
                rows.close()
            room.restore_limits()

    def _in_order(self) -> Generator[BatchResult, None, None]:
        held: dict[int, BatchResult] = {}
        due = 0
        results = self._as_finished()
        try:
            for result in results:
                held[result.index] = result
                while due in held:
                    yield held.pop(due)
                    due += 1
        finally:
            results.close()

    def _rows(self) -> Iterator[Row | None]:
        for index, item in enumerate(self._items):
            while self._window is not None and index - self._given >= self._window:
                yield None
            request = item if isinstance(item, BatchRequest) else BatchRequest(item)
            self._requests[index] = request
            yield self._row(index, request)

    def _row(self, index: int, asked: BatchRequest) -> Row:
        method = asked.method if asked.method is not None else self._method
        sampling = self._sampling if asked.sampling is None else asked.sampling
        seed = asked.seed if asked.seed is not None else sampling.seed
        own = seed is not None
        request = Request(
            index,
            [],
            self._max_new_tokens,
            self._stops,
            0 if own else index if asked.row_id is None else asked.row_id,
            method=method,
            sampling=replace(sampling, seed=None),
            trace=asked.trace,
            seed=seed if seed is not None else self.seed,
        )
        used, wrong = self._used, None
        try:
            if asked.max_new_tokens is not None:
                request.max_new_tokens = check_max_new_tokens(asked.max_new_tokens)
            if asked.stop is not None:
                request.stops = as_stops(asked.stop)
            if seed is not None:
                check_seed(seed)
            used = participants(method, self._ensemble.runners)
        except EnsembleError as error:
            wrong, method = str(error), self._method
        row = self._ensemble.make_row(asked.prompt, request, method, used, self._chat, self._system)
        if wrong is not None:
            row.fail(wrong, "field")
        return row
