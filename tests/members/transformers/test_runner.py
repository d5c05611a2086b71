"""Runner: what comes out of the slots equals a fresh forward, whatever was extended, rolled back, reused or grown."""

import pytest
import torch
from support.runner_checks import Schedule, assert_same_logits, fresh_logits
from support.tiny_models import FAMILIES, tiny_model

from ensemble_decode.errors import CacheError, ContextError, InputError
from ensemble_decode.members.transformers.runner import Runner

V = 111


def make(family="llama", seed=0, model=None, **options):
    model = tiny_model(family, V, seed=seed) if model is None else model
    return Runner(model, **({"block": 16, "name": family} | options))


def row(length, seed):
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


# -- equal to a fresh prefill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules_equal_a_fresh_forward_in_every_family(family, seed):
    runner = make(family, seed)
    schedule = Schedule(runner, V, seed)
    checked = 0

    def check(ids, new, values):
        nonlocal checked
        checked += 1
        assert_same_logits(values, fresh_logits(runner.model, ids)[-len(values) :])

    for _ in range(25):
        schedule.step(check)
    assert checked > 20
    assert runner.cache.generation > 2, "the cache never grew, so growth was not tested"


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_sliding_windows_are_passed_and_rolled_back_across(family):
    runner = make(family)
    window = runner.config.sliding_window
    ids = row(4 * window, 1)
    slot = runner.acquire()
    runner.extend([slot], [ids[: 3 * window]], "none")
    for keep in (2 * window + 1, window, window - 1, 1):
        runner.rollback(slot, keep)
        got = runner.extend([slot], [ids[keep:]], "all").values
        wanted = fresh_logits(runner.model, ids)[keep:]
        assert_same_logits(got, wanted)
    # the window matters in this model: without it the last logits are others
    layers = runner.config.layer_types if hasattr(runner.config, "layer_types") else None
    assert layers is None or "sliding_attention" in layers
    short = fresh_logits(runner.model, ids[-window // 2 :])[-1]
    assert (short - wanted[-1]).abs().max() > 1e-3


def test_token_by_token_equals_all_at_once():
    runner = make("qwen3")
    ids = row(30, 2)
    slot, other = runner.acquire(), runner.acquire()
    single = torch.cat([runner.extend([slot], [[i]]).values for i in ids])
    assert_same_logits(single, runner.extend([other], [ids], "all").values)


def test_chunked_prefill_equals_one_forward():
    model = tiny_model("gemma3", V)
    rows = [row(3, 3), row(50, 4), row(1, 5), row(21, 6)]
    whole = make(model=model, chunk_tokens=1000)
    pieces = make(model=model, chunk_tokens=8)
    outs = []
    for runner in (whole, pieces):
        slots = [runner.acquire() for _ in rows]
        outs.append(runner.extend(slots, rows, [1, 50, 0, 10]))
    assert (whole.stats.forwards, pieces.stats.forwards) == (1, 10)
    assert whole.stats.tokens == pieces.stats.tokens == 75
    assert outs[0].starts == outs[1].starts == [0, 1, 51, 51, 61]
    assert_same_logits(outs[1].values, outs[0].values)
    assert_same_logits(outs[0].values[1:51], fresh_logits(model, rows[1]))


def test_very_ragged_rows_attend_in_groups_and_stay_exact():
    runner = make("gemma2", block=64)
    rows = [row(400, 7), [5], row(300, 8), [9], row(2, 9)]
    slots = [runner.acquire() for _ in rows]
    out = runner.extend(slots, rows)
    for r, ids in enumerate(rows):
        assert_same_logits(out.values[r : r + 1], fresh_logits(runner.model, ids)[-1:])


# -- rows do not know each other ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_case_23_rows_that_keep_0_2_and_5_draft_tokens_equal_their_solo_runs(family):
    model = tiny_model(family, V)
    prompts = [row(4, 10), row(9, 11), row(1, 12)]
    draft = [row(5, 20 + r) for r in range(3)]
    kept = [0, 2, 5]
    after = [row(2, 30), row(1, 31), row(3, 32)]

    def play(rows):
        runner = make(model=model)
        slots = {r: runner.acquire() for r in rows}
        runner.extend([slots[r] for r in rows], [prompts[r] for r in rows])
        runner.extend([slots[r] for r in rows], [draft[r] for r in rows], "all")
        for r in rows:
            runner.rollback(slots[r], len(prompts[r]) + kept[r])
        out = runner.extend([slots[r] for r in rows], [after[r] for r in rows])
        values = dict(zip(rows, out.values, strict=True))
        if 0 in rows:
            runner.release(slots[0])  # row 0 has finished
        rest = [r for r in rows if r]
        if rest:
            out = runner.extend([slots[r] for r in rest], [[7]] * len(rest))
            values |= {(r, "later"): v for r, v in zip(rest, out.values, strict=True)}
        return values

    together = play([0, 1, 2])
    for r in range(3):
        for key, values in play([r]).items():
            assert_same_logits(together[key][None], values[None])
        ids = prompts[r] + draft[r][: kept[r]] + after[r]
        assert_same_logits(together[r][None], fresh_logits(model, ids)[-1:])


def test_order_and_choice_of_rows_do_not_matter():
    runner = make("qwen2")
    slots = [runner.acquire() for _ in range(6)]
    rows = [row(3 + r, 40 + r) for r in range(6)]
    runner.extend(slots, rows, "none")
    picked = [4, 1, 3]  # neither sorted nor next to each other
    out = runner.extend([slots[r] for r in picked], [[r] for r in picked])
    for r, values in zip(picked, out.values, strict=True):
        assert_same_logits(values[None], fresh_logits(runner.model, [*rows[r], r])[-1:])
    out = runner.extend([slots[r] for r in (5, 0, 2)], [[1, 2], [3], [4, 5, 6]], "all")
    wanted = [
        fresh_logits(runner.model, rows[r] + ids)[-len(ids) :] for r, ids in ((5, [1, 2]), (0, [3]), (2, [4, 5, 6]))
    ]
    assert_same_logits(out.values, torch.cat(wanted))


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_in_one_row_stays_there_and_reused_slots_are_clean(family):
    runner = make(family)
    slots = [runner.acquire() for _ in range(3)]
    rows = [row(14, 50 + r) for r in range(3)]
    runner.extend(slots, rows, "none")
    for layer in runner.cache.layers:
        layer.keys[slots[1], :, :14] = float("nan")
        layer.values[slots[1], :, :14] = float("nan")
    out = runner.extend(slots, [[3]] * 3)
    assert out.values[1].isnan().all()
    for r in (0, 2):
        assert_same_logits(out.values[r : r + 1], fresh_logits(runner.model, [*rows[r], 3])[-1:])
    runner.release(slots[1])
    again = runner.acquire()
    assert again == slots[1]
    out = runner.extend([again, slots[0]], [[5, 6], [8]])  # reads the first 16 positions of both slots
    assert_same_logits(out.values[:1], fresh_logits(runner.model, [5, 6])[-1:])


# -- numbers and shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_its_own_rounding(family):
    """Error against float32 at most twice that of transformers' own forward in bfloat16, over a whole text."""
    exact = tiny_model(family, V)
    ids = row(40, 60)
    wanted = fresh_logits(exact, ids)
    half = tiny_model(family, V).to(torch.bfloat16)
    own = (fresh_logits(half, ids).float() - wanted).abs().mean()
    runner = make(model=half)
    assert runner.dtype == torch.bfloat16
    slot = runner.acquire()
    runner.extend([slot], [ids[:25]], "none")
    runner.rollback(slot, 20)
    runner.extend([slot], [ids[20:30]], "none")
    runner.rollback(slot, 1)
    got = torch.cat([runner.extend([slot], [[i]]).values for i in ids[1:]])
    assert got.dtype == torch.bfloat16
    assert (got.float() - wanted[1:]).abs().mean() <= 2 * own


def test_the_head_runs_on_positions_that_are_read_alone():
    runner = make()
    seen = []
    runner.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[0]))
    slots = [runner.acquire(), runner.acquire()]
    rows = [row(9, 70), row(5, 71)]
    assert runner.extend(slots, rows, "none").values.shape == (0, V)
    assert seen == []
    runner.extend(slots, rows)
    runner.extend(slots, rows, [3, 0])
    runner.extend(slots, rows, "all")
    assert seen == [2, 3, 14]


