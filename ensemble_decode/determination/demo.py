"""What ``ensemble-decode determine --demo`` compares: the demo models and a shortened one, on generated questions.

Two models make one pair; a third that is plainly weaker shows what the rules are for. It is made here from a demo model
by leaving out some of its layers, the crudest way to a smaller model, so that nothing more has to be fetched.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble_decode.determination.questions import Question, arithmetic, completion, multiple_choice
from ensemble_decode.errors import InputError

MODELS = ("demo:smollm2", "demo:gemma3")
MAX_NEW_TOKENS, STOP = 16, "\n"  # every answer is the rest of a line
WITHOUT = (20, 21, 22, 23)  # of the layers 0 to 29 of demo:smollm2
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def questions(count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` questions of each kind in turn: arithmetic, completion, multiple choice; no prompt twice.

    The lines of a data file: ``id``, ``prompt``, ``answer``, ``grader``. Raises ``InputError`` where a kind has fewer
    different questions.
    """
    kinds = [
        _lines("arithmetic", arithmetic, "numeric:first", str, count, seed),
        _lines("completion", completion, "regex", _first_word, count, seed),
        _lines("choice", multiple_choice, "choice", str, count, seed),
    ]
    return [line for together in zip(*kinds, strict=True) for line in together]


def _lines(
    name: str,
    make: Callable[[int, int], list[Question]],
    grader: str,
    answer: Callable[[str], str],
    count: int,
    seed: int,
) -> list[dict[str, Any]]:
    different = list({question.prompt: question for question in make(20 * count, seed)}.values())[:count]
    if len(different) < count:
        raise InputError(f"demo questions: there are {len(different)} different ones of the kind {name}, not {count}")
    return [
        {"id": f"{name}-{i}", "prompt": one.prompt, "answer": answer(one.answer), "grader": grader}
        for i, one in enumerate(different)
    ]


def _first_word(word: str) -> str:
    """A regular expression for texts that begin with the word, whatever its case and the marks before it."""
    return rf"(?i)^\W*{re.escape(word)}\b"


def write_questions(path: Path, count: int = 24, seed: int = 0) -> Path:
    """``questions`` as a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(line, allow_nan=False) + "\n" for line in questions(count, seed)), encoding="utf-8"
    )
    return path


def shortened(folder: Path, spec: str = MODELS[0], without: Sequence[int] = WITHOUT) -> Path:
    """The model ``spec`` without some of its layers, in ``folder`` with its tokenizer, unless it is there already.

    ``spec``: a demo model or a folder, with ``model.safetensors`` and layers named as a Llama's. Raises ``InputError``
    for layers that it has not, or where none would be left.
    """
    from safetensors.torch import load_file, save_file

    from ensemble_decode.members.sources.specs import parse_spec
    from ensemble_decode.members.sources.store import exclusive, published
    from ensemble_decode.members.transformers.loading import spec_source

    with exclusive(folder.parent):
        if (folder / _CONFIG).is_file():
            return folder
        source = Path(spec_source(parse_spec(spec)))
        config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
        layers = range(config["num_hidden_layers"])
        kept = [layer for layer in layers if layer not in without]
        if not kept or not set(without) <= set(layers):
            raise InputError(f"shortened {spec}: it has {len(layers)} layers; it cannot do without {list(without)}")
        config["num_hidden_layers"] = len(kept)
        with published(folder) as work:
            for file in source.iterdir():
                if file.name not in (_CONFIG, _WEIGHTS):
                    shutil.copy(file, work)
            (work / _CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False), encoding="utf-8")
            tensors = {}
            for name, tensor in load_file(source / _WEIGHTS).items():
                layer = _LAYER.match(name)
                if layer is None:
                    tensors[name] = tensor
                elif int(layer[1]) in kept:
                    tensors[f"model.layers.{kept.index(int(layer[1]))}.{layer[2]}"] = tensor
            save_file(tensors, work / _WEIGHTS, metadata={"format": "pt"})
    return folder
