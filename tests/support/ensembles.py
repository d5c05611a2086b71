"""Tiny ensembles, one model per tokenizer family, kept for the whole test session."""

from collections.abc import Sequence
from functools import cache

import transformers as tf

import ensemble_decode as ed
from support import tiny_models, tokenizers


def models(names: Sequence[str], *, families: Sequence[str] | None = None, **options) -> list[tf.PreTrainedModel]:
    """A tiny model per tokenizer name, of its usual family, each of another seed.

    `options` go to `tiny_model`; a list gives each model its own value. The seed, if it is one number, is the first
    model's.
    """
    seed = options.pop("seed", 0)
    options["seed"] = seed if isinstance(seed, list) else [seed + i for i in range(len(names))]
    made = []
    for i, name in enumerate(names):
        own = {key: value[i] if isinstance(value, list) else value for key, value in options.items()}
        made.append(tiny_models.tiny_model(families[i] if families else tiny_models.USUAL[name], name, **own))
    return made


def ensemble_of(made: Sequence[tf.PreTrainedModel], names: Sequence[str], /, **options) -> ed.Ensemble:
    """These models with the tokenizers of these names; `options` go to `Ensemble.from_models`."""
    return ed.Ensemble.from_models(
        made, [tokenizers.build(name) for name in names], **{"names": list(names), "cache_dir": None} | options
    )


@cache
def tiny(*names: str) -> ed.Ensemble:
    """One tiny model per tokenizer name, in order."""
    return ensemble_of(models(names), names)


def prompt_ids(ensemble: ed.Ensemble, m: int, text: str) -> list[int]:
    """Model m's ids of a text prompt, by its own tokenizer."""
    return list(ensemble.tokenizers[m](text)["input_ids"])


def same(one: ed.Completion, other: ed.Completion) -> bool:
    """Equal results, whatever the batch."""
    fields = ("data", "token_ids", "finish_reason", "error", "ensembled_at")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


MIXED = ["The quick brown fox", "def f(x):\n", "Größe", "你好", "  \n\n", "a", "the cat " * 20, "12 + 7 ="]


@cache
def byte_ensemble(count: int, spread: float = 1.0, weights: tuple[float, ...] | None = None, twins: bool = False):
    """``count`` tiny models over single bytes; ``twins``: all of them the same model."""
    names = ["bytes"] * count
    families = ["llama"] * count if twins else ["llama", "qwen2", "gemma2", "mistral"] * count
    seed = [0] * count if twins else 0
    return ensemble_of(models(names, families=families, seed=seed, spread=spread), names, names=None, weight=weights)


def next_distribution(ensemble: ed.Ensemble, method, text: str) -> dict[bytes, float]:
    """E of the next token, from the trace of a greedy step (fuse_full's trace holds its most probable candidates)."""
    (row,) = ensemble.generate(text, method=method, max_new_tokens=1, trace=True)
    step = row.trace[0]
    return {c: p for c, p in zip(step.candidates, step.probs, strict=True) if p > 0}
