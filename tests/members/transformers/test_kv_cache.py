"""SlotCache: slots, lengths, rollback, growth, memory."""

import pytest
import torch

from ensemble_decode.errors import CacheError
from ensemble_decode.members.transformers.cache_size import CacheLimits
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.layer_store import LayerShape

SHAPES = [LayerShape(2, 4, 4, torch.float32), LayerShape(1, 8, 6, torch.bfloat16)]
BYTES_PER_TOKEN = 2 * (4 + 4) * 4 + 1 * (8 + 6) * 2


def make(**kwargs):
    return SlotCache(CacheLimits(SHAPES, **({"block": 8, "slot_block": 2} | kwargs)))


def write(cache, slot, position, number):
    """Put `number` in every key of one position and its negative in every value, and count the token."""
    for layer in cache.layers:
        shape = layer.shape
        index = (slot * shape.heads + torch.arange(shape.heads)) * cache.capacity + position
        keys = torch.full((1, shape.heads, 1, shape.key_dim), number, dtype=shape.dtype)
        values = torch.full((1, shape.heads, 1, shape.value_dim), -number, dtype=shape.dtype)
        layer.write(keys, values, index)
    cache.advance(slot, 1)


def content(cache, slot):
    """What every layer holds per position of the slot, checked to be the same in all layers, keys and values."""
    length = cache.length(slot)
    seen = {tuple(layer.keys[slot, :, :length].float().mean((0, 2)).tolist()) for layer in cache.layers}
    seen |= {tuple((-layer.values[slot, :, :length].float().mean((0, 2))).tolist()) for layer in cache.layers}
    assert len(seen) == 1
    return list(seen.pop())


def test_slots_are_handed_out_lowest_first_and_reused():
    cache = make()
    assert [cache.acquire() for _ in range(3)] == [0, 1, 2]
    cache.release(1)
    cache.release(0)
    assert cache.acquire() == 0
    assert cache.acquire() == 1
    assert cache.slots == 4


@pytest.mark.parametrize("back", range(4))
def test_case_21_rolling_back_shortens_and_never_beyond_what_there_is(back):
    cache = make()
    slot = cache.acquire()
    for position in range(3):
        write(cache, slot, position, position + 1.0)
    cache.rollback(slot, back)
    assert cache.length(slot) == back
    assert content(cache, slot) == [1.0, 2.0, 3.0][:back] if back else cache.length(slot) == 0
    for wrong in (back + 1, back + 100, -1):
        with pytest.raises(CacheError, match=rf"slot 0 holds {back} tokens.*not to {wrong}"):
            cache.rollback(slot, wrong)
        assert cache.length(slot) == back


def test_slots_not_held_are_refused_everywhere():
    cache = make()
    slot = cache.acquire()
    cache.release(slot)
    for use in (
        lambda: cache.length(slot),
        lambda: cache.rollback(slot, 0),
        lambda: cache.release(slot),
        lambda: cache.advance(slot, 1),
        lambda: cache.length(-1),
        lambda: cache.length(99),
    ):
        with pytest.raises(CacheError, match="is not held"):
            use()
    assert cache.acquire() == slot


def test_growth_keeps_every_row_in_both_directions():
    cache = make()
    slots = [cache.acquire(), cache.acquire()]
    for slot in slots:
        for position in range(5):
            write(cache, slot, position, 10.0 * slot + position)
    before = cache.generation
    cache.reserve(5, 30)
    assert (cache.slots, cache.capacity) == (6, 32)
    assert cache.generation == before + 1
    assert [content(cache, slot) for slot in slots] == [[0.0, 1, 2, 3, 4], [10.0, 11, 12, 13, 14]]
    write(cache, 1, 5, 15.0)
    assert content(cache, 1)[-1] == 15.0


def test_growth_is_by_half_at_least_and_in_whole_blocks():
    cache = make()
    cache.reserve(2, 40)
    cache.reserve(2, 41)
    assert cache.capacity == 64  # 40 + 20, in eights
    cache.reserve(8, 1)
    cache.reserve(9, 1)
    assert cache.slots == 12
    cache.reserve(1, 1)
    assert (cache.slots, cache.capacity) == (12, 64)  # never shrinks


def test_one_long_row_after_many_short_ones_does_not_lengthen_the_slots_of_all():
    cache = make()
    slots = [cache.acquire() for _ in range(16)]
    cache.grow(length=5)
    assert (cache.slots, cache.capacity) == (16, 8)
    for slot in (0, 2):
        for position in range(5):
            write(cache, slot, position, 10.0 * slot + position)
    for slot in slots:
        if slot not in (0, 2):
            cache.release(slot)
    cache.grow(length=100)
    assert (cache.slots, cache.capacity) == (4, 104)  # up to the last held slot, in twos
    assert [content(cache, slot) for slot in (0, 2)] == [[0.0, 1, 2, 3, 4], [20.0, 21, 22, 23, 24]]
    assert [cache.acquire(), cache.acquire()] == [1, 3]
    cache.grow(length=105)
    assert (cache.slots, cache.capacity) == (4, 160)  # and by half as ever
    cache.grow(length=105)
    assert cache.capacity == 160


def test_many_rows_after_a_long_one_do_not_get_its_length():
    cache = make()
    slot = cache.acquire()
    cache.grow(length=400)
    write(cache, slot, 0, 7.0)
    slots = [cache.acquire() for _ in range(5)]
    assert slots == [1, 2, 3, 4, 5]
    assert (cache.slots, cache.capacity) == (6, 8)
    assert content(cache, slot) == [7.0]


