"""Rows that begin like others: what a new row takes over, from which slot, and that a forward would have written it."""

import random

import pytest
import torch
from support.runner_checks import assert_same_logits, fresh_logits
from support.tiny_models import tiny_model

from ensemble_decode.errors import CacheError
from ensemble_decode.members.transformers.cache_size import CacheLimits
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.layer_store import LayerShape
from ensemble_decode.members.transformers.prefixes import SHORTEST, Prefixes
from ensemble_decode.members.transformers.runner import Runner

V = 111
SHAPES = [LayerShape(2, 4, 4, torch.float32), LayerShape(1, 8, 6, torch.bfloat16)]


def row(length, seed):
    return torch.randint(
        V, (length,), generator=torch.Generator().manual_seed(int(seed * 2**31) if isinstance(seed, float) else seed)
    ).tolist()


def made(family="mistral", **options):
    return Runner(tiny_model(family, V), **({"block": 16, "name": family} | options))


def assert_goes_on(runner, slot, ids):
    """The rest of ``ids`` behind what the slot holds has the logits that a fresh forward of all of them gives."""
    held = runner.length(slot)
    got = runner.extend([slot], [ids[held:]], "all").values
    assert_same_logits(got, fresh_logits(runner.model, ids)[held:])


# -- what is shared ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "ids", "shared"),
    [
        (row(60, 1), row(60, 1)[:50] + row(9, 2), 50),
        (row(60, 1), row(60, 1), 59),  # the last id is forwarded: its logits are wanted
        (row(60, 1)[:40], row(60, 1), 40),
        (row(60, 1), [*row(60, 1)[:SHORTEST], V], SHORTEST),
        (row(60, 1), [*row(60, 1)[: SHORTEST - 1], V, V], 0),
        (row(60, 1), [V, *row(60, 1)[1:]], 0),
        ([], row(60, 1), 0),
    ],
)
def test_a_beginning_is_shared_as_far_as_it_is_equal(known, ids, shared):
    prefixes = Prefixes()
    prefixes.begin(3, known)
    assert prefixes.longest(ids, lambda slot: 100) == ((3, shared) if shared else (-1, 0))
    assert prefixes.longest(ids, lambda slot: 35)[1] == (min(shared, 35) if shared else 0)


def test_the_slot_that_shares_most_is_taken():
    prefixes, ids = Prefixes(), row(90, 1)
    for slot, length in enumerate([40, 80, 60]):
        prefixes.begin(slot, ids[:length] + row(20, slot + 5))
    assert prefixes.longest(ids, lambda slot: 100) == (1, 80)


def test_what_is_known_follows_what_is_written():
    prefixes, ids = Prefixes(), row(50, 1)
    prefixes.begin(0, ids[:10])
    prefixes.note(0, 10, ids[10:])
    assert prefixes.known(0) == ids
    prefixes.note(0, 40, [7])  # rolled back to 40 before
    assert prefixes.known(0) == [*ids[:40], 7]
    prefixes.note(0, 45, [8])  # four tokens that nobody named
    assert prefixes.known(0) == [*ids[:40], 7]
    prefixes.cut(0, 30)
    prefixes.move({0: 2})
    assert (prefixes.known(0), prefixes.known(2)) == ([], ids[:30])
    prefixes.note(5, 0, ids)  # acquired without ids: no business of others
    assert prefixes.known(5) == []


# -- copies ------------------------------------------------------------------------------------------------------


def filled(**options):
    cache = SlotCache(CacheLimits(SHAPES, **({"block": 64, "slot_block": 4} | options)))
    source, ids = cache.acquire(row(48, 1)), row(48, 1)
    cache.reserve(4, 60)
    for n, layer in enumerate(cache.layers):
        for store in (layer.keys, layer.values):
            store[source, :, :48] = torch.randn(store[source, :, :48].shape, generator=torch.Generator().manual_seed(n))
    cache.advance(source, 48, ids)
    return cache, source, ids


def test_a_copy_holds_that_many_tokens_of_every_layer_and_nothing_else():
    cache, source, ids = filled()
    cache.acquire()
    slot = cache.acquire([*ids[:40], 7, 7])
    assert cache.length(slot) == 40
    for layer in cache.layers:
        for store in (layer.keys, layer.values):
            assert torch.equal(store[slot, :, :40], store[source, :, :40])
            assert not store[slot, :, 40:].any()
            assert not store[1].any()
    cache.release(slot)
    assert cache.acquire() == slot  # what was copied is cleared for a row that did not ask for it
    assert cache.length(slot) == 0
    assert not any(layer.keys[slot].any() or layer.values[slot].any() for layer in cache.layers)


def test_no_more_is_copied_than_the_source_still_holds():
    cache, source, ids = filled()
    cache.rollback(source, 36)
    assert cache.length(cache.acquire(ids)) == 36
    cache.rollback(source, 31)
    assert cache.shared(ids) == 36  # of the copy
    cache.advance(source, 17, row(17, 9))
    slot = cache.acquire([*ids[:31], *row(17, 9), 3])
    assert cache.length(slot) == 48
    for layer in cache.layers:
        assert torch.equal(layer.keys[slot, :, :48], layer.keys[source, :, :48])


def test_a_released_slot_gives_until_it_is_reused():
    cache, source, ids = filled()
    first = cache.layers[0].keys[source].clone()
    cache.rollback(source, 46)
    cache.release(source)
    assert cache.shared(ids) == 46
    again = cache.acquire([*ids[:44], 5, 5])
    assert (again, cache.length(again)) == (source, 44)  # taken as it is
    assert torch.equal(cache.layers[0].keys[again, :, :44], first[:, :44])
    assert not cache.layers[0].keys[again, :, 44:].any()
    cache.release(again)
    other = cache.acquire(row(50, 4))
    assert (other, cache.length(other)) == (source, 0)
    assert cache.shared(ids) == 0
    assert not cache.layers[0].keys[other].any()


