"""How cost grows with the number of models and with their vocabularies: models with random weights beside the given
ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import random_models

from ensemble_decode.bench.measure import Cell, measure
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.setup import Bench, prompts
from ensemble_decode.bench.subjects import MethodSubject, Subject, endless
from ensemble_decode.cost.shapes import ModelShape
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.members.transformers.loading import LoadedModel
from ensemble_decode.methods import Single, SpecFuse, UniTE
from latency.calibrate import shapes_of

VOCABULARIES = (32_000, 65_536, 131_072, 262_144)


def _cells(
    record: Record,
    ensemble: Ensemble,
    suite: str,
    subjects: Sequence[Subject],
    bench: Bench,
    prompt: int,
    tokens: int,
    rounds: int,
) -> None:
    names = [model.name for model in ensemble.vocab.models]
    texts = prompts(ensemble, prompt, 1)
    samples = measure(subjects, texts, tokens, rounds=rounds, meter=bench.meter)
    for subject in subjects:
        made = samples[subject.name]
        record.cells.append(Cell(suite, subject.name, subject.label, subject.kind, names, 1, prompt, tokens, made))


def measure_models(
    record: Record,
    bench: Bench,
    loaded: Sequence[LoadedModel],
    *,
    most: int,
    tokens: int,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, ModelShape]:
    """2 to ``most`` models: the first two as given, then models of random weights with the given tokenizers in turn.

    The added models have 8 layers of 512, about a quarter of the first demo model's layers. Returns the shapes of all.
    """
    first = bench.ensemble.runners[0]
    models = [entry.model for entry in loaded]
    tokenizers = [entry.tokenizer for entry in loaded]
    names = [entry.name for entry in loaded]
    for number in range(most - len(loaded)):
        other = loaded[number % len(loaded)]
        made = random_models.model(len(other.tokenizer), layers=8, hidden=512, seed=number, dtype=first.dtype)
        models.append(made.to(first.device))
        tokenizers.append(other.tokenizer)
        names.append(f"random-{number}")
    shapes: dict[str, ModelShape] = {}
    for count in sorted({len(loaded), min(len(loaded) + 1, most), min(len(loaded) + 2, most), most}):
        say(f"models: {count}")
        ensemble = endless(models[:count], tokenizers[:count], names[:count], cache_dir="default")
        methods: dict[str, tuple[str, Any]] = {
            "single-0": (f"{names[0]} alone", Single(0)),
            "unite": ("UniTE", UniTE()),
            "specfuse-all": ("SpecFuse, no model leaves", SpecFuse(exit_threshold=0.0)),
        }
        subjects = [MethodSubject(name, label, ensemble, method) for name, (label, method) in methods.items()]
        _cells(record, ensemble, "models", subjects, bench, 32, tokens, rounds)
        shapes |= shapes_of(ensemble)
    return shapes


def measure_vocabularies(
    record: Record, bench: Bench, *, tokens: int, rounds: int, say: Callable[[str], None]
) -> dict[str, ModelShape]:
    """Two models with random weights (8 layers of 256) and vocabularies of one size, from 32 000 to 262 144 tokens."""
    first, shapes = bench.ensemble.runners[0], dict[str, ModelShape]()
    for size in VOCABULARIES:
        say(f"vocabulary: {size}")
        names = [f"random {size} {which}" for which in ("a", "b")]
        tokenizers = [random_models.tokenizer(size, seed) for seed in (0, 1)]
        made = [random_models.model(size, layers=8, hidden=256, seed=seed, dtype=first.dtype) for seed in (0, 1)]
        ensemble = endless([model.to(first.device) for model in made], tokenizers, names)
        subjects = [MethodSubject("unite", f"UniTE, 2 vocabularies of {size}", ensemble, UniTE())]
        _cells(record, ensemble, "vocabulary", subjects, bench, 32, tokens, rounds)
        shapes |= shapes_of(ensemble)
    return shapes
