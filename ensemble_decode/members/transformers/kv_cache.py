"""The KV cache of one model: row slots with a length each, rolled back in O(1) by shortening."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import torch

from ensemble_decode.errors import CacheError, CacheLimitError
from ensemble_decode.members.transformers.cache_size import CacheLimits, CacheSize
from ensemble_decode.members.transformers.layer_store import LayerStore
from ensemble_decode.members.transformers.prefixes import Prefixes


class SlotCache:
    """The preallocated keys and values of one model, in row slots.

    Per layer one tensor of keys and one of values, ``[slots, heads, capacity, dim]`` (why: docs/caches.md), and a
    length per slot. Every error leaves the cache as it was.

    Args:
        limits: The shapes of the layers, the blocks in which the cache grows, and what bounds it. They may change while
            the cache is used.
        device: Where keys and values lie.

    Attributes:
        layers: The tensors of every layer; none before the first slot.
        slots: Rows that there is memory for.
        capacity: Positions of each.
        generation: Counts reallocations. What captured or compiled steps hold on to is stale when it moves.
        peak_bytes: The most bytes that were held at once, copies while growing included.
    """

    def __init__(self, limits: CacheLimits, device: torch.device | str = "cpu"):
        self.limits = limits
        self.name = limits.name
        self.device = torch.device(device)
        self.slots = 0
        self.capacity = 0
        self.generation = 0
        self.layers: list[LayerStore] = []
        self.peak_bytes = 0
        self._lengths: list[int] = []
        self._high_water: list[int] = []  # positions that may hold an earlier row's content
        self._held: list[bool] = []
        self._free: list[int] = []  # a heap
        self._torn = False  # an allocation failed half-way: layers of two sizes
        self._prefixes = Prefixes()

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Sequence[int] | None = None) -> int:
        """Take the lowest free slot, clean behind its length; where none is free, the cache grows by whole blocks.

        Lowest first keeps the held slots together, and contiguous slots are read without a copy.

        Args:
            ids: What the row is to hold. Where a slot begins with enough of them, the new row has that beginning
                already (see ``take_over``), and others may take over from it. None: nothing is shared.

        Returns:
            The slot.

        Raises:
            CacheLimitError: The limits allow no further slot.
        """
        if not self._free:
            self.grow(slots=self.slots + 1)
        source, length = self._prefixes.longest(ids, self._shareable) if ids is not None else (-1, 0)
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
        """Give a slot back. Others may still take over what it holds, until it is reused or ``forget`` is called."""
        self._check_held(slot)
        self._prefixes.cut(slot, self._lengths[slot])
        self._held[slot] = False
        self._lengths[slot] = 0
        heapq.heappush(self._free, slot)

    def length(self, slot: int) -> int:
        """Tokens that a slot holds."""
        self._check_held(slot)
        return self._lengths[slot]

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a slot to ``length`` tokens; nothing is moved or cleared."""
        self._check_held(slot)
        have = self._lengths[slot]
        if not 0 <= length <= have:
            raise CacheError(
                f"{self.name}: slot {slot} holds {have} tokens; it can be rolled back to 0 to {have}, not to {length}"
            )
        self._lengths[slot] = length

    def advance(self, slot: int, count: int, ids: Sequence[int] = ()) -> None:
        """Count tokens that were written behind a slot's length.

        Args:
            slot: A held slot.
            count: How many tokens.
            ids: Which; empty where they are not known, and then nothing from there on is shared.
        """
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
        """Note that positions up to ``length`` are about to be written, so that they are cleared on reuse."""
        self._high_water[slot] = max(self._high_water[slot], min(length, self.capacity))

    @property
    def held(self) -> int:
        """Slots that rows hold."""
        return sum(self._held)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self._lengths, default=0)

    def _check_held(self, slot: int) -> None:
        if not 0 <= slot < self.slots or not self._held[slot]:
            raise CacheError(f"{self.name}: slot {slot} is not held; acquire() gives one")

    # -- common beginnings ---------------------------------------------------------------------------------------

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``ids``, the last never, that some slot holds; 0 where too few to be copied."""
        return self._prefixes.longest(ids, self._shareable)[1]

    def take_over(self, slot: int, ids: Sequence[int]) -> int:
        """Copy what another slot holds of the beginning of ``ids`` into an empty slot that was acquired with its ids.

        Returns:
            Tokens that were copied.
        """
        self._check_held(slot)
        if self._lengths[slot] or not self._prefixes.begun(slot):
            return 0
        source, length = self._prefixes.longest(ids, self._shareable)
        if length:
            self.copy_prefix(source, slot, length)
        return length

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Begin an empty row with the first tokens of another slot.

        Keys are stored with their positions applied, and sliding layers keep all of them, so a copy is what a forward
        of the same tokens would have written.

        Args:
            source: A slot, held or released, that was acquired with its ids.
            target: A held slot that is empty.
            length: Tokens to copy.

        Raises:
            CacheError: ``target`` is not empty, or ``source`` does not hold as many known tokens.
        """
        self._check_held(target)
        there = self._shareable(source)
        if self._lengths[target] or source == target or not 0 <= length <= there:
            raise CacheError(
                f"{self.name}: {length} tokens of slot {source}, which holds {there} that are known, cannot be copied "
                f"to slot {target}, which holds {self._lengths[target]}"
            )
        for layer in self.layers:
            layer.copy(source, target, length)
        self.advance(target, length, self._prefixes.known(source)[:length])

    def forget(self) -> None:
        """Let nothing that slots hold now be taken over any more, whether they are held or released."""
        self._prefixes.forget(slot for slot in range(self.slots) if self._held[slot])

    def _shareable(self, slot: int) -> int:
        """Tokens at the front of a slot that are known and still there."""
        known = len(self._prefixes.known(slot))
        return min(known, self._lengths[slot]) if self._held[slot] else known

    # -- size ----------------------------------------------------------------------------------------------------

    def reserve(self, slots: int, length: int) -> None:
        """Make room for ``slots`` rows of ``length`` tokens, now and in one piece. Nothing that is there is given up.

        Raises:
            CacheLimitError: A limit does not allow it; the message has the figures.
        """
        self._check_limits(CacheSize(slots, length))
        if slots > self.slots or length > self.capacity:
            self._enlarge(CacheSize(slots, length), kept=CacheSize(self.slots, self.capacity))

    def grow(self, slots: int = 0, length: int = 0) -> None:
        """Make room as ``reserve`` does, but leave behind what no row uses where that would more than double the cache.

        One long row after many short ones needs its positions in its own slot, not in all of them. So slots behind the
        last held one are given up when rows get longer (also where memory does not allow to keep them), and positions
        behind the longest row when there are more rows.

        Raises:
            CacheLimitError: A limit does not allow it; the message has the figures.
        """
        needed, everything = CacheSize(slots, length), CacheSize(self.slots, self.capacity)
        self._check_limits(needed)
        more_slots, longer = slots > self.slots, length > self.capacity
        if not more_slots and not longer:
            return
        in_use = CacheSize(
            max((slot + 1 for slot, held in enumerate(self._held) if held), default=0) if longer else self.slots,
            self.longest if more_slots else self.capacity,
        )
        keeping_everything, keeping_rows = (
            self.limits.rounded(CacheSize(max(slots, kept.slots), max(length, kept.length)))
            for kept in (everything, in_use)
        )
        wasteful = self.limits.bytes(keeping_everything) > 2 * self.limits.bytes(keeping_rows)
        too_large = longer and not self.limits.fits(keeping_everything)
        self._enlarge(needed, kept=in_use if wasteful or too_large else everything)

    def make_room(self, rows: int, length: int, *, ahead: int, most: int) -> dict[int, int]:
        """Shape the cache for what a round may add; see ``Member.make_room``.

        All slots have the positions of the longest row. Where more slots are wanted than fit beside the positions that
        there are, and the long row that needed them has gone, the cache is cut to what its rows need.
        """
        length, ahead = self.limits.within_context(length), self.limits.within_context(ahead)
        if rows <= self.slots and length <= self.capacity:
            return {}
        if self.could_hold(max(rows, self.slots), max(length, self.capacity)):
            roomy = self.could_hold(max(rows, self.slots), max(ahead, self.capacity))
            self.grow(rows, ahead if roomy else length)
            return {}
        length = ahead if self.could_hold(rows, ahead) else length
        while rows < most and self.could_hold(rows + 1, length):
            rows += 1
        return self.reshape(rows, length)

    def reshape(self, slots: int, length: int) -> dict[int, int]:
        """Make the cache just large enough for so many rows, be it smaller in one respect than it is.

        Args:
            slots: Rows.
            length: Tokens of each.

        Returns:
            Held slots that moved, old number to new: those past the new end, to free ones.

        Raises:
            CacheLimitError: A limit does not allow it; the message has the figures.
            CacheError: The held rows would not fit.
        """
        size = self.limits.allowed(CacheSize(slots, length))
        if size is None:
            raise CacheLimitError(self.why_not(slots, length))
        if size.slots < self.held or size.length < self.longest:
            raise CacheError(
                f"{self.name}: {size.slots} slots of {size.length} tokens cannot hold {self.held} rows of up to "
                f"{self.longest} tokens"
            )
        free = [slot for slot in range(size.slots) if slot >= self.slots or not self._held[slot]]
        moved = {slot: free.pop(0) for slot in range(size.slots, self.slots) if self._held[slot]}
        self._reallocate(size, moved)
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

    def could_hold(self, slots: int, length: int) -> bool:
        """Whether the limits allow a cache of that many rows of that many tokens."""
        return self.limits.allowed(CacheSize(slots, length)) is not None

    def why_not(self, slots: int, length: int) -> str | None:
        """The figures that make ``could_hold`` false; None where it is true."""
        size = CacheSize(slots, length)
        if self.limits.allowed(size) is not None:
            return None
        return self.limits.too_many(size) or self._too_large(CacheSize(slots, self.limits.rounded(size).length))

    def _too_large(self, size: CacheSize) -> str:
        return (
            f"{self.name}: {size.slots} row slots of {size.length} tokens need {self.limits.bytes(size):,} bytes of KV "
            f"cache, memory is limited to {self.limits.memory:,} ({self.bytes_allocated:,} allocated now, for "
            f"{self.slots} slots of {self.capacity}); use fewer rows, shorter texts or a higher limit"
        )

    def _check_limits(self, size: CacheSize) -> None:
        if self._torn:
            raise CacheError(
                f"{self.name}: an allocation of the KV cache failed half-way; release every slot and reset()"
            )
        reason = self.limits.too_many(size)
        if reason is not None:
            raise CacheLimitError(reason)

    def _enlarge(self, needed: CacheSize, kept: CacheSize) -> None:
        size = self.limits.grown(needed, kept)
        if not self.limits.fits(size):
            raise CacheLimitError(self._too_large(size))
        self._reallocate(size, {})

    def _reallocate(self, size: CacheSize, moved: Mapping[int, int]) -> None:
        before = CacheSize(self.slots, self.capacity)
        self._torn = True  # until every layer has the new size
        if not self.layers:
            self.layers = [LayerStore(shape, size.slots, size.length, self.device) for shape in self.limits.shapes]
        else:  # keys or values of one layer at a time, so that the peak is one of these over the larger size
            kept = {slot: (moved.get(slot, slot), n) for slot, n in enumerate(self._lengths) if n}
            for layer in self.layers:
                layer.resize(size.slots, size.length, kept)
        self._torn = False
        one_copy = (min(size.slots * size.length, before.slots * before.length) + 1) * self.limits.largest_store
        self.peak_bytes = max(self.peak_bytes, max(map(self.limits.bytes, (size, before))) + one_copy)
        homes = {slot: moved.get(slot, slot) for slot in range(self.slots) if self._held[slot]}
        self._prefixes.move(homes)
        lengths, held = [0] * size.slots, [False] * size.slots
        for slot, to in homes.items():
            lengths[to], held[to] = self._lengths[slot], True
        self._lengths, self._held = lengths, held
        self._high_water = list(lengths)  # what lay behind a row's length was not copied
        self._free = [slot for slot in range(size.slots) if not held[slot]]  # ascending, which is a heap
        self.slots, self.capacity = size
        self.generation += 1

    @property
    def bytes_allocated(self) -> int:
        """Bytes held for keys and values, used or not."""
        return self.limits.bytes(CacheSize(self.slots, self.capacity)) if self.layers else 0

    @property
    def bytes_used(self) -> int:
        """Bytes of the tokens that held rows can still see."""
        return sum(self._lengths) * self.limits.bytes_per_token