@pytest.mark.parametrize("end", ["forget", "reset", "reserve", "reshape"])
def test_released_slots_give_nothing_after_their_content_has_gone(end):
    cache, source, ids = filled()
    cache.release(source)
    assert cache.shared(ids) == 47
    {
        "forget": cache.forget,
        "reset": cache.reset,
        "reserve": lambda: cache.reserve(9, 60),
        "reshape": lambda: cache.reshape(2, 60),
    }[end]()
    assert cache.shared(ids) == 0
    assert cache.length(cache.acquire(ids)) == 0


def test_a_held_row_that_was_moved_still_gives():
    cache, source, ids = filled(slot_block=1)
    others = [cache.acquire() for _ in range(3)]
    last = cache.acquire(ids)
    assert cache.length(last) == 47
    for slot in (source, *others[:-1]):
        cache.release(slot)
    moved = cache.reshape(3, 60)
    assert last in moved
    slot = cache.acquire(ids)
    for layer in cache.layers:
        assert torch.equal(layer.values[slot, :, :47], layer.values[moved[last], :, :47])
        assert layer.values[slot, :, :47].any()


def test_rows_acquired_without_ids_neither_give_nor_take():
    cache, _source, ids = filled()
    plain = cache.acquire()
    assert cache.length(plain) == 0
    assert cache.take_over(plain, ids) == 0
    cache.advance(plain, 48, row(48, 8))
    assert cache.shared(row(48, 8)) == 0


def test_copies_that_cannot_be_are_refused():
    cache, source, _ids = filled()
    target = cache.acquire([])
    for wrong in ((source, target, 49), (source, target, -1), (target, source, 0), (source, source, 4)):
        with pytest.raises(CacheError, match="cannot be copied"):
            cache.copy_prefix(*wrong)
    cache.release(target)
    with pytest.raises(CacheError, match="is not held"):
        cache.copy_prefix(source, target, 40)


# -- logits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "mistral", "gemma2", "gemma3"])
def test_a_row_with_a_copied_beginning_goes_on_as_if_it_had_been_read(family):
    """Beginnings reach past the sliding windows of 12; the source has generated on, or been rolled back and turned."""
    runner, ids = made(family), row(70, 1)
    source = runner.acquire(ids)
    runner.extend([source], [ids[:-1]], "none")
    runner.extend([source], [[ids[-1]]])
    for token in row(5, 2):
        runner.extend([source], [[token]])
    for kept in (50, 69, SHORTEST):
        asked = ids[:kept] + row(12, kept)
        slot = runner.acquire(asked)
        assert runner.length(slot) == kept
        assert_goes_on(runner, slot, asked)
    runner.rollback(source, 40)
    runner.extend([source], [row(30, 3)], "none")
    turned = ids[:40] + row(30, 3)
    slot = runner.acquire([*turned, 1])
    assert runner.length(slot) == 70
    assert_goes_on(runner, slot, [*turned, 1])
    assert runner.stats.reused == 50 + 69 + SHORTEST + 70


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_random_rows_of_a_few_stems_equal_fresh_forwards(family, seed):
    """Read in pieces, rolled back anywhere and turned elsewhere, released, moved: whatever a slot gives is right."""
    runner, chance = made(family), random.Random(seed)
    stems = [row(100, 1), row(100, 1)[:60] + row(40, 2), row(100, 3)]
    texts: dict[int, list[int]] = {}  # what each row is to hold
    checked = 0
    for _ in range(60):
        if len(texts) < 5 and chance.random() < 0.6:
            text = chance.choice(stems)[: chance.randint(30, 100)] + row(chance.randint(1, 20), chance.random())
            texts[runner.acquire(text)] = text
        slot = chance.choice(sorted(texts)) if texts else None
        if slot is None:
            continue
        held = runner.length(slot)
        if chance.random() < 0.2:
            keep = chance.randint(0, held)
            runner.rollback(slot, keep)
            if chance.random() < 0.7:
                texts[slot] = texts[slot][:keep] + row(30, chance.random())
        elif held < len(texts[slot]):
            new = texts[slot][held : held + chance.choice([5, 40, 200])]
            got = runner.extend([slot], [new], [1]).values
            checked += 1
            assert_same_logits(got, fresh_logits(runner.model, texts[slot][: held + len(new)])[-1:])
        elif chance.random() < 0.8:
            runner.release(slot)
            del texts[slot]
        if chance.random() < 0.05 and texts:
            moved = runner.cache.reshape(max(len(texts), 5), 160)
            texts = {moved.get(slot, slot): text for slot, text in texts.items()}
    assert checked > 15
    assert runner.stats.reused > 200


@pytest.mark.parametrize("released", [True, False])
def test_weights_that_change_under_a_runner(released):
    """After ``forget`` nothing that the old weights wrote is taken over; rows read from then on are shared again."""
    runner, ids = made("llama"), row(60, 1)
    old = runner.acquire(ids)
    runner.extend([old], [ids], "none")
    if released:
        runner.release(old)
    layer = runner.model.model.layers[0].self_attn.k_proj.weight
    layer.mul_(-1.5)
    runner.forget()
    assert runner.shared(ids) == 0
    slot = runner.acquire(ids)
    assert runner.length(slot) == 0
    assert_goes_on(runner, slot, ids)
    if not released:  # what the row goes on with is written behind keys of the old weights
        runner.extend([old], [row(9, 2)], "none")
        assert runner.shared([*ids, *row(9, 2), 1]) == 60
    other = runner.acquire([*ids, 3])
    assert runner.length(other) == 60
    assert_goes_on(runner, other, [*ids, 3])
