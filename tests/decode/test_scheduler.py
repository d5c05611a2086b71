"""Continuous batching: no row's result depends on its company, on chunks, on memory or on failed allocations."""

import pytest
import torch
from support import batches
from support.ensembles import same

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.members.transformers.runner import Runner

COUNT = 30


@pytest.fixture(scope="module")
def pair():
    return batches.pair()


@pytest.fixture(scope="module")
def expected(pair):
    return [batches.alone(pair, request) for request in batches.requests(COUNT)]


def per_token(ensemble) -> int:
    return sum(runner.bytes_per_token for runner in ensemble.runners)


def assert_equal(results, expected):
    assert sorted(result.index for result in results) == list(range(len(expected)))
    for result in results:
        assert same(result.completion, expected[result.index]), (result, expected[result.index])


@pytest.mark.parametrize(("prefill_tokens", "order"), [(5, "input"), (2048, "finished")])
def test_mixed_rows_equal_each_alone(pair, expected, prefill_tokens, order):
    run = pair.generate_batch(batches.requests(COUNT), batch_size=6, prefill_tokens=prefill_tokens, order=order)
    results = list(run)
    assert_equal(results, expected)
    places = [result.index for result in results]
    assert (places == sorted(places)) == (order == "input")
    failed = {result.index for result in results if result.error_kind}
    assert failed == {i for i, done in enumerate(expected) if done.finish_reason == "error"}
    assert {result.error_kind for result in results if result.index in failed} == {"too_long"}


def test_prompts_are_read_in_chunks_in_the_forwards_of_running_rows(pair, monkeypatch):
    seen = []
    extend = Runner.extend

    def watched(self, slots, new_ids, logits="last"):
        wanted = [1] * len(slots) if logits == "last" else list(logits)
        seen.append([(len(ids), want) for ids, want in zip(new_ids, wanted, strict=True)])
        return extend(self, slots, new_ids, logits)

    monkeypatch.setattr(Runner, "extend", watched)
    requests = [BatchRequest("a", max_new_tokens=40), BatchRequest("the cat sat " * 25, max_new_tokens=4)]
    list(pair.generate_batch(requests, batch_size=2, prefill_tokens=16))
    chunks = [call for call in seen if any(count > 1 and not want for count, want in call)]
    assert len(chunks) >= 4
    assert max(count for call in chunks for count, want in call if not want) <= 16
    assert sum(any(want for _, want in call) for call in chunks) >= len(chunks) - 2  # a running row in the same forward


