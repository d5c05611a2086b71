"""What ``ensemble-decode determine --demo`` compares: the demo models and a shortened one, on generated questions.

Two models make one pair; a third that is plainly weaker shows what the rules are for. It is made here from a demo model by
leaving out its last layers, the crudest way to a smaller model, so that nothing more has to be fetched.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..bench.questions import Question, arithmetic, completion, multiple_choice
from ..errors import InputError

MODELS = ("demo:smollm2", "demo:gemma3")
MAX_NEW_TOKENS, STOP = 16, "\n"  # every answer is the rest of a line
LAYERS = 24  # of the 30 of demo:smollm2
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def questions(count: int = 30, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` questions of each kind in turn: arithmetic, completion, multiple choice; no prompt twice.

    The lines of a data file: ``id``, ``prompt``, ``answer``, ``grader``. Raises ``InputError`` where a kind has fewer different questions.
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


def write_questions(path: Path, count: int = 30, seed: int = 0) -> Path:
    """``questions`` as a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in questions(count, seed)), encoding="utf-8")
    return path


def shortened(folder: Path, spec: str = MODELS[0], layers: int = LAYERS) -> Path:
    """The model ``spec`` without the layers after the first ``layers``, in ``folder`` with its tokenizer, unless it is there already.

    ``spec``: a demo model or a folder, with ``model.safetensors`` and layers named as a Llama's. Raises ``InputError`` where it has no more
    layers than that.
    """
    from safetensors.torch import load_file, save_file

    from ..models.loading import spec_source
    from ..models.specs import parse_spec
    from ..models.store import exclusive, published

    with exclusive(folder.parent):
        if (folder / _CONFIG).is_file():
            return folder
        source = Path(spec_source(parse_spec(spec)))
        config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
        if layers >= config["num_hidden_layers"]:
            raise InputError(
                f"shortened {spec}: it has {config['num_hidden_layers']} layers; keep fewer of them, not {layers}"
            )
        left_out = tuple(f"model.layers.{i}." for i in range(layers, config["num_hidden_layers"]))
        with published(folder) as work:
            for file in source.iterdir():
                if file.name not in (_CONFIG, _WEIGHTS):
                    shutil.copy(file, work)
            (work / _CONFIG).write_text(json.dumps({**config, "num_hidden_layers": layers}, indent=2), encoding="utf-8")
            kept = {n: t for n, t in load_file(source / _WEIGHTS).items() if not n.startswith(left_out)}
            save_file(kept, work / _WEIGHTS, metadata={"format": "pt"})
    return folder
