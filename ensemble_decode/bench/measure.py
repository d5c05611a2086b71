"""Subjects measured in turn, in one process, slice by slice: what slows the machine down slows all of them down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ensemble_decode.bench.energy import Meter
from ensemble_decode.bench.stats import quantile
from ensemble_decode.bench.subjects import Event, Subject


@dataclass
class Sample:
    """One generation of one subject. Seconds are its own: time in which other subjects ran is not in them.

    ``first``: to the first token, mean over rows. ``latency_*``: mean and quantiles of the seconds between tokens, over
    all rows and tokens after the first (a round that adds n tokens counts as n of an n-th of its time). ``outside``:
    wall time that neither a forward nor fusion nor counted host work explains. ``joules``: None where the device does
    not report energy.
    """

    tokens: int
    seconds: float
    first: float
    latency_mean: float
    latency_median: float
    latency_p90: float
    latency_p99: float
    forward: list[float]
    fusion: float
    host: float
    outside: float
    cache_bytes: int
    drafted: int
    accepted: int
    ensembled: int
    joules: float | None

    @property
    def per_token(self) -> float:
        """Seconds per token of a row: the wall time of the whole generation, prompt included, over the tokens of all
        rows."""
        return self.seconds / self.tokens


class Run:
    """One session under way, with its own clock."""

    def __init__(self, subject: Subject, prompts: Sequence[str], tokens: int, meter: Meter) -> None:
        self.session = subject.start(prompts, tokens)
        self.steps: Iterator[list[Event]] = iter(self.session)
        self.rows, self.meter = len(prompts), meter
        self.seconds, self.tokens, self.joules = 0.0, 0, 0.0
        self.last: dict[int, float] = {}
        self.first: dict[int, float] = {}
        self.gaps: list[float] = []
        self.done = False

    def advance(self, tokens: int) -> None:
        """Go on until ``tokens`` more tokens are there, or to the end."""
        goal, energy = self.tokens + tokens, self.meter.read()
        while not self.done and self.tokens < goal:
            began = time.perf_counter()
            events = next(self.steps, None)
            ended = time.perf_counter()
            for event in events or ():
                self._note(event, self.seconds + event.at - began)
            self.seconds += ended - began
            self.done = events is None
        self.joules += self.meter.read() - energy

    def _note(self, event: Event, at: float) -> None:
        if not event.tokens:
            return
        row = event.row
        if row not in self.first:
            self.first[row] = at
        else:
            self.gaps += [(at - self.last[row]) / event.tokens] * event.tokens
        self.last[row] = at
        self.tokens += event.tokens

    def sample(self) -> Sample:
        """What the session took, as a sample."""
        spent = self.session.spent()
        counted = sum(spent.forward) + spent.fusion
        host = self.seconds - counted if spent.host is None else spent.host
        gaps = self.gaps or [self.seconds / max(self.tokens, 1)]
        return Sample(
            tokens=self.tokens,
            seconds=self.seconds,
            first=sum(self.first.values()) / max(len(self.first), 1),
            latency_mean=sum(gaps) / len(gaps),
            latency_median=quantile(gaps, 0.5),
            latency_p90=quantile(gaps, 0.9),
            latency_p99=quantile(gaps, 0.99),
            forward=spent.forward,
            fusion=spent.fusion,
            host=host,
            outside=self.seconds - counted - host,
            cache_bytes=spent.cache_bytes,
            drafted=spent.drafted,
            accepted=spent.accepted,
            ensembled=spent.ensembled,
            joules=self.joules if self.meter.reports else None,
        )


@dataclass
class Cell:
    """One subject at one batch size, prompt length and output length: a sample per round."""

    suite: str
    subject: str
    label: str
    kind: str
    models: list[str]
    batch: int
    prompt: int
    tokens: int
    samples: list[Sample] = field(default_factory=list)

    def values(self, pick: Callable[[Sample], float]) -> list[float]:
        """One value per round."""
        return [pick(sample) for sample in self.samples]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure(
    subjects: Sequence[Subject],
    prompts: Sequence[str],
    tokens: int,
    *,
    rounds: int,
    meter: Meter,
    warm_up: int = 4,
    slice_tokens: int = 16,
) -> dict[str, list[Sample]]:
    """Samples of each subject by name; each round starts with another subject, and no subject runs longer than a slice
    at once.

    ``prompts``: one per row of the batch. ``tokens``: per row. ``warm_up``: tokens that every subject writes before
    anything counts (0: none, where they have run before). ``slice_tokens``: per row. Subjects that cannot pause
    (transformers' generate) run whole in their turn.
    """
    for subject in subjects if warm_up else ():
        Run(subject, prompts, min(tokens, warm_up), meter).advance(len(prompts) * tokens)
    samples: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        shift = number % len(subjects)
        order = [*subjects[shift:], *subjects[:shift]]
        runs = {subject.name: Run(subject, prompts, tokens, meter) for subject in order}
        while any(not run.done for run in runs.values()):
            for run in runs.values():
                run.advance(slice_tokens * len(prompts))
        for name, run in runs.items():
            samples[name].append(run.sample())
    return samples