def test_empty_rows_and_empty_calls():
    runner = make()
    slots = [runner.acquire(), runner.acquire()]
    out = runner.extend([], [], "last")
    assert (out.values.shape, out.starts) == ((0, V), [0])
    out = runner.extend(slots, [[], [1, 2]], [0, 1])
    assert out.starts == [0, 0, 1]
    assert [runner.length(slot) for slot in slots] == [0, 2]
    assert_same_logits(out.values, fresh_logits(runner.model, [1, 2])[-1:])


def test_stats_count_tokens_and_forwards():
    runner = make()
    assert (runner.stats.tokens, runner.stats.forwards, runner.stats.seconds) == (0, 0, 0.0)
    slot = runner.acquire()
    runner.extend([slot], [[1, 2, 3]])
    runner.extend([slot], [[4]])
    assert (runner.stats.tokens, runner.stats.forwards) == (4, 2)
    assert runner.stats.seconds > 0


# -- refusals leave everything as it was -------------------------------------------------------------------------


def unchanged(runner, slots, lengths, state):
    assert [runner.length(slot) for slot in slots] == lengths
    assert (runner.cache.slots, runner.cache.capacity, runner.cache.generation) == state


def test_bad_calls_name_what_is_wrong_and_change_nothing():
    runner = make()
    slots = [runner.acquire(), runner.acquire()]
    runner.extend(slots, [row(5, 80), row(3, 81)])
    state = (runner.cache.slots, runner.cache.capacity, runner.cache.generation)
    bad = [
        (slots, [[1]], "last", InputError, "2 slots but 1 lists"),
        (slots, [[1], []], "last", InputError, "row 1 adds 0 ids"),
        (slots, [[1], [2]], [1], InputError, "2 rows but 1 counts"),
        (slots, [[1], [2]], [1, 2], InputError, "row 1 adds 1 ids"),
        (slots, [[1], [2]], "some", InputError, "'some' is not known"),
        ([slots[0], slots[0]], [[1], [2]], "last", InputError, "appears twice"),
        (slots, [[1], [V]], "last", InputError, r"row 1 has a token id that is not between 0 and 110"),
        (slots, [[-1], [1]], "last", InputError, "row 0 has a token id that is not"),
        ([slots[0], 77], [[1], [1]], "last", CacheError, "slot 77 is not held"),
    ]
    for these, ids, logits, error, message in bad:
        with pytest.raises(error, match=message):
            runner.extend(these, ids, logits)
        unchanged(runner, slots, [5, 3], state)


