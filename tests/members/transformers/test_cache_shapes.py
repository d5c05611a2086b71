"""Caches that change their shape: what held rows keep, what the peak is, what a torn allocation leaves."""

import weakref

import pytest
import torch

from ensemble_decode.errors import CacheError, CacheLimitError
from ensemble_decode.members.transformers.cache_size import CacheLimits
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.layer_store import LayerShape, LayerStore

SHAPE = LayerShape(heads=2, key_dim=3, value_dim=5, dtype=torch.float32)
PER_TOKEN = 2 * SHAPE.bytes_per_token


def made(**options) -> SlotCache:
    return SlotCache(CacheLimits([SHAPE] * 2, **{"block": 8, "slot_block": 2} | options))


def write(cache: SlotCache, slot: int, length: int) -> None:
    cache.reserve(cache.slots, length)
    for n, layer in enumerate(cache.layers):
        marks = torch.arange(length).float() + 100 * slot + 1000 * n + 1
        layer.keys[slot, :, :length] = marks[:, None]
        layer.values[slot, :, :length] = -marks[:, None]
    cache.touch(slot, length)
    cache.advance(slot, length)


def content(cache: SlotCache, slot: int) -> list[float]:
    length = cache.length(slot)
    for n, layer in enumerate(cache.layers):
        assert torch.equal(layer.values[slot, 1, :length, 4], -layer.keys[slot, 0, :length, 0])
        assert torch.equal(layer.keys[slot, 0, :length, 0] - 1000 * n, cache.layers[0].keys[slot, 0, :length, 0])
    return cache.layers[0].keys[slot, 0, :length, 0].tolist()


def test_held_rows_keep_their_content_and_move_below_the_new_end():
    cache = made(slot_block=1)
    slots = [cache.acquire() for _ in range(6)]
    for slot in slots:
        write(cache, slot, 3 + slot)
    before = {slot: content(cache, slot) for slot in (1, 5)}
    for slot in (0, 2, 3, 4):
        cache.release(slot)
    moved = cache.reshape(2, 8)
    assert moved == {5: 0}
    assert (cache.slots, cache.capacity, cache.held) == (2, 8, 2)
    assert content(cache, 1) == before[1]
    assert content(cache, 0) == before[5]
    cache.release(0)
    assert cache.acquire() == 0
    assert not cache.layers[0].keys[0].any()
    with pytest.raises(CacheError, match="cannot hold 2 rows"):
        cache.reshape(1, 8)
    write(cache, 0, 20)
    with pytest.raises(CacheError, match="of up to 20 tokens"):
        cache.reshape(2, 8)


def test_the_peak_is_counted_with_the_copy_and_a_limit_for_it_holds(monkeypatch):
    """Every tensor of the cache is watched from its making to its end."""
    live, peak = [0], [0]
    zeros = torch.zeros

    def counted(*shape, **options):
        tensor = zeros(*shape, **options)
        size = tensor.nbytes
        live[0] += size
        peak[0] = max(peak[0], live[0])

        def gone():
            live[0] -= size

        weakref.finalize(tensor.untyped_storage(), gone)
        return tensor

    monkeypatch.setattr(torch, "zeros", counted)
    cache, most = made(), 40 * 8 * PER_TOKEN
    cache.limits.memory = cache.limits.for_peak(most)
    cache.reserve(4, 8)
    cache.reserve(6, 30)
    cache.reshape(20, 8)
    with pytest.raises(CacheLimitError):
        cache.reserve(40, 8)
    assert cache.peak_bytes <= most
    assert peak[0] <= cache.peak_bytes
    assert live[0] == cache.bytes_allocated


def test_where_whole_blocks_of_slots_do_not_fit_single_ones_do():
    cache = made(slot_block=4, memory=3 * 8 * PER_TOKEN + 200)
    assert cache.could_hold(3, 8)
    assert not cache.could_hold(4, 8)
    for _ in range(3):
        cache.acquire()
    assert cache.slots == 3
    with pytest.raises(CacheLimitError, match="memory is limited"):
        cache.acquire()


def test_an_allocation_that_fails_half_way_is_not_used_and_reset_begins_anew(monkeypatch):
    cache = made()
    slot = cache.acquire()
    write(cache, slot, 5)
    calls, resize = [], LayerStore.resize

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        resize(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LayerStore, "resize", failing)
        with pytest.raises(MemoryError):
            cache.reserve(8, 64)
    with pytest.raises(CacheError, match="failed half-way"):
        cache.reserve(8, 64)
    with pytest.raises(CacheError, match="held"):
        cache.reset()
    cache.release(slot)
    cache.reset()
    assert cache.bytes_allocated == 0
    write(cache, cache.acquire(), 5)
    assert content(cache, 0) == [1, 2, 3, 4, 5]
