"""The regression guard: ratios of time within one process that must not fall by more than their noise. `make guard`.

    python benches/guard.py              # everything
    python benches/guard.py --prove      # also runs each operator three times over, and expects the guard to notice

**Operators.** The speed of an operator as a share of the speed of a plain read (``torch.amax``) of the same logits. The
logits lie in the caches near the core and neither side allocates much, so that the ratio holds on slow machines and on
busy ones: beside two processes that filled both cores the shares moved by a quarter, where ratios to torch's ``topk``
and ``softmax`` over four times as many logits moved from 1.8 to 4.9.

**Vocabularies.** Ids kept up to date while a text grows, against encoding all of it; a vocabulary from the disk cache,
against building it.

Exit code 1: a ratio has fallen.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ensemble_decode import kernels
from ensemble_decode.members.transformers.loading import load_tokenizer
from ensemble_decode.vocab.aligned import AlignedVocab
from ensemble_decode.vocab.incremental import IncrementalTokens
from ensemble_decode.vocab.model import ModelVocab

ROWS, TOKENS, TOP = 4, 16_384, 10
DEMOS = ("demo:smollm2", "demo:gemma3")
Sides = tuple[Callable[[], object], Callable[[], object]]


class Guard(NamedTuple):
    """A ratio of times, first side over second, that must not fall.

    Args:
        name: What is guarded.
        expected: The ratio on a quiet machine.
        noise: The share by which it may lie below that.
        make: Returns the two sides.
        rounds: How often each side runs.
    """

    name: str
    expected: float
    noise: float
    make: Callable[[], Sides]
    rounds: int = 25

    @property
    def least(self) -> float:
        return self.expected * (1 - self.noise)


class Verdict(NamedTuple):
    """``value``: the median time of the first side over the median time of the second."""

    guard: Guard
    value: float

    @property
    def holds(self) -> bool:
        return self.value >= self.guard.least

    def __str__(self) -> str:
        return f"{self.guard.name}: {self.value:.3f}, expected {self.guard.expected:g}, at least {self.guard.least:.3f}"


def measure(guard: Guard) -> Verdict:
    """Run both sides in turn and take processor time.

    Each side runs once unmeasured right before, so that both find their data in the caches whatever ran in between.
    """
    sides = guard.make()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(guard.rounds):
        for side, work in zip(times, sides, strict=True):
            work()
            began = time.process_time()
            work()
            side.append(time.process_time() - began)
    return Verdict(guard, statistics.median(times[0]) / statistics.median(times[1]))


def check(guards: Sequence[Guard], tries: int = 3) -> list[Verdict]:
    """One verdict per guard. One that does not hold is measured again: a busy machine can only make it look worse."""
    verdicts = []
    for guard in guards:
        verdict = measure(guard)
        for _ in range(tries - 1):
            if verdict.holds:
                break
            verdict = measure(guard)
        verdicts.append(verdict)
    return verdicts


def slowed(guard: Guard) -> Guard:
    """The guard with a second side that does its work three times."""

    def make() -> Sides:
        first, second = guard.make()
        return first, lambda: [second() for _ in range(3)]

    return guard._replace(name=f"{guard.name}, done three times", make=make)


# -- operators -----------------------------------------------------------------------------------------------------


def _logits(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, TOKENS, generator=torch.Generator().manual_seed(seed)) * 4


def _vocab() -> kernels.VocabTensors:
    """Two vocabularies of one size, the ids of the second in another order."""
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(2)).int()
    identity = torch.arange(TOKENS, dtype=torch.int32)
    back = torch.empty_like(order)
    back[order.long()] = identity
    everything = torch.full((1, TOKENS // 32), -1, dtype=torch.int32)
    eos = torch.tensor([TOKENS - 1], dtype=torch.int32)
    last = int(back[TOKENS - 1])
    return kernels.VocabTensors(
        to_cid=[identity, order],
        exact_id=[identity, back],
        piece_id=[identity, back],
        allowed=[everything, everything],
        eos_ids=[eos, torch.tensor([last], dtype=torch.int32)],
        prefix_end=identity + 1,
        space_cid=-1,
        size=TOKENS,
    )


def _read(*logits: torch.Tensor) -> Callable[[], object]:
    return lambda: [x.amax(-1) for x in logits]


def _topk() -> tuple[Callable[[], object], Callable[[], object]]:
    logits = _logits(0)
    return _read(logits), lambda: kernels.topk_stats(logits, TOP)


def _fuse() -> tuple[Callable[[], object], Callable[[], object]]:
    logits, vocab = [_logits(0), _logits(1)], _vocab()
    settings = kernels.FuseSettings.make(ROWS, 2, "cpu")
    return _read(*logits), lambda: kernels.fuse_step(logits, vocab, settings, TOP)


def _verify() -> tuple[Callable[[], object], Callable[[], object]]:
    logits, vocab = _logits(0), _vocab()
    targets = torch.arange(ROWS, dtype=torch.int32)
    return _read(logits), lambda: kernels.verify_draft(logits, targets, vocab.allowed[0], vocab.eos_ids[0])


OPERATORS = (
    Guard("topk_stats: share of a plain read's speed", 0.13, 0.4, _topk),
    Guard("fuse_step: share of a plain read's speed", 0.068, 0.4, _fuse),
    Guard("verify_draft: share of a plain read's speed", 0.123, 0.4, _verify),
)


# -- vocabularies --------------------------------------------------------------------------------------------------


def _update(vocab: ModelVocab, count: int) -> tuple[Callable[[], object], bytes]:
    """Sixteen tokens appended one by one behind ``count`` others; and the whole text."""
    text = (Path(__file__).parents[1] / "tests" / "support" / "corpus.txt").read_bytes() * 40
    ids = vocab.encode(text)[: count + 16]
    texts = [vocab.decode(ids[: count + n]) for n in range(17)]
    kept = IncrementalTokens(vocab)

    def work() -> None:
        for data in texts:  # the first takes the text back to where it began
            kept.update(data)

    return work, texts[-1]


def _growth(name: str) -> Sides:
    vocab = ModelVocab.build(load_tokenizer(name), name=name)
    return _update(vocab, 600)[0], _update(vocab, 3800)[0]


def _anew(name: str) -> Sides:
    vocab = ModelVocab.build(load_tokenizer(name), name=name)
    update, whole = _update(vocab, 3800)
    return lambda: [vocab.encode(whole) for _ in range(17)], update


def _from_the_cache() -> Sides:
    tokenizers = [load_tokenizer(name) for name in DEMOS]
    folder = tempfile.TemporaryDirectory()

    def cached(folder: tempfile.TemporaryDirectory[str] = folder) -> object:
        return AlignedVocab.build(tokenizers, names=DEMOS, cache_dir=folder.name)

    cached()
    return lambda: AlignedVocab.build(tokenizers, names=DEMOS, cache_dir=None), cached


VOCABULARIES = (
    *(Guard(f"{name}: a token appended at 600 / at 3800", 1.0, 0.6, lambda n=name: _growth(n), 5) for name in DEMOS),
    *(Guard(f"{name}: everything anew / a token appended", 60, 0.6, lambda n=name: _anew(n), 5) for name in DEMOS),
    Guard("demo vocabularies: built / from the disk cache", 8, 0.5, _from_the_cache, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--prove", action="store_true", help="also show that operators done three times over are noticed"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    native = kernels.status()["fuse_step"]["auto"].get("cpu") == "native"
    if not native:
        print("the native operators are not compiled in: their ratios are left out")
    guards = (*(OPERATORS if native else ()), *VOCABULARIES)
    wrong = []
    for verdict in check(guards):
        print(f"{'ok  ' if verdict.holds else 'FALL'} {verdict}")
        wrong += [] if verdict.holds else [verdict]
    for verdict in check([slowed(one) for one in OPERATORS]) if options.prove and native else ():
        print(f"{'MISS' if verdict.holds else 'seen'} {verdict}")
        wrong += [verdict] if verdict.holds else []
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
