"""Models, subjects and prompts of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from ensemble_decode.bench.baselines import AssistedGenerate, DictionaryUniTE, TransformersGenerate, UncachedSegments
from ensemble_decode.bench.baselines.common import prepare
from ensemble_decode.bench.energy import Meter
from ensemble_decode.bench.subjects import MethodSubject, Subject, load_endless
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import InputError
from ensemble_decode.members.transformers.loading import LoadedModel, load_all
from ensemble_decode.methods import SAFE, GaC, Single, SpecFuse, UniTE
from ensemble_decode.methods.options import describe, parse_method

METHODS: dict[str, tuple[str, Callable[[], Any]]] = {
    "unite": ("UniTE", UniTE),
    "gac": ("GaC", GaC),
    "safe": ("SAFE, drafts of 5", SAFE),
    "safe-auto": ("SAFE, automatic drafts", lambda: SAFE(draft_length="auto")),
    "specfuse": ("SpecFuse, segments of 10", SpecFuse),
    "specfuse-all": ("SpecFuse, no model leaves", lambda: SpecFuse(exit_threshold=0.0)),
}
BASELINES = ("generate", "assisted", "dictionary", "segments")


@dataclass
class Bench:
    """An ensemble that never ends a text, the same models loaded again for the baselines, and the energy meter."""

    ensemble: Ensemble
    loaded: list[LoadedModel]
    meter: Meter

    @property
    def names(self) -> list[str]:
        """The names of the models, in order."""
        return [model.name for model in self.ensemble.vocab.models]

    def subject(self, name: str) -> list[Subject]:
        """The subjects called ``name``; ``single`` and ``generate`` are one for each model. Raises ``InputError`` for
        an unknown name."""
        if name == "single":
            numbers = range(len(self.names))
            return [self._method(f"single-{m}", f"{self.names[m]} alone", Single(m)) for m in numbers]
        if name in METHODS:
            label, make = METHODS[name]
            return [self._method(name, label, make())]
        if name.startswith("{") or "(" in name:
            method = parse_method(name)
            return [self._method(name, describe(method), method)]
        if name not in BASELINES:
            raise InputError(f"bench: {name!r} is not known; there are single, {', '.join((*METHODS, *BASELINES))}")
        if not self.loaded:
            raise InputError(f"bench: the baseline {name} needs models loaded by name")
        if name == "generate":
            return [TransformersGenerate(self.loaded, m) for m in range(len(self.loaded))]
        made = {"assisted": AssistedGenerate, "dictionary": DictionaryUniTE, "segments": UncachedSegments}[name]
        return [made(self.loaded)]

    def _method(self, name: str, label: str, method: Any) -> MethodSubject:
        return MethodSubject(name, label, self.ensemble, method)


def load_bench(
    models: Sequence[str], dtype: Sequence[str] | str, device: Sequence[str] | str = "auto", *, baselines: bool = True
) -> Bench:
    """Load the models for this package and, where ``baselines``, once more for those."""
    ensemble = load_endless(load_all(models, device=device, dtype=dtype), cache_dir="default")
    loaded = load_all(models, device=device, dtype=dtype) if baselines else []
    prepare(loaded)
    return Bench(ensemble, loaded, Meter([runner.device for runner in ensemble.runners]))


def held_out() -> list[str]:
    """Paragraphs written for this package: no model has been trained on them."""
    return files(__package__).joinpath("held_out.txt").read_text(encoding="utf-8").strip().split("\n\n")


def prompts(ensemble: Ensemble, tokens: int, batch: int) -> list[str]:
    """``batch`` different prompts of about ``tokens`` tokens of the primary: pieces of the held-out text, each from
    another place."""
    encode, decode = ensemble.vocab.models[0].encode, ensemble.vocab.models[0].decode
    words = " ".join(held_out()).split(" ")
    made = []
    for row in range(batch):
        start = row * 37 % len(words)
        text = " ".join((words[start:] + words[:start]) * (1 + tokens // len(words)))
        made.append(decode(encode(text.encode())[:tokens]).decode("utf-8", "ignore"))
    return made


def dtype_of(ensemble: Ensemble) -> str:
    """The dtypes of the models, in words."""
    return ", ".join(dict.fromkeys(str(runner.dtype).removeprefix("torch.") for runner in ensemble.runners))


def set_threads(threads: int | None) -> None:
    """Threads of every configuration of the run."""
    if threads is not None:
        if threads < 1:
            raise InputError(f"bench: threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
