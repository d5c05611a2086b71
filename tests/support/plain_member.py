"""The slowest member there is: it keeps the ids of its rows and computes every logit from scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ensemble_decode.errors import CacheError, CacheLimitError, ContextError, InputError
from ensemble_decode.members.protocol import Capabilities, Logits
from ensemble_decode.members.tree import Tree


@dataclass
class Count:
    tokens: int = 0
    forwards: int = 0
    reused: int = 0
    seconds: float = 0.0


class PlainMember:
    """A member over ``fresh``, which gives the logits [n, V] of a text of n ids; no cache, no batch, no
    transformers."""

    bytes_per_token = 8

    def __init__(self, fresh: Callable[[Sequence[int]], torch.Tensor], size: int, context_length: int, vocab=None):
        self._fresh, self._size = fresh, size
        self.name, self.vocab, self.context_length = "plain", vocab, context_length
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.capabilities = Capabilities(common_beginnings=False)
        self.stats = Count()
        self.memory: int | None = None
        self._rows: dict[int, list[int]] = {}
        self.peak_bytes = 0

    def _row(self, slot: int) -> list[int]:
        if slot not in self._rows:
            raise CacheError(f"plain: slot {slot} is not held")
        return self._rows[slot]

    def acquire(self, ids=None) -> int:
        slot = next(i for i in range(len(self._rows) + 1) if i not in self._rows)
        self._rows[slot] = []
        return slot

    def take_over(self, slot: int, ids) -> int:
        return 0

    def release(self, slot: int) -> None:
        self._row(slot)
        del self._rows[slot]

    def length(self, slot: int) -> int:
        return len(self._row(slot))

    def rollback(self, slot: int, length: int) -> None:
        if not 0 <= length <= len(self._row(slot)):
            raise CacheError(f"plain: slot {slot} holds {len(self._row(slot))} tokens, asked for {length}")
        del self._rows[slot][length:]

    def shared(self, ids) -> int:
        return 0

    def forget(self) -> None:
        pass

    def extend(self, slots, new_ids, logits="last") -> Logits:
        counts = [len(ids) for ids in new_ids]
        words = {"last": [1] * len(counts), "all": counts, "none": [0] * len(counts)}
        if isinstance(logits, str) and logits not in words:
            raise InputError(f"plain: logits={logits!r}")
        wanted = words[logits] if isinstance(logits, str) else list(logits)
        if len(set(slots)) != len(slots) or len(slots) != len(counts) or len(wanted) != len(counts):
            raise InputError("plain: every slot once, with its ids")
        for slot, ids, count, want in zip(slots, new_ids, counts, wanted, strict=True):
            if len(self._row(slot)) + count > self.context_length:
                raise ContextError(f"plain: slot {slot} would pass {self.context_length} tokens")
            if not 0 <= want <= count or not all(0 <= i < self._size for i in ids):
                raise InputError("plain: ids or positions that are not there")
        parts, starts = [], [0]
        for slot, ids, want in zip(slots, new_ids, wanted, strict=True):
            self._rows[slot] = self._rows[slot] + list(ids)
            if want:
                parts.append(self._fresh(self._rows[slot])[-want:])
            starts.append(starts[-1] + want)
        self.stats.tokens += sum(counts)
        self.stats.forwards += 1
        self.peak_bytes = max(self.peak_bytes, self.bytes_allocated)
        return Logits(torch.cat(parts) if parts else torch.empty(0, self._size), starts)

    def read_trees(self, slots, trees: Sequence[Tree]) -> Logits:
        if len(slots) != len(trees):
            raise InputError("plain: as many slots as trees")
        for slot, tree in zip(slots, trees, strict=True):
            if max(tree.forks, default=0) > len(self._row(slot)):
                raise InputError("plain: a fork behind the row's end")
            if not all(0 <= i < self._size for i in tree.ids):
                raise InputError("plain: an id that is not there")
            if max(tree.positions, default=0) >= self.context_length:
                raise ContextError("plain: a node past the context")
        parts, starts = [], [0]
        for slot, tree in zip(slots, trees, strict=True):
            for node in tree.wanted:
                parts.append(self._fresh(self._row(slot)[: tree.forks[node]] + tree.tokens_to(node))[-1:])
            starts.append(len(parts))
            self.stats.tokens += len(tree.ids)
        self.stats.forwards += 1
        return Logits(torch.cat(parts) if parts else torch.empty(0, self._size), starts)

    def keep_paths(self, slots, trees, paths) -> None:
        for slot, tree, path in zip(slots, trees, paths, strict=True):
            self._rows[slot] = self._row(slot)[: tree.forks[path[0]]] + [tree.ids[node] for node in path]

    @property
    def bytes_allocated(self) -> int:
        return self.bytes_per_token * sum(map(len, self._rows.values()))

    def watch_peak(self) -> None:
        self.peak_bytes = self.bytes_allocated

    def limit_memory(self, limit: int | None) -> None:
        self.memory = limit

    def limit_peak(self, peak: int) -> None:
        self.memory = min(peak, self.memory or peak)

    @property
    def limited(self) -> bool:
        return self.memory is not None

    @property
    def held(self) -> int:
        return len(self._rows)

    @property
    def longest(self) -> int:
        return max(map(len, self._rows.values()), default=0)

    def could_hold(self, rows: int, length: int) -> bool:
        return self.memory is None or rows * min(length, self.context_length) * self.bytes_per_token <= self.memory

    def make_room(self, rows: int, length: int, *, ahead: int, most: int) -> Mapping[int, int]:
        if not self.could_hold(rows, length):
            raise CacheLimitError(str(self.why_not(rows, length)))
        return {}

    def free_memory(self) -> None:
        pass

    def why_not(self, rows: int, length: int) -> str | None:
        if self.could_hold(rows, length):
            return None
        return f"plain: {rows} rows of {length} tokens do not fit into {self.memory} bytes"
