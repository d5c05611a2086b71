"""The length of a common beginning, of ids and of bytes."""

import pytest

from ensemble_decode.vocab.common_prefix import common_prefix


@pytest.mark.parametrize("length", [0, 1, 2, 7, 1000])
def test_common_prefix(length):
    one = list(range(length))
    for at in {0, length // 2, max(length - 1, 0), length}:
        other = [*one[:at], *(-1 for _ in one[at:])]
        assert common_prefix(one, other) == at
        assert common_prefix(one, [*other[:at], -5]) == at
        assert common_prefix(one[:at], one) == at
        assert common_prefix(bytes(i % 251 for i in one), bytes((i + (i >= at)) % 251 for i in one)) == at
