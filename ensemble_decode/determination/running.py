"""The parts that run models: each model's own responses, and what each model weighs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ensemble_decode.cost.shapes import ModelShape
from ensemble_decode.decode.prompts import ChatMode, SystemMode
from ensemble_decode.determination.data import Item
from ensemble_decode.determination.store import Log, identity
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import InputError
from ensemble_decode.members.per_model import per_model
from ensemble_decode.members.transformers.loading import load_tokenizer
from ensemble_decode.methods import Single
from ensemble_decode.vocab.aligned import AlignedVocab
from ensemble_decode.vocab.model import ModelVocab

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is


@dataclass(frozen=True)
class RunSettings:
    """What a response depends on beside its model and prompt."""

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    chat: ChatMode = "template"
    system: SystemMode = "error"
    batch_size: int = 16
    device: Any = "auto"
    dtype: Any = "auto"

    def of_text(self) -> dict[str, Any]:
        """The settings that a text depends on; the batch and the device are not among them."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "chat": self.chat,
            "system": self.system,
            "dtype": self.dtype_in_words,
        }

    @property
    def dtype_in_words(self) -> str:
        """The dtype; of a list with one per model, all of them."""
        several = isinstance(self.dtype, (list, tuple)) and len(self.dtype) > 1
        return str(self.dtype if several or isinstance(self.dtype, str) else per_model(self.dtype, 1, "dtype")[0])


class Models:
    """The candidates, each loaded when it is first run and kept."""

    def __init__(self, specs: Sequence[str], settings: RunSettings) -> None:
        self.specs, self.settings = list(specs), settings
        self._loaded: dict[int, Ensemble] = {}
        self._vocabs: dict[int, ModelVocab] = {}

    def alone(self, m: int) -> Ensemble:
        """An ensemble of model m alone."""
        if m not in self._loaded:
            device = per_model(self.settings.device, len(self.specs), "device")[m]
            dtype = per_model(self.settings.dtype, len(self.specs), "dtype")[m]
            self._loaded[m] = Ensemble.load([self.specs[m]], device=device, dtype=dtype)
        return self._loaded[m]

    def pair(self, first: int, second: int) -> Ensemble:
        """Two of the models with equal weights, ``first`` the primary; their runners are those of ``alone``."""
        parts = [self.alone(m) for m in (first, second)]
        vocabs = [part.vocab.models[0] for part in parts]
        return Ensemble(
            [part.runners[0] for part in parts],
            [part.tokenizers[0] for part in parts],
            AlignedVocab.build(vocabs),
        )

    def vocab(self, m: int) -> ModelVocab:
        """Model m's vocabulary, from its tokenizer alone."""
        if m not in self._vocabs:
            self._vocabs[m] = ModelVocab.build(load_tokenizer(self.specs[m]), name=self.specs[m])
        return self._vocabs[m]

    def shape(self, m: int) -> ModelShape:
        """The shape of model m, for the cost model."""
        return ModelShape.of_model(self.alone(m).runners[0].model, name=self.specs[m])


def responses(
    models: Models, m: int, items: Sequence[Item], folder: Path, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Model m's response to every item, by the item's key; those already in ``folder`` are not run again.

    A record has ``text``, ``token_ids`` (its END id last where it ended), ``finish_reason`` and ``error``.
    """
    spec, settings = models.specs[m], models.settings
    log = Log(folder / "generations", spec, {"model": identity(spec), **settings.of_text()})
    missing = list({item.key: item for item in items if item.key not in log.records}.values())
    what = f"{spec}: responses"
    progress(what, len(items) - len(missing), len(items))
    if missing:
        with log:
            for n, (item, record) in enumerate(_generate(models.alone(m), missing, settings), 1):
                log.add({"key": item.key, "id": item.id, **record})
                progress(what, len(items) - len(missing) + n, len(items))
    return log.records


def _generate(
    ensemble: Ensemble, items: Sequence[Item], settings: RunSettings
) -> Iterable[tuple[Item, dict[str, Any]]]:
    """Each item as soon as its response is complete."""
    texts, ids = [""] * len(items), [list[int]() for _ in items]
    for delta in ensemble.stream(
        [item.prompt for item in items],
        method=Single(0),
        max_new_tokens=settings.max_new_tokens,
        stop=settings.stop,
        batch_size=settings.batch_size,
        chat=settings.chat,
        system=settings.system,
    ):
        texts[delta.row] += delta.text
        ids[delta.row] += delta.token_ids
        if delta.finish_reason is not None:
            record = {
                "text": texts[delta.row],
                "token_ids": ids[delta.row],
                "finish_reason": delta.finish_reason,
                "error": delta.error,
            }
            yield items[delta.row], record


def shapes(models: Models, folder: Path) -> list[ModelShape]:
    """What each model weighs, for the cost model; saved, so that a report can be made again without loading
    anything."""
    found = []
    for m, spec in enumerate(models.specs):
        log = Log(folder / "shapes", spec, {"model": identity(spec), "dtype": models.settings.dtype_in_words})
        if "shape" not in log.records:
            with log:
                log.add({"key": "shape", "shape": asdict(models.shape(m))})
        found.append(ModelShape(**log.records["shape"]["shape"]))
    return found


def check_specs(specs: Sequence[str]) -> list[str]:
    """At least one model, none twice; demo models, folders, files and hub ids are told apart where they are loaded."""
    if isinstance(specs, str) or not specs:
        raise InputError("determine: give a list of at least one model")
    twice = sorted({spec for spec in specs if list(specs).count(spec) > 1})
    if twice:
        raise InputError(f"determine: {', '.join(twice)} is given twice")
    return [str(spec) for spec in specs]
