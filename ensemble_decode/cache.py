"""The KV cache of one model: row slots with a length each, rolled back in O(1) by shortening."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ensemble_decode.errors import CacheError


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps per token: ``heads`` keys of ``key_dim`` and values of ``value_dim`` elements."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class _Store:
    """One tensor ``[slots, heads, capacity, dim]`` and one spare position behind it that takes unwanted writes.

    Zeroed when allocated: attention gives hidden positions the weight 0, and 0 · NaN would not be 0.
    """

    def __init__(self, slots: int, heads: int, capacity: int, dim: int, dtype: torch.dtype, device: torch.device):
        self.flat = torch.zeros(slots * heads * capacity + 1, dim, dtype=dtype, device=device)
        self.view = self.flat[:-1].view(slots, heads, capacity, dim)

    def grown(self, slots: int, capacity: int, lengths: Sequence[int]) -> _Store:
        """A larger copy that keeps the first ``lengths[slot]`` positions of every slot."""
        _, heads, _, dim = self.view.shape
        other = _Store(slots, heads, capacity, dim, self.flat.dtype, self.flat.device)
        for slot, length in enumerate(lengths):
            if length:
                other.view[slot, :, :length] = self.view[slot, :, :length]
        return other


class LayerStore:
    """Keys and values of one layer, each ``[slots, heads, capacity, dim]``."""

    def __init__(self, shape: LayerShape, slots: int, capacity: int, device: torch.device):
        self.shape = shape
        self._keys = _Store(slots, shape.heads, capacity, shape.key_dim, shape.dtype, device)
        self._values = _Store(slots, shape.heads, capacity, shape.value_dim, shape.dtype, device)
        self._publish()

    def _publish(self) -> None:
        self.keys, self.values = self._keys.view, self._values.view
        self.flat_keys, self.flat_values = self._keys.flat, self._values.flat

    def write(self, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor) -> None:
        """Store ``keys``/``values`` ``[1, heads, N, dim]`` at flat positions ``index`` int64 ``[N · heads]``, token-major."""
        self.flat_keys.index_copy_(0, index, keys.transpose(1, 2).reshape(-1, keys.shape[-1]))
        self.flat_values.index_copy_(0, index, values.transpose(1, 2).reshape(-1, values.shape[-1]))

    def grow(self, slots: int, capacity: int, lengths: Sequence[int]) -> None:
        self._keys = self._keys.grown(slots, capacity, lengths)
        self._values = self._values.grown(slots, capacity, lengths)
        self._publish()

    def clear(self, slot: int, length: int) -> None:
        self.keys[slot, :, :length] = 0
        self.values[slot, :, :length] = 0


class SlotCache:
    """The preallocated keys and values of one model, in row slots.

    ``shapes``: one ``LayerShape`` per layer. ``block``: positions are allocated in multiples of it; ``slot_block``:
    slots likewise. ``max_slots``: rows at once. ``max_length``: positions that a row can ever need, so that growth does
    not overshoot. ``memory_limit``: bytes that may be allocated. None: no limit.
    Layout: ``[slots, heads, capacity, dim]`` per layer (why: docs/caches.md). Every error leaves the cache as it was.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        device: torch.device | str = "cpu",
        *,
        block: int = 256,
        slot_block: int = 4,
        max_slots: int | None = None,
        max_length: int | None = None,
        memory_limit: int | None = None,
        name: str = "model",
    ):
        if block < 1 or slot_block < 1:
            raise CacheError(f"{name}: cache blocks must be at least 1, got block={block}, slot_block={slot_block}")
        self.shapes = list(shapes)
        self.device = torch.device(device)
        self.block, self.slot_block = block, slot_block
        self.max_slots, self.max_length, self.memory_limit = max_slots, max_length, memory_limit
        self.name = name
        self.slots = 0
        self.capacity = 0
        self.generation = 0  # counts reallocations: what captured or compiled steps hold onto is stale when it moves
        self.layers: list[LayerStore] = []
        self._lengths: list[int] = []
        self._high_water: list[int] = []  # positions that may hold an earlier row's content
        self._held: list[bool] = []
        self._free: list[int] = []

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self) -> int:
        """The lowest free slot, empty and clean; grows by whole blocks when none is free.

        Lowest first keeps the held slots together, and contiguous slots are read without a copy.
        """
        if not self._free:
            self.reserve(self.slots + 1, self.capacity)
        slot = heapq.heappop(self._free)
        for layer in self.layers:
            layer.clear(slot, self._high_water[slot])
        self._high_water[slot] = 0
        self._lengths[slot] = 0
        self._held[slot] = True
        return slot

    def release(self, slot: int) -> None:
        self._check_held(slot)
        self._held[slot] = False
        self._lengths[slot] = 0
        heapq.heappush(self._free, slot)

    def length(self, slot: int) -> int:
        self._check_held(slot)
        return self._lengths[slot]

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a slot to ``length`` tokens; nothing is moved or cleared."""
        self._check_held(slot)
        have = self._lengths[slot]
        if not 0 <= length <= have:
            raise CacheError(
                f"{self.name}: slot {slot} holds {have} tokens, so it can be rolled back to 0..{have}, not to {length}"
            )
        self._lengths[slot] = length

    def advance(self, slot: int, count: int) -> None:
        """Count ``count`` tokens that were written behind the slot's length."""
        self._check_held(slot)
        length = self._lengths[slot] + count
        if length > self.capacity:
            raise CacheError(
                f"{self.name}: slot {slot} would hold {length} tokens, the cache has room for {self.capacity}"
            )
        self._lengths[slot] = length
        self._high_water[slot] = max(self._high_water[slot], length)

    def touch(self, slot: int, length: int) -> None:
        """Note that positions up to ``length`` may be written, before they are, so that they are cleared on reuse."""
        self._high_water[slot] = max(self._high_water[slot], min(length, self.capacity))

    def _check_held(self, slot: int) -> None:
        if not 0 <= slot < self.slots or not self._held[slot]:
            raise CacheError(f"{self.name}: slot {slot} is not held; acquire() gives one")

    # -- memory --------------------------------------------------------------------------------------------------

    def reserve(self, slots: int, length: int) -> None:
        """Make room for ``slots`` rows of ``length`` tokens, now and in one piece.

        Grows by half at least, in whole blocks, as far as the limits allow; never shrinks. Over a limit: ``CacheError``
        with the figures, and nothing has changed.
        """
        if self.max_slots is not None and slots > self.max_slots:
            raise CacheError(f"{self.name}: {slots} row slots asked for, max_slots is {self.max_slots}")
        if self.max_length is not None and length > self.max_length:
            raise CacheError(f"{self.name}: room for {length} tokens asked for, max_length is {self.max_length}")
        need = self._rounded(max(slots, self.slots), max(length, self.capacity))
        if need == (self.slots, self.capacity):
            return
        roomy = self._rounded(
            max(slots, self.slots + self.slots // 2) if slots > self.slots else self.slots,
            max(length, self.capacity + self.capacity // 2) if length > self.capacity else self.capacity,
        )
        new = roomy if self._fits(roomy) else need
        if not self._fits(new):
            raise CacheError(
                f"{self.name}: {new[0]} row slots of {new[1]} tokens need {self._bytes(*new):,} bytes of KV cache, "
                f"memory_limit is {self.memory_limit:,} ({self.bytes_allocated:,} allocated now, for {self.slots} slots of "
                f"{self.capacity}); use fewer rows, shorter texts or a higher limit"
            )
        self._reallocate(*new)

    def _rounded(self, slots: int, length: int) -> tuple[int, int]:
        slots = -(-slots // self.slot_block) * self.slot_block
        length = -(-max(length, 1) // self.block) * self.block
        if self.max_slots is not None:
            slots = min(slots, self.max_slots)
        if self.max_length is not None:
            length = min(length, self.max_length)
        return slots, length

    def _bytes(self, slots: int, capacity: int) -> int:
        spare = sum((shape.key_dim + shape.value_dim) * shape.dtype.itemsize for shape in self.shapes)
        return slots * capacity * self.bytes_per_token + spare

    def _fits(self, size: tuple[int, int]) -> bool:
        return self.memory_limit is None or self._bytes(*size) <= self.memory_limit

    def _reallocate(self, slots: int, capacity: int) -> None:
        if not self.layers:
            self.layers = [LayerStore(shape, slots, capacity, self.device) for shape in self.shapes]
        else:  # layer by layer, so that the peak is one layer over the new size
            for layer in self.layers:
                layer.grow(slots, capacity, self._lengths)
        # what lay behind a row's length was not copied
        self._high_water = list(self._lengths)
        for slot in range(self.slots, slots):
            self._lengths.append(0)
            self._high_water.append(0)
            self._held.append(False)
            heapq.heappush(self._free, slot)
        self.slots, self.capacity = slots, capacity
        self.generation += 1

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes over all layers."""
        return sum(shape.bytes_per_token for shape in self.shapes)

    @property
    def bytes_allocated(self) -> int:
        """Bytes held for keys and values, used or not."""
        return self._bytes(self.slots, self.capacity) if self.layers else 0

    @property
    def bytes_used(self) -> int:
        """Bytes of the tokens that held rows can still see."""
        return sum(self._lengths) * self.bytes_per_token
