"""What can be measured: a subject starts sessions, a session makes tokens and says what it spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ensemble_decode.decode.sequence import Row
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.members.transformers.loading import LoadedModel
from ensemble_decode.methods import Method

_SEGMENT = 64  # tokens: no segment is longer


class Event(NamedTuple):
    """Row ``row`` had ``tokens`` more tokens at ``at`` (``time.perf_counter``)."""

    at: float
    row: int
    tokens: int


@dataclass
class Spent:
    """What a finished session spent, over all its rows: seconds in each model's forwards, in fusion, in everything
    else.

    ``host`` None: nobody counted it, and it is what the rest leaves of the wall time. ``cache_bytes``: keys and values
    held at the end. ``drafted``, ``accepted``, ``ensembled``: tokens. ``texts``: what was written, a row each.
    """

    forward: list[float]
    fusion: float = 0.0
    host: float | None = None
    cache_bytes: int = 0
    drafted: int = 0
    accepted: int = 0
    ensembled: int = 0
    texts: list[str] = field(default_factory=list)


class Session(Protocol):
    """One generation. ``next`` advances it (it may be left alone between two of them) and gives what was made; then
    ``spent``."""

    def __iter__(self) -> Iterator[list[Event]]: ...

    def spent(self) -> Spent:
        """What the session has spent so far."""


class Subject(Protocol):
    """A way to generate. ``kind``: "method" (this package) or "baseline" (written here from a paper's description, or a
    library)."""

    name: str
    label: str
    kind: str

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run a batch of this size, or None."""

    def start(self, prompts: Sequence[str], tokens: int) -> Session:
        """A session that writes ``tokens`` tokens behind each prompt, whatever END would say."""


class EnsembleSession:
    """A method of this package, through its own engine. A method of segments ends with a whole one, as its baseline
    does."""

    def __init__(self, ensemble: Ensemble, method: Method, prompts: Sequence[str], tokens: int) -> None:
        self._ensemble, self._method, self._prompts, self._tokens = ensemble, method, prompts, tokens
        self._rows: list[Row] = []
        self._cached: dict[int, int] = {}

    def __iter__(self) -> Iterator[list[Event]]:
        ensemble, goal = self._ensemble, self._tokens
        limit = 2 * goal + _SEGMENT if self._method.retokenize_primary else goal
        self._rows = ensemble.rows(self._prompts, method=self._method, max_new_tokens=limit)
        seen = [0] * len(self._rows)
        rounds = ensemble.run(self._rows, batch_size=len(self._rows))
        try:
            for row in rounds:
                row.delta()
                number = row.request.number
                new, seen[number] = row.length - seen[number], max(row.length, seen[number])
                self._cached[number] = sum(
                    held * runner.bytes_per_token for held, runner in zip(row.held, ensemble.runners, strict=True)
                )
                yield [Event(time.perf_counter(), number, max(new, 0))]
                if min(seen) >= goal:
                    return
        finally:
            rounds.close()  # type: ignore[attr-defined]

    def spent(self) -> Spent:
        """What the session has spent so far."""
        done = [row.completion() for row in self._rows]
        failed = [row.error for row in done if row.error]
        if failed:
            raise RuntimeError(f"a measured row failed: {failed[0]}")
        models = range(len(self._ensemble.runners))
        return Spent(
            forward=[sum(row.stats.forward_seconds[m] for row in done) for m in models],
            fusion=sum(row.stats.fusion_seconds for row in done),
            host=sum(row.stats.host_seconds for row in done),
            cache_bytes=sum(self._cached.values()),
            drafted=sum(row.stats.drafted for row in done),
            accepted=sum(row.stats.accepted for row in done),
            ensembled=sum(row.stats.ensembled for row in done),
            texts=[row.text for row in done],
        )


@dataclass
class MethodSubject:
    """A method of this package on an ensemble that never ends a text (``endless``)."""

    name: str
    label: str
    ensemble: Ensemble
    method: Method
    kind: str = "method"

    def refusal(self, batch: int) -> str | None:
        """None: every batch size runs."""
        return None

    def start(self, prompts: Sequence[str], tokens: int) -> EnsembleSession:
        """A session that writes ``tokens`` tokens behind each prompt."""
        return EnsembleSession(self.ensemble, self.method, prompts, tokens)


def endless(models: Sequence[Any], tokenizers: Sequence[Any], names: Sequence[str], **options: Any) -> Ensemble:
    """An ensemble whose texts have no end: no id is END, so that every configuration writes as many tokens as it was
    asked for.

    The tokenizers are not changed: their EOS is set aside while the vocabularies are read.
    """
    kept = [tokenizer.eos_token for tokenizer in tokenizers]
    try:
        for tokenizer in tokenizers:
            tokenizer.eos_token = None
        return Ensemble.from_models(models, tokenizers, names=names, eos_ids=[[] for _ in models], **options)
    finally:
        for tokenizer, eos in zip(tokenizers, kept, strict=True):
            tokenizer.eos_token = eos


def load_endless(loaded: Sequence[LoadedModel], **options: Any) -> Ensemble:
    """``endless`` of models that were loaded by name."""
    return endless([e.model for e in loaded], [e.tokenizer for e in loaded], [e.name for e in loaded], **options)
