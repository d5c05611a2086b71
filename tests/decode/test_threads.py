"""Calls side by side on one ensemble: safe, fair, and equal to what each call gives alone."""

import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.ensembles import MIXED, same, tiny

import ensemble_decode as ed
from ensemble_decode.decode.turns import Turns

METHODS = [ed.UniTE(), ed.SAFE(draft_length=3), ed.GaC(), ed.Single(1), ed.SpecFuse(segment_length=3)]


@pytest.fixture
def pair():
    return tiny.__wrapped__("gpt2", "llama2")


def test_a_thousand_calls_from_eight_threads(pair):
    """generate, stream, generate_batch and abandoned iterators: every text is that of a call alone, every slot is
    free."""
    prompts = MIXED[:5]
    alone = {
        (p, m): pair.generate(p, method=METHODS[m], max_new_tokens=4)[0] for p in prompts for m in range(len(METHODS))
    }

    def call(number: int) -> None:
        draw = random.Random(number)
        m, chosen = draw.randrange(len(METHODS)), draw.sample(prompts, draw.randint(1, 2))
        options = {"method": METHODS[m], "max_new_tokens": 4}
        kind = number % 5
        if kind == 0:
            for delta in pair.stream(chosen, **options):
                assert delta.error is None
                break  # the rows are dropped
        elif kind == 1:
            texts = [""] * len(chosen)
            for delta in pair.stream(chosen, **options):
                texts[delta.row] += delta.text
            assert texts == [alone[p, m].text for p in chosen]
        elif kind == 2:
            run = pair.generate_batch(chosen, memory="1MiB", **options)
            assert all(same(r.completion, alone[p, m]) for r, p in zip(run, chosen, strict=True))
        else:
            assert all(same(r, alone[p, m]) for r, p in zip(pair.generate(chosen, **options), chosen, strict=True))

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(call, range(1000)):
            pass
    gc.collect()
    assert [(runner.held, runner.memory) for runner in pair.runners] == [(0, None)] * 2


def test_limits_of_runs_that_overlap_end_with_them(pair):
    """Whichever ends first: the lower limit holds while its run is open, none is left afterwards."""
    for first_ends in (0, 1):
        runs = [
            pair.generate_batch(MIXED, memory=memory, max_new_tokens=3, order="finished") for memory in ("2MiB", "1MiB")
        ]
        limits = []
        for run in runs:
            next(run)
            limits.append([runner.memory for runner in pair.runners])
        assert all(low < high for low, high in zip(limits[1], limits[0], strict=True))
        runs.pop(first_ends).close()
        assert [runner.memory for runner in pair.runners] == limits[1 - first_ends]
        runs[0].close()
        assert [(runner.held, runner.memory) for runner in pair.runners] == [(0, None)] * 2


def test_rows_of_another_run_are_found_where_a_cache_was_rearranged(pair):
    """A run within limits that cuts the cache moves the slots of all runs."""
    fresh = tiny("gpt2", "llama2")
    stream = pair.stream(MIXED, max_new_tokens=12)
    texts = [""] * len(MIXED)
    moves = []
    for runner in pair.runners:
        real = runner.make_room

        def make_room(*sizes, real=real, **options):
            moved = real(*sizes, **options)
            moves.append(len(moved))
            return moved

        runner.make_room = make_room
    for number, delta in enumerate(stream):
        texts[delta.row] += delta.text
        if number == 8:
            sizes = [runner.bytes_per_token * 256 * 12 for runner in pair.runners]
            batch = pair.generate_batch(["a " * 150], memory=3 * sum(sizes), max_new_tokens=120)
            (result,) = batch
            assert same(result.completion, fresh.generate("a " * 150, max_new_tokens=120)[0])
    assert texts == [row.text for row in fresh.generate(MIXED, max_new_tokens=12)]
    assert moves


def test_turns_come_in_the_order_of_asking_and_may_be_taken_twice():
    turns, order = Turns(), []
    threads = []
    with turns, turns:
        for number in range(5):
            begun = len(turns._waiting)
            threads.append(
                threading.Thread(target=lambda n=number: turns.__enter__() or order.append(n) or turns.__exit__())
            )
            threads[-1].start()
            while len(turns._waiting) == begun:
                pass
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_work_for_later_runs_at_once_or_at_the_end_of_the_turn():
    turns, done = Turns(), []
    turns.soon(lambda: done.append("free"))
    assert done == ["free"]
    with turns:
        turns.soon(lambda: done.append("mine"))
        thread = threading.Thread(target=lambda: turns.soon(lambda: done.append("another's")))
        thread.start()
        thread.join()  # it does not wait for the turn
        assert done == ["free"]
    assert done == ["free", "mine", "another's"]


def test_a_source_that_calls_the_ensemble_or_waits_stops_nobody(pair):
    (wanted,) = pair.generate("a", max_new_tokens=3)

    def source():
        yield "a"
        (row,) = pair.generate("a", max_new_tokens=3)
        assert same(row, wanted)
        thread = threading.Thread(target=pair.generate, args=("a",))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        yield "a"

    assert [same(r.completion, wanted) for r in pair.generate_batch(source(), max_new_tokens=3)] == [True] * 2


def test_a_live_source_that_waits_does_not_stop_the_running_rows(pair):
    """The first row ends although the second prompt has not come; what reading raises is raised."""
    ended, both = threading.Event(), threading.Event()

    def source():
        yield "The quick"
        assert ended.wait(60)
        yield "a"
        assert both.wait(60)
        raise KeyError("no more")

    run = pair.generate_batch(source(), max_new_tokens=3, live=True)
    first = next(run)
    ended.set()
    assert same(first.completion, pair.generate("The quick", max_new_tokens=3)[0])
    assert same(next(run).completion, pair.generate("a", max_new_tokens=3)[0])
    both.set()
    with pytest.raises(KeyError, match="no more"):
        next(run)


def test_none_in_a_source_is_no_prompt_for_now(pair):
    results = list(pair.generate_batch([None, "a", None, None, "The quick"], max_new_tokens=3))
    assert [(r.index, r.completion.prompt) for r in results] == [(0, "a"), (1, "The quick")]
    assert all(same(r.completion, pair.generate(r.completion.prompt, max_new_tokens=3)[0]) for r in results)
