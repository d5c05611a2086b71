"""The few shapes that a step may have."""

from __future__ import annotations

from dataclasses import dataclass


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Buckets:
    """Rounds the shapes of a step up.

    Attributes:
        padded: False, for eager execution, where a new shape costs nothing: rows, queries and tokens stay as they come,
            key ranges go to multiples of ``key_block``. True, for compiled or captured steps, where each shape is
            compiled or captured once: rows, queries and tokens go to powers of two, key ranges to ``key_block`` times a
            power of two.
        key_block: Positions; 1: exact.
    """

    padded: bool = False
    key_block: int = 1

    def rows(self, n: int) -> int:
        """Rows of a group."""
        return _power_of_two(n) if self.padded else n

    def queries(self, n: int) -> int:
        """Queries of each row of a group."""
        return _power_of_two(n) if self.padded else n

    def tokens(self, n: int) -> int:
        """Tokens of a step, or of a group."""
        return _power_of_two(n) if self.padded else n

    def keys(self, n: int) -> int:
        """Positions that a group reads of every row."""
        blocks = -(-n // self.key_block)
        return self.key_block * (_power_of_two(blocks) if self.padded else blocks)
