"""Rows of a batch in all sorts, and each of them alone."""

import json
import random
from functools import cache
from pathlib import Path

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest
from support.ensembles import ensemble_of, models

NAMES = ("gpt2", "llama2")
TEXTS = ["The quick brown fox", "def f(x):\n", "Größe", "你好", "  \n\n", "a", "the cat sat " * 12, "12 + 7 ="]
METHODS = [
    None,
    ed.SAFE(draft_length=3),
    ed.GaC(),
    ed.SpecFuse(segment_length=4),
    ed.Single(1),
    ed.SAFE(draft_length="auto"),
]


@cache
def pair() -> ed.Ensemble:
    """Two tiny models of different tokenizers."""
    return ensemble_of(models(NAMES), NAMES)


def requests(count: int, seed: int = 0) -> list[BatchRequest]:
    """Short and long prompts, chats, stop strings, methods and sampling of their own, some that fail."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        text = draw.choice(TEXTS) + f" {i}" * draw.choice([0, 1, 3])
        prompt = [{"role": "user", "content": text}] if i % 7 == 3 else text
        made.append(
            BatchRequest(
                "the cat " * 600 if i % 23 == 11 else prompt,  # 11: longer than the models' contexts
                max_new_tokens=draw.choice([1, 3, 6, 10, 24]),
                stop=draw.choice([None, None, "e", ["ing", " t"]]),
                method=METHODS[i % len(METHODS)],
                sampling=ed.Sampling(temperature=0.9, seed=i) if i % 5 == 4 else None,
            )
        )
    return made


def alone(ensemble: ed.Ensemble, request: BatchRequest) -> ed.Completion:
    """The request by ``generate``, with no other row."""
    (done,) = ensemble.generate(
        [request.prompt],
        method=request.method,
        max_new_tokens=request.max_new_tokens or 128,
        stop=request.stop,
        sampling=request.sampling or ed.Sampling(),
    )
    return done


def write_lines(path: Path, count: int, seed: int = 0) -> Path:
    """A JSONL file of ``count`` lines, about a fifth of them bad."""
    draw = random.Random(seed)
    bad = [
        "{broken",
        "",
        "[1]",
        '{"prompt": ""}',
        '{"text": "x"}',
        '{"prompt": 3}',
        '{"prompt": "a", "max_new_tokens": 0}',
    ]
    with path.open("w") as file:
        for i in range(count):
            if i % 5 == 4:
                file.write(draw.choice(bad) + "\n")
                continue
            fields = {"prompt": f"{draw.choice(TEXTS)} {i}", "id": i, "max_new_tokens": draw.choice([1, 3, 8])}
            if i % 6 == 0:
                fields["messages"] = [{"role": "user", "content": fields.pop("prompt")}]
            if i % 4 == 1:
                fields |= {"method": {"name": "safe", "draft_length": 3}, "stop": ["e"]}
            file.write(json.dumps(fields) + "\n")
    return path


def results(path: Path) -> list[dict]:
    """The lines of an output."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]
