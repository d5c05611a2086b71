"""The members' forwards for rows, explicit roll back, and prompts that ride along in other rows' forwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from ensemble_decode.decode.sequence import Row
from ensemble_decode.members.protocol import Logits, Member
from ensemble_decode.members.tree import Tree


@dataclass
class Clock:
    """Seconds of one round so far.

    Attributes:
        forward: Of each model's forwards.
        fusion: Of fusion, its one transfer to the host included.
        started: When the round began, by ``time.perf_counter``.
    """

    forward: list[float]
    fusion: float = 0.0
    started: float = field(default_factory=time.perf_counter)


class Forwards:
    """Every member's forwards for any rows of the batch.

    ``row.held[m]`` counts the leading ids of prompt + ``row.ids[m]`` that are in the cache of model m for sure. What
    lies behind them there is a draft, until ``roll_back`` takes it away.

    Args:
        members: The models, in order.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.clock = Clock([0.0] * len(self.members))
        self._riders: list[list[tuple[Row, list[int]]]] = [[] for _ in self.members]

    def start_round(self) -> Clock:
        """Begin to count anew; the clock of the round."""
        self.clock = Clock([0.0] * len(self.members))
        return self.clock

    def next_logits(self, m: int, rows: Sequence[Row], device: torch.device) -> torch.Tensor:
        """Model m's logits [B, V_m] of what comes next in each row, on ``device``; forwards only what is pending."""
        for row in rows:
            if not row.held[m]:  # a model that had not been asked yet: another row may have been read meanwhile
                row.held[m] = self.members[m].take_over(row.slot(m), row.pending(m))
        pending = [row.pending(m) for row in rows]
        for row, ids in zip(rows, pending, strict=True):
            self.roll_back(m, row, row.total(m) - len(ids))  # what no longer agrees with the text goes
        logits = self.extend(m, rows, pending, "last", device).values
        for row, ids in zip(rows, pending, strict=True):
            row.held[m] += len(ids)
        return logits

    def extend(
        self,
        m: int,
        rows: Sequence[Row],
        ids: Sequence[Sequence[int]],
        logits: Literal["last"] | list[int],
        device: torch.device,
    ) -> Logits:
        """Forward ``ids[i]`` behind what model m's cache holds of row i; the logits asked for, on ``device``.

        Chunks of prompts that wait for a forward of model m ride along.
        """
        began = time.perf_counter()
        riders = self._riders[m]
        if riders:
            self._riders[m] = []
            counts = [1] * len(rows) if logits == "last" else list(logits)
            logits = [*counts, *([0] * len(riders))]
        everyone = [*rows, *(row for row, _ in riders)]
        news = [*ids, *(chunk for _, chunk in riders)]
        out = self.members[m].extend([row.slot(m) for row in everyone], news, logits)
        for row, new in zip(everyone, news, strict=True):
            row.stats.forwarded[m] += len(new)
        for row, chunk in riders:
            row.held[m] += len(chunk)
        out = _moved(out, device)
        self.clock.forward[m] += time.perf_counter() - began
        return out

    def roll_back(self, m: int, row: Row, length: int) -> None:
        """Cut model m's cache of a row to its first ``length`` positions, which agree with prompt + ``row.ids[m]``."""
        slot = row.slot(m)
        there = self.members[m].length(slot)
        if there > length:
            self.members[m].rollback(slot, length)
        row.held[m] = min(there, length)

    def read_trees(self, m: int, rows: Sequence[Row], trees: Sequence[Tree], device: torch.device) -> Logits:
        """Model m's logits behind the wanted nodes of each row's tree, on ``device``."""
        began = time.perf_counter()
        out = self.members[m].read_trees([row.slot(m) for row in rows], trees)
        for row, tree in zip(rows, trees, strict=True):
            row.stats.forwarded[m] += len(tree.ids)
        out = _moved(out, device)
        self.clock.forward[m] += time.perf_counter() - began
        return out

    def keep_paths(self, m: int, rows: Sequence[Row], trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> None:
        """Make one path of each row's tree, read just before, part of model m's cache of the row."""
        self.members[m].keep_paths([row.slot(m) for row in rows], trees, paths)
        for row, tree, path in zip(rows, trees, paths, strict=True):
            row.held[m] = tree.forks[path[0]] + len(path)

    def leave(self, row: Row, m: int) -> None:
        """Model m takes no further part in a row; its slot is free for another."""
        self.members[m].release(row.slot(m))
        row.slots[m] = None
        row.drop_model(m)

    # -- prompts that ride along -----------------------------------------------------------------------------------

    def ride(self, m: int, row: Row, chunk: list[int]) -> None:
        """Let a chunk of a new row's prompt wait for model m's next forward."""
        self._riders[m].append((row, chunk))

    def flush(self) -> None:
        """Forward the chunks that still wait: no forward of their models was wanted in this round."""
        for m, waiting in enumerate(self._riders):
            if waiting:
                self.extend(m, (), (), [], self.members[m].device)

    def drop_riders(self) -> None:
        """Forget the chunks that wait."""
        for waiting in self._riders:
            waiting.clear()


def _moved(out: Logits, device: torch.device) -> Logits:
    return out if out.values.device == device else replace(out, values=out.values.to(device))
