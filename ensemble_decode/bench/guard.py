"""The regression guard: a small fixed set of ratios that must not fall by more than their noise.

Each is the speed of an operator as a share of the speed of a plain read (``torch.amax``) of the same logits, both run in turn here
and now, so that it holds on slow machines as on fast ones. The logits lie in the caches near the core and neither side allocates
much, so that it holds on busy machines too: beside two processes that fill both cores the shares moved by a quarter, where ratios
to torch's ``topk`` and ``softmax`` of four times as many logits moved from 1.8 to 4.9. What is expected, and how much a share may
move between runs on one thread of a shared machine, is written beside each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ensemble_decode import kernels

ROWS, TOKENS, TOP = 4, 16_384, 10


class Guard(NamedTuple):
    """``make`` gives the two sides: the plain read, and the operator. ``expected``: read over operator in time; ``noise``: the share by
    which it may lie below that."""

    name: str
    expected: float
    noise: float
    make: Callable[[], tuple[Callable[[], object], Callable[[], object]]]

    @property
    def least(self) -> float:
        return self.expected * (1 - self.noise)


class Verdict(NamedTuple):
    """``value``: the median time of the plain read over the median time of the operator."""

    guard: Guard
    value: float

    @property
    def holds(self) -> bool:
        return self.value >= self.guard.least

    def __str__(self) -> str:
        return f"{self.guard.name}: {self.value:.3f}, expected {self.guard.expected:g}, at least {self.guard.least:.3f}"


def measure(guard: Guard, rounds: int = 25) -> Verdict:
    """Both sides in turn, ``rounds`` times, in processor time; each runs once unmeasured right before, so that both find the logits in
    the caches whatever ran in between."""
    sides = guard.make()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in zip(times, sides, strict=True):
            work()
            began = time.process_time()
            work()
            side.append(time.process_time() - began)
    return Verdict(guard, statistics.median(times[0]) / statistics.median(times[1]))


def check(guards: Sequence[Guard], tries: int = 3) -> list[Verdict]:
    """One verdict per guard; one that does not hold is measured again, for a busy machine can spoil a measurement, not mend one."""
    verdicts = []
    for guard in guards:
        verdict = measure(guard)
        for _ in range(tries - 1):
            if verdict.holds:
                break
            verdict = measure(guard)
        verdicts.append(verdict)
    return verdicts


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
