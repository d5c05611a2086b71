"""``BatchRun``: rows of any number of requests through the scheduler, results as they end or in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

from ensemble_decode.decode.admission import Room
from ensemble_decode.decode.live import read_ahead
from ensemble_decode.decode.loop import run
from ensemble_decode.decode.models import Defaults, Models
from ensemble_decode.decode.prompts import Prompt, Rendering
from ensemble_decode.decode.requests import BatchRequest, BatchResult, Order
from ensemble_decode.decode.scheduler import Scheduler
from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import InputError
from ensemble_decode.members.memory import cache_limits
from ensemble_decode.methods import Method
from ensemble_decode.methods.base import participants
from ensemble_decode.outputs import Completion, ErrorKind
from ensemble_decode.settings import Sampling

_AHEAD = 16  # batches of finished rows that may wait for an earlier row


@dataclass
class Counts:
    """A run so far.

    Attributes:
        rows: Rows that have ended, with or without an error.
        running: Rows that are being written now.
        most_running: The most rows that were being written at once.
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
    most_running: int = 0
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
        models: Models,
        requests: Iterable[Prompt | BatchRequest | None],
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
        rendering: Rendering,
        live: bool,
    ) -> None:
        if isinstance(requests, str):
            raise InputError(
                "generate_batch: pass an iterable of prompts; a single string is one prompt, put it into a list"
            )
        for name, number in (("batch_size", batch_size), ("prefill_tokens", prefill_tokens)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(f"{name} must be a positive integer, got {number!r}")
        if order not in get_args(Order):
            raise InputError(f"order must be one of {', '.join(map(repr, get_args(Order)))}, got {order!r}")
        self._models = models
        members = models.members
        participants(method, members)
        self._defaults = Defaults.make(method, max_new_tokens, stop, sampling, rendering)
        self.seed = self._defaults.seed
        self._window = _AHEAD * batch_size if order == "input" else None
        self.limits = cache_limits(members, memory)
        self._engine = models.engine(self._defaults)
        self._batch_size, self._prefill_tokens, self._share = batch_size, prefill_tokens, share_prefixes
        self._scheduler: Scheduler | None = None
        self._at_start: list[tuple[int, int, int]] = []
        self._began = 0.0
        none = [0] * len(members)
        self._counts = Counts(
            forwards=none, forwarded=none, prefix_tokens_reused=none, forward_seconds=[0.0] * len(members)
        )
        self.on_step: Callable[[], None] | None = None
        self._given = 0
        self._items = read_ahead(requests, batch_size) if live else requests
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
        members = self._models.members
        if self._scheduler is None:
            return replace(self._counts)
        return replace(
            self._counts,
            errors=dict(self._counts.errors),
            forward_seconds=list(self._counts.forward_seconds),
            running=len(self._scheduler.active),
            forwards=[r.stats.forwards - was for r, (was, _, _) in zip(members, self._at_start, strict=True)],
            forwarded=[r.stats.tokens - was for r, (_, was, _) in zip(members, self._at_start, strict=True)],
            prefix_tokens_reused=[r.stats.reused - was for r, (_, _, was) in zip(members, self._at_start, strict=True)],
            seconds=time.perf_counter() - self._began,
            rounds=self._scheduler.rounds,
            cache_bytes=sum(member.bytes_allocated for member in members),
            peak_cache_bytes=sum(member.peak_bytes for member in members),
            put_back=self._scheduler.put_back,
            failed_allocations=self._scheduler.failed_allocations,
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def _as_finished(self) -> Generator[BatchResult, None, None]:
        # What has to be undone begins here, inside the generator: one that is dropped before it ran never ends.
        members = self._models.members
        self._at_start = [(r.stats.forwards, r.stats.tokens, r.stats.reused) for r in members]
        self._began = time.perf_counter()
        turns = self._models.turns
        rows: Generator[Row, None, None] | None = None
        with turns:
            room = Room(members, self.limits, turns)
            for member in members:  # after the limits, for which an empty cache may have been freed
                member.watch_peak()
        try:
            self._scheduler = Scheduler(
                members, self._batch_size, room=room, prefill_tokens=self._prefill_tokens, share=self._share
            )
            rows = run(self._engine, self._scheduler, self._rows(), turns)
            for row in rows:
                self._counts.most_running = max(self._counts.most_running, len(self._scheduler.active))
                if self.on_step is not None:
                    self.on_step()
                if row.finished:
                    completion, kind = row.completion(), row.error_kind
                    self._counts.add(completion, kind)
                    yield BatchResult(row.request.number, self._requests.pop(row.request.number), completion, kind)
        finally:
            if rows is not None:
                rows.close()
            turns.soon(room.restore_limits)

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
        index = 0
        for item in self._models.turns.outside(self._items):
            if item is None:
                yield None
                continue
            while self._window is not None and index - self._given >= self._window:
                yield None
            request = item if isinstance(item, BatchRequest) else BatchRequest(item)
            self._requests[index] = request
            yield self._models.row(index, request, self._defaults)
            index += 1
