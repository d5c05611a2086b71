"""Tiny ensembles, one model per tokenizer family, kept for the whole test session."""

from functools import cache

import ensemble_decode as ed
from support import tiny_models, tokenizers


@cache
def tiny(*names: str) -> ed.Ensemble:
    """One tiny model per tokenizer name, in order."""
    made = [tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=i) for i, name in enumerate(names)]
    return ed.Ensemble.from_models(made, [tokenizers.build(name) for name in names], names=list(names), cache_dir=None)


def same(one: ed.Completion, other: ed.Completion) -> bool:
    """Equal results, whatever the batch."""
    fields = ("data", "token_ids", "finish_reason", "error", "ensembled_at")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


MIXED = ["The quick brown fox", "def f(x):\n", "Größe", "你好", "  \n\n", "a", "the cat " * 20, "12 + 7 ="]


@cache
def byte_ensemble(count: int, spread: float = 1.0, weights: tuple[float, ...] | None = None, twins: bool = False):
    """``count`` tiny models over single bytes; ``twins``: all of them the same model."""
    families = ["llama", "qwen2", "gemma2", "mistral"]
    made = []
    for i in range(count):
        family, seed = ("llama", 0) if twins else (families[i % 4], i)
        made.append(tiny_models.tiny_model(family, "bytes", seed=seed, spread=spread))
    return ed.Ensemble.from_models(made, [tokenizers.build("bytes")] * count, weight=weights, cache_dir=None)


def next_distribution(ensemble: ed.Ensemble, method, text: str) -> dict[bytes, float]:
    """E of the next token, from the trace of a greedy step (fuse_full's trace holds its most probable candidates)."""
    (row,) = ensemble.generate(text, method=method, max_new_tokens=1, trace=True)
    step = row.trace[0]
    return {c: p for c, p in zip(step.candidates, step.probs, strict=True) if p > 0}
