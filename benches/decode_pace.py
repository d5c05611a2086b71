"""How fast rows are written once their prompts are read, and what single forwards of the same models take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

import ensemble_decode as ed
from ensemble_decode.decode.sequence import Row
from ensemble_decode.members.transformers.body import _cache_argument
from ensemble_decode.members.transformers.loading import LoadedModel
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.methods import Method


@dataclass
class Pace:
    """Rounds after a run's first one, which holds the prompts: seconds, and what was done in them over all rows."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0  # times rows: every row of a batch makes its own
    drafted: int = 0
    accepted: int = 0
    ensembled: int = 0
    unsafe: int = 0
    forward: float = 0.0
    fusion: float = 0.0

    @classmethod
    def so_far(cls, rows: Sequence[Row], seconds: float) -> Pace:
        stats = [row.stats for row in rows]
        return cls(
            seconds,
            sum(row.length for row in rows),
            sum(s.rounds for s in stats),
            sum(s.drafted for s in stats),
            sum(s.accepted for s in stats),
            sum(s.ensembled for s in stats),
            sum(s.unsafe for s in stats),
            sum(sum(s.forward_seconds) for s in stats),
            sum(s.fusion_seconds for s in stats),
        )

    def __sub__(self, other: Pace) -> Pace:
        return Pace(*(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __add__(self, other: Pace) -> Pace:
        return Pace(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def host_share(self) -> float:
        """The part of the time that is neither a forward nor fusion, the reading of deltas included."""
        return 1 - (self.forward + self.fusion) / self.seconds


def pace(ensemble: ed.Ensemble, prompts: list[str], method: Method, tokens: int, rounds: int | None = None) -> Pace:
    """Run all prompts as one batch for ``rounds`` rounds after the first (None: to the end), as long as no row has
    ended."""
    rows = ensemble.rows(prompts, method=method, max_new_tokens=tokens)
    moved = ensemble.run(rows, batch_size=len(rows))

    def one_round() -> None:
        for _ in rows:
            next(moved).delta()

    one_round()
    first, began, done = Pace.so_far(rows, 0.0), time.perf_counter(), 0
    while done != rounds and not any(row.finished for row in rows):
        one_round()
        done += 1
    seconds = time.perf_counter() - began
    moved.close()  # type: ignore[attr-defined]
    if not done:
        raise SystemExit(f"a row ended in its first round; give more than {tokens} tokens or other prompts")
    return Pace.so_far(rows, seconds) - first


class Forward:
    """One forward of ``width`` new tokens behind a context, head included, through the runner and through
    transformers."""

    def __init__(self, runner: Runner, original: LoadedModel, context: str, width: int):
        ids = original.tokenizer(context)["input_ids"]
        self.runner, self.model, self.width, self.length = runner, original.model, width, len(ids)
        self.slot = runner.acquire()
        runner.extend([self.slot], [ids], "none")
        self.cache = DynamicCache(config=self.model.config)
        self.options = {_cache_argument(self.model.base_model, original.name): self.cache}
        self.new = ids[:width]
        with torch.inference_mode():
            self.model(torch.tensor([ids]), logits_to_keep=1, **self.options)

    def close(self) -> None:
        self.runner.release(self.slot)

    def ours(self) -> float:
        began = time.perf_counter()
        self.runner.extend([self.slot], [self.new], "all")
        seconds = time.perf_counter() - began
        self.runner.rollback(self.slot, self.length)
        return seconds

    @torch.inference_mode()
    def theirs(self) -> float:
        began = time.perf_counter()
        self.model(torch.tensor([self.new]), **self.options)
        seconds = time.perf_counter() - began
        self.cache.crop(-self.width)
        return seconds


def generation(ensemble: ed.Ensemble, prompts: list[str], method: Method, tokens: int) -> Callable[[], float]:
    """Seconds per token of whole texts, prompts included."""

    def work() -> float:
        began = time.perf_counter()
        rows = ensemble.generate(prompts, method=method, max_new_tokens=tokens, batch_size=len(prompts))
        return (time.perf_counter() - began) / sum(len(row.token_ids) for row in rows)

    return work


def own_steps(entry: LoadedModel, prompt: str, tokens: int) -> Callable[[], float]:
    """Seconds per token of a model's own greedy decoding through transformers with its own cache, prompt included."""
    ids = torch.tensor([entry.tokenizer(prompt)["input_ids"]])

    @torch.inference_mode()
    def work() -> float:
        began = time.perf_counter()
        options = {_cache_argument(entry.model.base_model, entry.name): DynamicCache(config=entry.model.config)}
        out = entry.model(ids, logits_to_keep=1, **options)
        for _ in range(tokens - 1):
            out = entry.model(out.logits[:, -1:].argmax(-1), **options)
        return (time.perf_counter() - began) / tokens

    return work


def in_turn(variants: dict[str, Callable[[], object]], rounds: int, warm_up: bool = True) -> list[dict[str, object]]:
    """What every variant returns, run one after the other, ``rounds`` times; ``warm_up``: a first time is not kept."""
    kept = [{name: work() for name, work in variants.items()} for _ in range(rounds + warm_up)]
    return kept[warm_up:]


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the width of the interquartile range."""
    ranked = sorted(values)
    n = len(ranked)
    return statistics.median(ranked), (ranked[(3 * n) // 4] - ranked[n // 4]) / 2


def table(title: str, rows: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    print(f"\n{title}")
    for name, (value, spread), bound in rows:
        print(f"  {name:76} {value:7.2f} ± {spread:.2f}   {bound}")
