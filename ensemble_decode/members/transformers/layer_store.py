"""The tensors behind a KV cache: keys and values of one layer for all row slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps per token.

    Attributes:
        heads: KV heads.
        key_dim: Elements of a key.
        value_dim: Elements of a value.
        dtype: Of both.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes in this layer."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class _Store:
    """One tensor ``[slots, heads, capacity, dim]`` and one spare position behind it that takes unwanted writes.

    Zeroed when allocated: attention gives hidden positions the weight 0, and 0 · NaN would not be 0.
    """

    def __init__(self, slots: int, heads: int, capacity: int, dim: int, dtype: torch.dtype, device: torch.device):
        self.flat = torch.zeros(slots * heads * capacity + 1, dim, dtype=dtype, device=device)
        self.view = self.flat[:-1].view(slots, heads, capacity, dim)

    def resized(self, slots: int, capacity: int, kept: Mapping[int, tuple[int, int]]) -> _Store:
        """A copy of another size that keeps the first positions of some slots.

        Args:
            slots: Slots of the copy.
            capacity: Positions of each.
            kept: Old slot to (new slot, positions that are kept).
        """
        _, heads, _, dim = self.view.shape
        other = _Store(slots, heads, capacity, dim, self.flat.dtype, self.flat.device)
        for slot, (to, length) in kept.items():
            other.view[to, :, :length] = self.view[slot, :, :length]
        return other


class LayerStore:
    """Keys and values of one layer for all row slots.

    Args:
        shape: What the layer keeps per token.
        slots: Row slots.
        capacity: Positions of each.
        device: Where they lie.

    Attributes:
        keys: ``[slots, heads, capacity, key_dim]``.
        values: ``[slots, heads, capacity, value_dim]``.
        flat_keys: The keys as ``[slots · heads · capacity + 1, key_dim]``; the last position takes unwanted writes.
        flat_values: The values likewise.
    """

    def __init__(self, shape: LayerShape, slots: int, capacity: int, device: torch.device):
        self.shape = shape
        self._keys = _Store(slots, shape.heads, capacity, shape.key_dim, shape.dtype, device)
        self._values = _Store(slots, shape.heads, capacity, shape.value_dim, shape.dtype, device)
        self._publish()

    def _publish(self) -> None:
        self.keys, self.values = self._keys.view, self._values.view
        self.flat_keys, self.flat_values = self._keys.flat, self._values.flat

    def write(self, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor) -> None:
        """Store the keys and values of ``N`` tokens.

        Args:
            keys: ``[1, heads, N, key_dim]``.
            values: ``[1, heads, N, value_dim]``.
            index: Flat positions, int64 ``[N · heads]``, token-major.
        """
        self.flat_keys.index_copy_(0, index, keys.transpose(1, 2).reshape(-1, keys.shape[-1]))
        self.flat_values.index_copy_(0, index, values.transpose(1, 2).reshape(-1, values.shape[-1]))

    def resize(self, slots: int, capacity: int, kept: Mapping[int, tuple[int, int]]) -> None:
        """See ``_Store.resized``; the old keys are gone before the new values are made."""
        self._keys = self._keys.resized(slots, capacity, kept)
        self._publish()
        self._values = self._values.resized(slots, capacity, kept)
        self._publish()

    def clear(self, slot: int, start: int, end: int) -> None:
        """Zero the positions ``start`` to ``end`` of a slot."""
        self.keys[slot, :, start:end] = 0
        self.values[slot, :, start:end] = 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot to another."""
        self.keys[target, :, :length] = self.keys[source, :, :length]
        self.values[target, :, :length] = self.values[source, :, :length]
