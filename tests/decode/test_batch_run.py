"""A run of many rows: it holds nothing before it begins and gives everything back, and a request may ask for its
trace."""

import gc

import pytest
from support import batches

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest


@pytest.fixture
def pair():
    ensemble = batches.pair()
    for runner in ensemble.runners:
        runner.limit_memory(None)
    return ensemble


def limits(ensemble) -> list[int | None]:
    return [runner.memory for runner in ensemble.runners]


def test_a_run_dropped_before_its_first_result_limits_nothing(pair):
    run = pair.generate_batch(["a"], memory="64MiB")
    assert limits(pair) == [None, None]
    assert sum(run.limits) <= 64 << 20
    assert (run.counts.rows, run.counts.forwards) == (0, [0, 0])
    del run
    gc.collect()
    assert limits(pair) == [None, None]
    pair.generate_batch(["a"], memory="64MiB").close()
    assert limits(pair) == [None, None]


@pytest.mark.parametrize("end", ["closed", "dropped", "exhausted", "failed"])
def test_a_run_that_began_gives_the_limits_back(pair, end):
    def prompts():
        yield from ["a", "b"]
        if end == "failed":
            raise OSError("the source broke")

    run = pair.generate_batch(prompts(), memory="64MiB", max_new_tokens=4, batch_size=1)
    next(run)
    assert all(0 < now <= limit for now, limit in zip(limits(pair), run.limits, strict=True))
    if end == "closed":
        run.close()
    elif end == "dropped":
        del run
        gc.collect()
    elif end == "exhausted":
        list(run)
    else:
        with pytest.raises(OSError, match="the source broke"):
            list(run)
    assert limits(pair) == [None, None]


def test_two_runs_made_before_either_began_give_back_the_first_limits(pair):
    first, second = (pair.generate_batch(["a"], memory="64MiB", max_new_tokens=2) for _ in range(2))
    assert len(list(first)) == len(list(second)) == 1
    assert limits(pair) == [None, None]


def test_a_request_asks_for_its_own_trace(pair):
    requests = [BatchRequest("a", trace=True), "b"]
    traced, plain = (result.completion for result in pair.generate_batch(requests, max_new_tokens=5))
    (alone,) = pair.generate(["a"], max_new_tokens=5, trace=True)
    assert [step.chosen for step in traced.trace] == [step.chosen for step in alone.trace]
    assert len(traced.trace) == len(traced.token_ids)
    assert plain.trace is None


@pytest.mark.parametrize("options", [{"prefill_tokens": 0}, {"batch_size": True}, {"memory": "lots"}])
def test_wrong_arguments_are_told_before_the_first_result(pair, options):
    with pytest.raises(ed.InputError, match=next(iter(options))):
        pair.generate_batch(["a"], **options)