def test_a_row_that_ends_is_replaced_at_once(pair):
    lengths = [1, 30, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    requests = [BatchRequest(f"a {i}", max_new_tokens=n, stop="\x00") for i, n in enumerate(lengths)]
    run = pair.generate_batch(requests, batch_size=2, method=ed.Single())
    results = list(run)
    tokens = sum(len(result.completion.token_ids) for result in results)
    longest = max(len(result.completion.token_ids) for result in results)
    assert run.counts.rounds == max(longest, tokens - longest)  # the other slot is never empty


def test_under_a_tight_limit_rows_wait_and_the_peak_stays_below(pair, expected):
    for blocks in (2, 9):
        limit = int(blocks * 256 * 1.3 * per_token(pair))
        run = pair.generate_batch(batches.requests(COUNT), batch_size=6, memory=limit, prefill_tokens=32)
        assert_equal(list(run), expected)
        assert 0 < run.counts.peak_cache_bytes <= limit
    for runner in pair.runners:
        assert runner.memory is None  # as before


def test_rows_that_outgrow_the_limit_are_put_back_and_lose_nothing(monkeypatch):
    """Caches of small blocks: rows are let in for what they hold now and do not all fit when they have grown."""
    ensemble = batches.pair.__wrapped__()
    for runner in ensemble.runners:
        runner.cache.limits.block = runner.cache.limits.slot_block = 1
    requests = [BatchRequest(f"the cat {i}", max_new_tokens=160, stop="\x00") for i in range(6)]
    expected = [batches.alone(ensemble, request) for request in requests]
    for runner in ensemble.runners:
        runner.free_memory()
    limit = 5 * 80 * per_token(ensemble)
    run = ensemble.generate_batch(requests, memory=limit, batch_size=6)
    assert_equal(list(run), expected)
    assert run.counts.put_back > 0
    assert run.counts.peak_cache_bytes <= limit
    assert any(len(done.token_ids) > 120 for done in expected)


def test_a_row_that_does_not_fit_alone_fails_with_the_figures(pair):
    limit = 500 * per_token(pair)
    long, short = pair.generate_batch([BatchRequest("the cat sat " * 80, max_new_tokens=5), "a"], memory=limit)
    assert long.error_kind == "memory"
    assert "bytes" in long.completion.error
    assert "memory is limited to" in long.completion.error
    assert short.completion.finish_reason != "error"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_allocation_shrinks_the_batch_and_costs_no_row(pair, expected, monkeypatch, error):
    calls, extend = [0], Runner.extend

    def failing(self, slots, *arguments):
        calls[0] += 1
        if calls[0] in (3, 20, 21, 60, 110):
            raise error
        return extend(self, slots, *arguments)

    monkeypatch.setattr(Runner, "extend", failing)
    run = pair.generate_batch(batches.requests(COUNT), batch_size=8, order="finished")
    assert_equal(list(run), expected)
    assert run.counts.failed_allocations == 5


def test_a_batch_above_what_memory_holds_finds_its_size(pair, expected, monkeypatch):
    """Forwards of more than two rows never succeed, as where activations do not fit."""
    extend = Runner.extend

    def failing(self, slots, *arguments):
        if len(slots) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return extend(self, slots, *arguments)

    monkeypatch.setattr(Runner, "extend", failing)
    run = pair.generate_batch(batches.requests(COUNT), batch_size=16)
    assert_equal(list(run), expected)
    assert run.counts.failed_allocations >= 2


def test_a_row_whose_own_allocation_never_succeeds_fails_alone(pair, monkeypatch):
    extend = Runner.extend

    def failing(self, slots, new_ids, *arguments):
        if any(len(ids) > 60 for ids in new_ids):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return extend(self, slots, new_ids, *arguments)

    monkeypatch.setattr(Runner, "extend", failing)
    prompts = ["a", "the cat sat " * 30, "b", "The"]
    results = list(pair.generate_batch(prompts, max_new_tokens=6))
    assert [result.error_kind for result in results] == [None, "memory", None, None]
    assert "out of memory with no other row beside it" in results[1].completion.error
    for i in (0, 2, 3):
        assert same(results[i].completion, pair.generate(prompts[i], max_new_tokens=6)[0])


def test_an_error_that_is_not_about_memory_ends_the_call_and_frees_the_slots(pair, monkeypatch):
    def broken(self, *arguments):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(Runner, "extend", broken)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(pair.generate_batch(["a", "b"]))
    assert all(runner.held == 0 for runner in pair.runners)


def test_sampling_depends_on_seed_and_place_alone(pair):
    hot = ed.Sampling(temperature=1.0, seed=3)
    prompts = ["The"] * 5
    together = pair.generate(prompts, max_new_tokens=8, sampling=hot)
    for size in (1, 4):
        run = pair.generate_batch(prompts, max_new_tokens=8, sampling=hot, batch_size=size)
        # a run's seed given once keys every row by its place
        assert all(same(result.completion, done) for result, done in zip(run, together, strict=True))
    own = list(
        pair.generate_batch(
            [BatchRequest("The", seed=9), "The", BatchRequest("The", seed=9)], sampling=hot, max_new_tokens=8
        )
    )
    (lone,) = pair.generate("The", sampling=ed.Sampling(temperature=1.0, seed=9), max_new_tokens=8)
    assert same(own[0].completion, lone)
    assert same(own[2].completion, lone)
    assert same(own[1].completion, together[1])


def test_requests_are_read_as_there_is_room(pair):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield BatchRequest(f"a {len(taken)}", max_new_tokens=2)

    run = pair.generate_batch(endless(), batch_size=2)
    for _ in range(10):
        next(run)
    assert len(taken) < 40
    run.close()
    assert all(runner.held == 0 for runner in pair.runners)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (BatchRequest("a", max_new_tokens=0), "max_new_tokens"),
        (BatchRequest("a", stop=[""]), "stop"),
        (BatchRequest("a", seed=-1), "seed"),
        (BatchRequest("a", method=ed.Single(7)), "Single: model"),
    ],
)
def test_settings_of_a_row_that_cannot_be_used_fail_it_alone(pair, request_, named):
    bad, good = pair.generate_batch([request_, "a"], max_new_tokens=2)
    assert bad.error_kind == "field"
    assert named in bad.completion.error
    assert good.error_kind is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"order": "random"}, "order"),
        ({"memory": "lots"}, "memory"),
        ({"memory": 1.5}, "memory"),
        ({"memory": "0%"}, "memory"),
        ({"prefill_tokens": 0}, "prefill_tokens"),
        ({"chat": "none"}, "chat"),
        ({"stop": [3]}, "stop"),
    ],
)
def test_arguments_that_no_row_can_use_are_refused(pair, options, named):
    with pytest.raises(ed.InputError, match=named):
        pair.generate_batch(["a"], **options)
    with pytest.raises(ed.InputError, match="list"):
        pair.generate_batch("a")


@pytest.mark.slow
def test_500_mixed_rows_equal_each_alone(pair):
    requests = batches.requests(500, seed=1)
    expected = [batches.alone(pair, request) for request in requests]
    assert_equal(list(pair.generate_batch(requests, batch_size=32, prefill_tokens=128)), expected)


@pytest.mark.slow
@pytest.mark.real
def test_24_rows_of_the_demo_models_equal_each_alone():
    ensemble = ed.Ensemble.load(["demo:smollm2", "demo:gemma3"], device="cpu", dtype="float32")
    requests = [r for r in batches.requests(40, seed=2) if len(r.prompt) < 1000 and r.sampling is None][:24]
    expected = [batches.alone(ensemble, request) for request in requests]
    assert_equal(list(ensemble.generate_batch(requests, batch_size=8, prefill_tokens=32)), expected)
