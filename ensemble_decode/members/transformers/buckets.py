"""The few shapes that a step may have."""

from __future__ import annotations

from dataclasses import dataclass


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Buckets:
    """Rounds the shapes of a step up.

    ``padded=False``: shapes as they come, key ranges in multiples of ``key_block`` (1: exact), for eager execution, where
    a new shape costs nothing. ``padded=True``: rows, queries and tokens to powers of two, key ranges to ``key_block``
    times a power of two, for compiled or captured steps, where each shape is compiled or captured once.
    """

    padded: bool = False
    key_block: int = 1

    def rows(self, n: int) -> int:
        return _power_of_two(n) if self.padded else n

    def queries(self, n: int) -> int:
        return _power_of_two(n) if self.padded else n

    def tokens(self, n: int) -> int:
        return _power_of_two(n) if self.padded else n

    def keys(self, n: int) -> int:
        blocks = -(-n // self.key_block)
        return self.key_block * (_power_of_two(blocks) if self.padded else blocks)
