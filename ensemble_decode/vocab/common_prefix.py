"""How much two sequences begin with in common."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Elements (ids, or bytes of two ``bytes``) that both begin with; both of one type. By halves, at the speed of
    slices."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # equal before low, different before high
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