def test_case_24_context_length_is_kept_before_anything_changes():
    runner = make(model=tiny_model("gpt2", V, n_positions=32))
    assert runner.context_length == 32
    slots = [runner.acquire(), runner.acquire()]
    runner.extend(slots, [row(30, 90), row(5, 91)])
    state = (runner.cache.slots, runner.cache.capacity, runner.cache.generation)
    with pytest.raises(ContextError, match=r"row 0 \(slot 0\) would have 33 tokens, the context length is 32"):
        runner.extend(slots, [[1, 2, 3], [4]])
    unchanged(runner, slots, [30, 5], state)
    assert runner.extend(slots, [[1, 2], [4]]).values.isfinite().all()
    assert runner.cache.capacity == 32


def test_a_memory_limit_refuses_growth_and_rows_live_on():
    free = make()
    per_token = free.bytes_per_token
    runner = make(memory=4 * 32 * per_token + 4 * free.bytes_per_token)
    slot, *others = [runner.acquire() for _ in range(4)]
    ids = row(30, 92)
    runner.extend([slot, others[-1]], [ids, [5]])
    state = (runner.cache.slots, runner.cache.capacity, runner.cache.generation)
    with pytest.raises(CacheError, match="memory is limited to"):
        runner.extend([slot], [row(10, 93)])
    unchanged(runner, [slot, others[-1]], [30, 1], state)
    out = runner.extend([slot], [[7]])
    assert_same_logits(out.values, fresh_logits(runner.model, [*ids, 7])[-1:])
    for other in others:  # slots that no row holds give way
        runner.release(other)
    more = row(10, 93)
    out = runner.extend([slot], [more])
    assert_same_logits(out.values, fresh_logits(runner.model, [*ids, 7, *more])[-1:])
    assert runner.cache.slots < 4


def test_a_forward_that_fails_leaves_lengths_as_they_were():
    runner = make(chunk_tokens=4)
    slot = runner.acquire()
    ids = row(6, 94)
    runner.extend([slot], [ids])
    calls = []

    def fail(module, inputs):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")

    hook = runner.model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.extend([slot], [row(9, 95)])
    hook.remove()
    assert runner.length(slot) == 6
    out = runner.extend([slot], [[1, 2]], "all")
    assert_same_logits(out.values, fresh_logits(runner.model, [*ids, 1, 2])[-2:])


def test_the_model_itself_still_works_while_a_runner_uses_it():
    for family in ("mistral", "gemma2", "gemma3"):
        model = tiny_model(family, V)
        ids = row(40, 96)
        before = fresh_logits(model, ids)
        runner = make(model=model)
        runner.extend([runner.acquire()], [ids])
        with torch.no_grad():
            after = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        assert_same_logits(after, before)


def test_reserve_allocates_once():
    runner = make()
    runner.reserve(6, 100)
    generation = runner.cache.generation
    slots = [runner.acquire() for _ in range(6)]
    runner.extend(slots, [row(100, r) for r in range(6)])
    assert runner.cache.generation == generation
    runner.reserve(1, 10**9)  # as far as the context goes
    assert runner.cache.capacity == runner.context_length
