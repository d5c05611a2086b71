"""The KV cache of one model: row slots with a length each, rolled back in O(1) by shortening."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import torch

from ensemble_decode.errors import CacheError, CacheLimitError
from ensemble_decode.members.transformers.layer_store import LayerShape, LayerStore
from ensemble_decode.members.transformers.prefixes import Prefixes


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
        self._torn = False  # an allocation failed half-way: layers of two sizes
        self._prefixes = Prefixes()
        self.peak_bytes = 0  # the most that was ever held at once, copies included

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Sequence[int] | None = None) -> int:
        """The lowest free slot, clean behind its length; grows by whole blocks when none is free.

        Lowest first keeps the held slots together, and contiguous slots are read without a copy. ``ids``: what the row is to
        hold. Where a slot begins with enough of them, the new row has that beginning already (see ``take_over``), and others may take
        over from it. Without ``ids`` neither.
        """
        if not self._free:
            self.grow(slots=self.slots + 1)
        source, length = self._prefixes.longest(ids, self._standing) if ids is not None else (-1, 0)
        slot = heapq.heappop(self._free)
        kept = length if slot == source else 0  # an earlier row has left here what this one begins with
        for layer in self.layers:
            layer.clear(slot, kept, self._high_water[slot])
        self._high_water[slot] = kept
        self._lengths[slot] = kept
        self._held[slot] = True
        if ids is None:
            self._prefixes.drop(slot)
        else:
            self._prefixes.begin(slot, ids[:kept])
            if length > kept:
                self.copy_prefix(source, slot, length)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back. Rows acquired with their ids may still take over what it holds, until it is reused or ``forget``."""
        self._check_held(slot)
        self._prefixes.cut(slot, self._lengths[slot])
        self._held[slot] = False
        self._lengths[slot] = 0
        heapq.heappush(self._free, slot)

    # -- common beginnings ---------------------------------------------------------------------------------------

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens of a row's beginning that some slot holds; 0 where too few to copy, and never the last of ``ids``."""
        return self._prefixes.longest(ids, self._standing)[1]

    def take_over(self, slot: int, ids: Sequence[int]) -> int:
        """Copy what another slot holds of the beginning of ``ids`` into a slot that is still empty; how many tokens that were.

        Only into slots that were acquired with their ids.
        """
        self._check_held(slot)
        if self._lengths[slot] or not self._prefixes.begun(slot):
            return 0
        source, length = self._prefixes.longest(ids, self._standing)
        if length:
            self.copy_prefix(source, slot, length)
        return length

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Begin the empty row in slot ``target`` with the first ``length`` tokens of slot ``source``, held or released.

        Keys are stored with their positions applied and sliding layers keep all of them, so a copy is what a forward of the same
        tokens would have written. Raises ``CacheError`` where ``target`` is not empty or ``source`` does not hold as many.
        """
        self._check_held(target)
        standing = self._standing(source)
        if self._lengths[target] or source == target or not 0 <= length <= standing:
            raise CacheError(
                f"{self.name}: {length} tokens of slot {source}, which holds {standing} that are known, cannot be copied to slot "
                f"{target}, which holds {self._lengths[target]}"
            )
        for layer in self.layers:
            layer.copy(source, target, length)
        self.advance(target, length, self._prefixes.known(source)[:length])

    def forget(self) -> None:
        """Let nothing that slots hold now be taken over any more, whether they are held or released."""
        self._prefixes.forget(slot for slot in range(self.slots) if self._held[slot])

    def _standing(self, slot: int) -> int:
        """Tokens at the front of a slot that are known and still there."""
        known = len(self._prefixes.known(slot))
        return min(known, self._lengths[slot]) if self._held[slot] else known

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

    def advance(self, slot: int, count: int, ids: Sequence[int] = ()) -> None:
        """Count ``count`` tokens that were written behind the slot's length; ``ids``: which, where known."""
        self._check_held(slot)
        length = self._lengths[slot] + count
        if length > self.capacity:
            raise CacheError(
                f"{self.name}: slot {slot} would hold {length} tokens, the cache has room for {self.capacity}"
            )
        self._prefixes.note(slot, self._lengths[slot], ids)
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

        Grows by half at least, in whole blocks of slots and positions, as far as the limits allow; never shrinks. Over a limit: ``CacheError``
        with the figures, and nothing has changed.
        """
        self._check_limits(slots, length)
        self._enlarge(slots, length, self.slots, self.capacity)

    def grow(self, slots: int = 0, length: int = 0) -> None:
        """Make room as ``reserve`` does, without what no row uses where that would more than double the cache.

        One long row after many short ones needs its positions in its own slot, not in all of them. Slots behind the last held one
        stay behind when rows get longer (also where the limit leaves no room for them), positions behind the longest row when there
        are more rows.
        """
        self._check_limits(slots, length)
        if slots <= self.slots and length <= self.capacity:
            return
        kept = (self.slots, self.capacity)
        used = (
            max((s + 1 for s, held in enumerate(self._held) if held), default=0)
            if length > self.capacity
            else self.slots,
            self.longest if slots > self.slots else self.capacity,
        )
        whole, lean = (self._rounded(max(slots, s), max(length, n)) for s, n in (kept, used))
        leave = self._bytes(*whole) > 2 * self._bytes(*lean) or (length > self.capacity and not self._fits(whole))
        self._enlarge(slots, length, *(used if leave else kept))

    def _check_limits(self, slots: int, length: int) -> None:
        if self._torn:
            raise CacheError(
                f"{self.name}: an allocation of the KV cache failed half-way; release every slot and reset()"
            )
        if self.max_slots is not None and slots > self.max_slots:
            raise CacheLimitError(f"{self.name}: {slots} row slots asked for, max_slots is {self.max_slots}")
        if self.max_length is not None and length > self.max_length:
            raise CacheError(f"{self.name}: room for {length} tokens asked for, max_length is {self.max_length}")

    def _enlarge(self, slots: int, length: int, from_slots: int, from_length: int) -> None:
        """Reallocate for ``slots`` rows of ``length`` tokens; what grows, grows by half of ``from_...`` where the limit allows."""
        need = self._rounded(max(slots, from_slots), max(length, from_length))
        if need == (self.slots, self.capacity):
            return
        roomy = self._rounded(
            max(slots, from_slots + from_slots // 2) if slots > from_slots else from_slots,
            max(length, from_length + from_length // 2) if length > from_length else from_length,
        )
        exact = (max(slots, from_slots), need[1])
        new = next((size for size in (roomy, need, exact) if self._fits(size)), exact)
        if not self._fits(new):
            raise CacheLimitError(self._too_large(new))
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

    def could_hold(self, slots: int, length: int) -> bool:
        """Whether the limits allow a cache of that many rows of that many tokens."""
        if (self.max_slots is not None and slots > self.max_slots) or (
            self.max_length is not None and length > self.max_length
        ):
            return False
        return self._size_for(slots, length) is not None

    def why_not(self, slots: int, length: int) -> str | None:
        """The figures that make ``could_hold`` false; None where it is true."""
        if self.could_hold(slots, length):
            return None
        if self.max_slots is not None and slots > self.max_slots:
            return f"{self.name}: {slots} row slots asked for, max_slots is {self.max_slots}"
        if self.max_length is not None and length > self.max_length:
            return f"{self.name}: room for {length} tokens asked for, max_length is {self.max_length}"
        return self._too_large((slots, self._rounded(slots, length)[1]))

    def _too_large(self, size: tuple[int, int]) -> str:
        return (
            f"{self.name}: {size[0]} row slots of {size[1]} tokens need {self._bytes(*size):,} bytes of KV cache, "
            f"memory is limited to {self.memory_limit:,} ({self.bytes_allocated:,} allocated now, for {self.slots} slots of "
            f"{self.capacity}); use fewer rows, shorter texts or a higher limit"
        )

    def within_context(self, length: int) -> int:
        """A length, at most what a row can ever need."""
        return length if self.max_length is None else min(length, self.max_length)

    def _size_for(self, slots: int, length: int) -> tuple[int, int] | None:
        """In whole blocks, or of just so many slots where these do not fit; None over the limit."""
        rounded = self._rounded(slots, length)
        return next((size for size in (rounded, (slots, rounded[1])) if self._fits(size)), None)

    def reshape(self, slots: int, length: int) -> dict[int, int]:
        """Make the cache just large enough for ``slots`` rows of ``length`` tokens, be it smaller in one respect than it is.

        Held slots past the end move to free ones: returns ``{old slot: new slot}`` of those. Raises ``CacheLimitError`` over a
        limit and ``CacheError`` where the held rows would not fit; nothing has changed then.
        """
        size = self._size_for(slots, length) if self.could_hold(slots, length) else None
        if size is None:
            raise CacheLimitError(
                f"{self.name}: {slots} row slots of {length} tokens need {self._bytes(*self._rounded(slots, length)):,} bytes of KV "
                f"cache, memory_limit is {self.memory_limit}, max_slots {self.max_slots}, max_length {self.max_length}"
            )
        new_slots, capacity = size
        if new_slots < self.held or capacity < self.longest:
            raise CacheError(
                f"{self.name}: {new_slots} slots of {capacity} tokens cannot hold {self.held} rows of up to {self.longest} tokens"
            )
        free = [slot for slot in range(new_slots) if slot >= self.slots or not self._held[slot]]
        moved = {slot: free.pop(0) for slot in range(new_slots, self.slots) if self._held[slot]}
        self._reallocate(new_slots, capacity, moved)
        return moved

    def reset(self) -> None:
        """Free all memory. Raises ``CacheError`` where a slot is held."""
        if self.held:
            raise CacheError(f"{self.name}: {self.held} slots are held; release them before reset()")
        self.layers, self.slots, self.capacity = [], 0, 0
        self._lengths, self._high_water, self._held, self._free = [], [], [], []
        self._prefixes.move({})
        self._torn = False
        self.generation += 1

    def _reallocate(self, slots: int, capacity: int, moved: Mapping[int, int] | None = None) -> None:
        moved = moved or {}
        self._torn = True  # until every layer has the new size
        if not self.layers:
            self.layers = [LayerStore(shape, slots, capacity, self.device) for shape in self.shapes]
        else:  # keys or values of one layer at a time, so that the peak is one of these over the larger size
            kept = {s: (moved.get(s, s), n) for s, n in enumerate(self._lengths) if n}
            for layer in self.layers:
                layer.resize(slots, capacity, kept)
        self._torn = False
        self.peak_bytes = max(
            self.peak_bytes,
            max(self._bytes(slots, capacity), self._bytes(self.slots, self.capacity))
            + (min(slots * capacity, self.slots * self.capacity) + 1) * self._largest_store,
        )
        homes = {s: moved.get(s, s) for s in range(self.slots) if self._held[s]}
        self._prefixes.move(homes)
        lengths, held = [0] * slots, [False] * slots
        for slot, to in homes.items():
            lengths[to], held[to] = self._lengths[slot], True
        self._lengths, self._held = lengths, held
        self._high_water = list(lengths)  # what lay behind a row's length was not copied
        self._free = [slot for slot in range(slots) if not held[slot]]  # ascending, which is a heap
        self.slots, self.capacity = slots, capacity
        self.generation += 1

    @property
    def held(self) -> int:
        """Slots that rows hold."""
        return sum(self._held)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self._lengths, default=0)

    def limit_for_peak(self, peak: int) -> int:
        """The ``memory_limit`` under which the cache stays below ``peak`` bytes also while it is copied to another size."""
        share = self._largest_store / max(self.bytes_per_token, 1)
        return int(peak / (1 + share))

    @property
    def _largest_store(self) -> int:
        """Bytes per token of the largest tensor: one layer's keys or values."""
        return max((s.heads * max(s.key_dim, s.value_dim) * s.dtype.itemsize for s in self.shapes), default=0)

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