def test_what_would_less_than_double_the_cache_is_kept():
    cache = make()
    cache.reserve(8, 40)
    slots = [cache.acquire() for _ in range(8)]
    for slot in slots[4:]:
        cache.release(slot)
    cache.grow(length=41)
    assert (cache.slots, cache.capacity) == (8, 64)
    cache.release(slots[3])
    cache.release(slots[2])
    cache.grow(length=65)
    assert (cache.slots, cache.capacity) == (2, 96)


def test_growth_that_leaves_slots_behind_obeys_the_limits():
    cache = make(memory=40 * BYTES_PER_TOKEN + 200, max_length=200)
    first, *others = [cache.acquire() for _ in range(4)]
    for slot in others:
        cache.release(slot)
    with pytest.raises(CacheError, match="201 tokens asked for, max_length is 200"):
        cache.grow(length=201)
    with pytest.raises(CacheError, match="memory is limited"):
        cache.grow(length=100)
    assert (cache.slots, cache.capacity) == (4, 8)
    cache.grow(length=20)
    assert (cache.slots, cache.capacity) == (1, 24)
    assert cache.length(first) == 0


def test_growth_does_not_overshoot_what_a_row_can_need():
    cache = make(max_length=50)
    cache.reserve(1, 45)
    assert cache.capacity == 48
    cache.reserve(1, 50)
    assert cache.capacity == 50
    with pytest.raises(CacheError, match="51 tokens asked for, max_length is 50"):
        cache.reserve(1, 51)


def test_a_reused_slot_is_clean_even_of_nan():
    cache = make()
    slot = cache.acquire()
    for position in range(6):
        write(cache, slot, position, float("nan"))
    cache.rollback(slot, 2)  # what was written and taken back is dirty too
    cache.release(slot)
    assert cache.acquire() == slot
    for layer in cache.layers:
        assert not layer.keys[slot].any()
        assert not layer.values[slot].any()


def test_growth_leaves_nothing_of_rolled_back_tokens():
    cache = make()
    slot = cache.acquire()
    for position in range(6):
        write(cache, slot, position, float("nan"))
    cache.rollback(slot, 0)
    cache.reserve(2, 20)
    assert not any(layer.keys.isnan().any() or layer.values.isnan().any() for layer in cache.layers)


def test_memory_is_counted_in_bytes():
    cache = make()
    assert (cache.bytes_used, cache.bytes_allocated, cache.limits.bytes_per_token) == (0, 0, BYTES_PER_TOKEN)
    slot = cache.acquire()
    write(cache, slot, 0, 1.0)
    write(cache, slot, 1, 1.0)
    assert cache.bytes_used == 2 * BYTES_PER_TOKEN
    held = sum(t.untyped_storage().nbytes() for layer in cache.layers for t in (layer.flat_keys, layer.flat_values))
    assert cache.bytes_allocated == held
    cache.rollback(slot, 1)
    assert cache.bytes_used == BYTES_PER_TOKEN
    cache.release(slot)
    assert cache.bytes_used == 0
    assert cache.bytes_allocated == held


def test_a_memory_limit_is_kept_and_named_and_nothing_changes():
    limit = 4 * 16 * BYTES_PER_TOKEN + 200
    cache = make(memory=limit)
    slots = [cache.acquire() for _ in range(4)]
    write(cache, slots[0], 0, 7.0)
    cache.reserve(4, 9)  # half more would be 12, in eights 16: fits
    assert cache.capacity == 16
    state = (cache.slots, cache.capacity, cache.generation, cache.bytes_allocated)
    for grow in (lambda: cache.reserve(4, 17), cache.acquire):
        with pytest.raises(
            CacheError, match=rf"memory is limited to {limit:,} \({cache.bytes_allocated:,} allocated now"
        ):
            grow()
        assert (cache.slots, cache.capacity, cache.generation, cache.bytes_allocated) == state
        assert content(cache, slots[0]) == [7.0]
    cache.release(slots[1])
    assert cache.acquire() == slots[1]


def test_under_a_limit_growth_takes_what_is_needed_where_half_more_does_not_fit():
    cache = make(memory=2 * 48 * BYTES_PER_TOKEN + 200)
    cache.reserve(2, 40)
    cache.reserve(2, 41)  # 64 would be half more
    assert cache.capacity == 48


def test_max_slots():
    cache = make(max_slots=3)
    for _ in range(3):
        cache.acquire()
    with pytest.raises(CacheError, match="4 row slots asked for, max_slots is 3"):
        cache.acquire()
    assert cache.slots == 3


def test_unwanted_writes_land_behind_every_slot():
    cache = make()
    slot = cache.acquire()
    for layer in cache.layers:
        shape = layer.shape
        spare = torch.full((shape.heads,), cache.slots * shape.heads * cache.capacity)
        keys = torch.ones(1, shape.heads, 1, shape.key_dim, dtype=shape.dtype)
        layer.write(keys, torch.ones(1, shape.heads, 1, shape.value_dim, dtype=shape.dtype), spare)
        assert not layer.keys.any()
        assert not layer.values.any()
    assert cache.length(slot) == 0


def test_bad_blocks_are_refused():
    with pytest.raises(CacheError, match="at least 1"):
        make(block=0)
