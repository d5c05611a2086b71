"""How large a KV cache is made: whole blocks, growth by half, and what the limits allow. No tensor in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ensemble_decode.errors import CacheError
from ensemble_decode.members.transformers.layer_store import LayerShape


class CacheSize(NamedTuple):
    """The two extents that all layers of a cache share.

    Attributes:
        slots: Rows.
        length: Positions of each.
    """

    slots: int
    length: int


@dataclass
class CacheLimits:
    """What bounds a cache, and the blocks in which it grows.

    Attributes:
        shapes: One per layer.
        block: Positions are allocated in multiples of it.
        slot_block: Slots are allocated in multiples of it.
        max_slots: The most slots; None: no limit.
        max_length: The most positions that a row can ever need, so that growth does not overshoot; None: no limit.
        memory: Bytes that may be allocated; None: no limit.
        name: What errors call the model.
    """

    shapes: Sequence[LayerShape]
    block: int = 256
    slot_block: int = 4
    max_slots: int | None = None
    max_length: int | None = None
    memory: int | None = None
    name: str = "model"

    def __post_init__(self) -> None:
        if self.block < 1 or self.slot_block < 1:
            raise CacheError(
                f"{self.name}: cache blocks must be at least 1, got block={self.block}, slot_block={self.slot_block}"
            )

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes over all layers."""
        return sum(shape.bytes_per_token for shape in self.shapes)

    @property
    def largest_store(self) -> int:
        """Bytes per token of the largest tensor: one layer's keys or values."""
        return max((s.heads * max(s.key_dim, s.value_dim) * s.dtype.itemsize for s in self.shapes), default=0)

    def bytes(self, size: CacheSize) -> int:
        """Bytes of a cache of this size, the spare position of every tensor included."""
        spare = sum((shape.key_dim + shape.value_dim) * shape.dtype.itemsize for shape in self.shapes)
        return size.slots * size.length * self.bytes_per_token + spare

    def fits(self, size: CacheSize) -> bool:
        """Whether a cache of this size stays within ``memory``."""
        return self.memory is None or self.bytes(size) <= self.memory

    def rounded(self, size: CacheSize) -> CacheSize:
        """The size in whole blocks, as far as ``max_slots`` and ``max_length`` go."""
        slots = -(-size.slots // self.slot_block) * self.slot_block
        length = -(-max(size.length, 1) // self.block) * self.block
        return CacheSize(
            slots if self.max_slots is None else min(slots, self.max_slots),
            length if self.max_length is None else min(length, self.max_length),
        )

    def within_context(self, length: int) -> int:
        """A length, at most what a row can ever need."""
        return length if self.max_length is None else min(length, self.max_length)

    def allowed(self, size: CacheSize) -> CacheSize | None:
        """The smallest cache that holds ``size`` within the limits: in whole blocks, or with exactly that many slots.

        Returns:
            Its size; None where the limits allow none.
        """
        if self.too_many(size) is not None:
            return None
        whole = self.rounded(size)
        return next((s for s in (whole, CacheSize(size.slots, whole.length)) if self.fits(s)), None)

    def grown(self, needed: CacheSize, kept: CacheSize) -> CacheSize:
        """The size of a cache that is enlarged from ``kept`` to hold ``needed`` as well.

        What grows, grows by half at least, so that a cache that grows step by step is copied a few times only. Where
        memory does not allow that, it grows by what is needed, in whole blocks; or else by single slots, whether or
        not memory allows that.
        """
        least = CacheSize(max(needed.slots, kept.slots), max(needed.length, kept.length))
        by_half = CacheSize(
            max(needed.slots, kept.slots + kept.slots // 2) if needed.slots > kept.slots else kept.slots,
            max(needed.length, kept.length + kept.length // 2) if needed.length > kept.length else kept.length,
        )
        whole = self.rounded(least)
        single_slots = CacheSize(least.slots, whole.length)
        return next((size for size in (self.rounded(by_half), whole) if self.fits(size)), single_slots)

    def too_many(self, size: CacheSize) -> str | None:
        """What ``max_slots`` and ``max_length`` say against a size; None where nothing."""
        if self.max_slots is not None and size.slots > self.max_slots:
            return f"{self.name}: {size.slots} row slots asked for, max_slots is {self.max_slots}"
        if self.max_length is not None and size.length > self.max_length:
            return f"{self.name}: room for {size.length} tokens asked for, max_length is {self.max_length}"
        return None

    def for_peak(self, peak: int) -> int:
        """The ``memory`` under which a cache stays below ``peak`` bytes also while it is copied to another size."""
        share = self.largest_store / max(self.bytes_per_token, 1)
        return int(peak / (1 + share))
