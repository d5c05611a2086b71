"""The run behind the page of docs/benchmarks/: every suite, one after the other, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from ensemble_decode.bench.quality import evaluate
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.setup import Bench, dtype_of, held_out
from ensemble_decode.bench.suites import measure_into
from latency.calibrate import compare, shapes_of, this_machine
from latency.scaling import measure_models, measure_vocabularies

SUITES = ("others", "long", "length", "batch", "throughput", "quality", "models", "vocabulary")  # that may be left out
LENGTHS = (32, 128, 512, 1024, 2048)


class Plan(NamedTuple):
    """One suite of the page: which configurations, at which sizes (``quality``, ``models``, ``vocabulary`` choose their
    own)."""

    suite: str
    names: tuple[str, ...]
    rounds: int
    tokens: int
    batches: tuple[int, ...] = (1,)
    prompt: int = 32
    warm_up: int = 4


_STEPS, _SEGMENTS = ("single", "unite", "dictionary"), ("specfuse-all", "segments")


def _lengths(lengths: Sequence[int]) -> list[Plan]:
    """Steps behind texts of each length. At 12 tokens a segment method takes two rounds, the second of which counts."""
    return [
        plan
        for length in lengths
        for plan in (
            Plan("length", _STEPS, 1, 6, prompt=length, warm_up=0),
            Plan("length", _SEGMENTS if length <= 512 else _SEGMENTS[:1], 1, 12, prompt=length, warm_up=0),
        )
    ]


# In the order of measuring.
PLANS = (
    Plan("latency", ("single", "unite", "specfuse-all", "dictionary"), 2, 64),
    *_lengths(LENGTHS[:3]),
    Plan("batch", ("single", "unite"), 1, 6, (1, 8, 32, 64), warm_up=1),
    Plan("throughput", ("unite",), 1, 64, (32,), warm_up=1),
    *_lengths(LENGTHS[3:4]),
    Plan("quality", (), 1, 8),
    Plan("others", ("single", "unite", "gac", "safe", "specfuse-all", "generate", "assisted", "segments"), 1, 16),
    Plan("models", (), 1, 12),
    *_lengths(LENGTHS[4:]),
    Plan("long", ("unite", "dictionary"), 1, 256, warm_up=0),
    Plan("vocabulary", (), 2, 8),
)
QUICK = (
    Plan("latency", ("single", "unite", "gac", "safe", "specfuse-all", "dictionary"), 1, 4),
    Plan("others", ("single", "gac", "safe", "specfuse-all", "generate", "assisted", "segments"), 1, 4),
    Plan("long", ("unite", "dictionary"), 1, 8),
    *(
        Plan("length", ("unite", "specfuse-all", "dictionary", "segments"), 1, 4, prompt=length)
        for length in LENGTHS[:2]
    ),
    Plan("batch", ("single", "unite", "safe"), 1, 4, (1, 2)),
    Plan("throughput", ("unite",), 1, 4, (2,)),
    Plan("quality", (), 1, 8),
    Plan("models", (), 1, 4),
)  # fmt: skip


def measure_all(
    bench: Bench, say: Callable[[str], None], *, quick: bool = False, skip: Sequence[str] = (), save: Path | None = None
) -> Record:
    """Measure every suite of the page, one after the other in one process.

    Args:
        bench: The models.
        say: Called with a line of words as work goes on.
        quick: Take the smallest sizes, to see that all of it runs.
        skip: Suites to leave out, of ``SUITES``.
        save: Where the record is written after each suite, so that nothing measured is lost.
    """
    energy = bench.meter.reason or "NVML's counter of the devices in use"
    devices = [str(runner.device) for runner in bench.ensemble.runners]
    record = Record.begin(bench.names, dtype_of(bench.ensemble), devices, energy)
    began = time.monotonic()
    first = bench.ensemble.runners[0]
    memory = float(record.run["machine"]["memory GiB"] or 0) * 2**30
    device = this_machine(first.device, first.dtype, memory, quick=quick)
    record.parts["device"] = asdict(device)
    shapes = shapes_of(bench.ensemble)

    def keep() -> None:
        record.parts["cost"] = [one._asdict() for one in compare(record.cells, shapes, device)]
        record.parts["minutes"] = (time.monotonic() - began) / 60
        if save is not None:
            record.write(save)

    for plan in QUICK if quick else PLANS:
        if plan.suite in skip:
            continue
        if plan.suite == "quality":
            say("quality")
            paragraphs, questions = (held_out()[:2], 2) if quick else (held_out(), 16)
            record.parts["quality"] = evaluate(bench.ensemble, paragraphs, questions=questions)
        elif plan.suite == "models" and bench.loaded:
            most = len(bench.names) + 1 if quick else 6
            shapes |= measure_models(
                record, bench, bench.loaded, most=most, tokens=plan.tokens, rounds=plan.rounds, say=say
            )
        elif plan.suite == "vocabulary":
            shapes |= measure_vocabularies(record, bench, tokens=plan.tokens, rounds=plan.rounds, say=say)
        elif plan.names:
            measure_into(
                record, bench, plan.names, suite=plan.suite, batches=plan.batches, prompt_tokens=[plan.prompt],
                tokens=[plan.tokens], rounds=plan.rounds, warm_up=plan.warm_up, say=say,
            )  # fmt: skip
        keep()
    return record
