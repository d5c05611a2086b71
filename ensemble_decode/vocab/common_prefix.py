"""How much two sequences begin with in common."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many elements two sequences begin with in common. By halves, at the speed of slices.

    Args:
        one: Ids, or bytes.
        other: A sequence of the same type.
    """
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
