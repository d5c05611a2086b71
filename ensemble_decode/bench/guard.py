"""The regression guard: a small fixed set of ratios that must not fall by more than their noise.

Ratios of two things that run in turn here and now, so that they hold on slow machines as on fast ones. What is expected, and how
much a ratio moves between runs on one thread of a shared machine, is written beside each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .. import kernels

ROWS, TOKENS, TOP = 4, 65_536, 10


class Guard(NamedTuple):
    """``make`` gives the two sides: the plain way, and this package's. ``expected``: plain over ours in time; ``noise``: the share by which
    it may lie below that."""

    name: str
    expected: float
    noise: float
    make: Callable[[], tuple[Callable[[], object], Callable[[], object]]]

    @property
    def least(self) -> float:
        return self.expected * (1 - self.noise)


class Verdict(NamedTuple):
    """``value``: the least time of the plain way over the least time of ours. Other processes can only add time: the least is the steadiest."""

    guard: Guard
    value: float

    @property
    def holds(self) -> bool:
        return self.value >= self.guard.least

    def __str__(self) -> str:
        return f"{self.guard.name}: {self.value:.2f}, expected {self.guard.expected:g}, at least {self.guard.least:.2f}"


def measure(guard: Guard, rounds: int = 25) -> Verdict:
    """Both sides in turn, ``rounds`` times after two that do not count, in processor time."""
    plain, ours = guard.make()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for side, work in zip(times, (plain, ours), strict=True):
            began = time.process_time()
            work()
            if number > 1:
                side.append(time.process_time() - began)
    return Verdict(guard, min(times[0]) / min(times[1]))


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


def _topk() -> tuple[Callable[[], object], Callable[[], object]]:
    logits = _logits(0)

    def plain() -> object:
        p = logits.log_softmax(-1)
        return logits.topk(TOP), logits.logsumexp(-1), -(p.exp() * p).sum(-1)

    return plain, lambda: kernels.topk_stats(logits, TOP)


def _fuse() -> tuple[Callable[[], object], Callable[[], object]]:
    logits, vocab = [_logits(0), _logits(1)], _vocab()
    settings = kernels.FuseSettings.make(ROWS, 2, "cpu")

    def plain() -> object:
        return [(x.topk(TOP), x.softmax(-1)) for x in logits]

    return plain, lambda: kernels.fuse_step(logits, vocab, settings, TOP)


def _verify() -> tuple[Callable[[], object], Callable[[], object]]:
    logits, vocab = _logits(0), _vocab()
    targets = torch.arange(ROWS, dtype=torch.int32)

    def plain() -> object:
        return logits.log_softmax(-1).gather(1, targets.long().unsqueeze(1)), logits.argmax(-1)

    return plain, lambda: kernels.verify_draft(logits, targets, vocab.allowed[0], vocab.eos_ids[0])


OPERATORS = (
    Guard("topk_stats: torch's topk, logsumexp and entropy / ours", 12.0, 0.5, _topk),
    Guard("fuse_step: torch's topk and softmax of both models / ours", 4.9, 0.5, _fuse),
    Guard("verify_draft: torch's log_softmax, gather and argmax / ours", 3.6, 0.35, _verify),
)
