"""A session: rows that join, leave, stream and end while others run."""

import asyncio
import gc
import threading
import time

import pytest
from support.ensembles import MIXED, same, tiny

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest

PROMPTS = MIXED[:6]


@pytest.fixture(scope="module")
def pair():
    return tiny.__wrapped__("gpt2", "llama2")


def free(ensemble) -> bool:
    """Whether every slot comes free within a few seconds."""
    for _ in range(500):
        if all(runner.held == 0 for runner in ensemble.runners):
            return True
        time.sleep(0.01)
    return False


def test_rows_from_many_threads_are_what_they_are_alone(pair):
    """Each with its own settings; errors stay with their rows; the limit ends with the session."""
    asked = [
        BatchRequest(
            prompt, max_new_tokens=4 + i, method=ed.SAFE(draft_length=3) if i % 2 else None, sampling=sampling, seed=i
        )
        for i, prompt in enumerate(PROMPTS)
        for sampling in (None, ed.Sampling(temperature=0.9))
    ]
    done = {}
    with pair.session(memory="8MiB", batch_size=4) as session:

        def serve(number):
            generation = session.add(asked[number])
            text = "".join(delta.text for delta in generation)
            done[number] = (text, generation.result(60))

        threads = [threading.Thread(target=serve, args=(number,)) for number in range(len(asked))]
        for thread in threads:
            thread.start()
        bad = session.add(BatchRequest("a", stop=5)).result(60)
        for thread in threads:
            thread.join()
    assert (bad.finish_reason, bad.error_kind) == ("error", "field")
    for number, request in enumerate(asked):
        (alone,) = pair.generate_batch([request])
        assert same(done[number][1], alone.completion)
        assert done[number][0] == alone.completion.text
    assert [(runner.held, runner.memory) for runner in pair.runners] == [(0, None)] * 2
    with pytest.raises(ed.EnsembleError, match="the session is closed"):
        session.add("a")


@pytest.mark.parametrize("how", ["cancel", "with", "drop"])
def test_a_row_that_nobody_wants_leaves_the_others_alone(pair, how):
    (wanted,) = pair.generate("The quick", max_new_tokens=40)
    with pair.session(max_new_tokens=400) as session:
        unwanted = session.add("a")
        other = session.add(BatchRequest("The quick", max_new_tokens=40))
        first = next(unwanted)
        if how == "cancel":
            unwanted.cancel()
            left = unwanted.result(60)
            assert left.finish_reason == "cancelled"
            assert left.text.startswith(first.text)
            assert len(left.token_ids) < 400
            assert left.token_ids == pair.generate("a", max_new_tokens=len(left.token_ids))[0].token_ids
        elif how == "with":
            with unwanted:
                pass
            assert unwanted.result(60).finish_reason == "cancelled"
        else:
            del unwanted
        assert same(other.result(60), wanted)
        assert free(pair)
        assert session.add(BatchRequest("a", max_new_tokens=2)).result(60).finish_reason == "length"


def test_a_dropped_session_cancels_its_rows(pair):
    session = pair.session(max_new_tokens=400)
    generation = session.add("a")
    thread = session._thread
    next(generation)
    session.close()
    assert generation.result(60).finish_reason == "cancelled"
    assert not thread.is_alive()
    other = pair.session()
    thread = other._thread
    del other
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert free(pair)


def test_coroutines_stream_and_wait_beside_each_other(pair):
    async def one(session, prompt):
        generation = session.add(prompt)
        text = "".join([delta.text async for delta in generation])
        completion = await generation.completed()
        assert completion.text == text
        return completion

    async def serve():
        async with pair.session(max_new_tokens=8) as session:
            return await asyncio.gather(*(one(session, prompt) for prompt in PROMPTS))

    expected = pair.generate(PROMPTS, max_new_tokens=8)
    assert all(same(row, wanted) for row, wanted in zip(asyncio.run(serve()), expected, strict=True))


class Broken(ed.Single):
    def round(self, context, rows):
        raise RuntimeError("a bug")


def test_an_error_of_a_method_reaches_every_row_and_closes_the_session(pair):
    session = pair.session(max_new_tokens=400)
    well = session.add("a")
    next(well)
    ill = session.add(BatchRequest("b", method=Broken()))
    for generation in (well, ill):
        with pytest.raises(ed.EnsembleError, match="the session broke down: a bug"):
            generation.result(60)
    session._thread.join(60)
    with pytest.raises(ed.EnsembleError, match="closed"):
        session.add("c")
    assert free(pair)
    assert pair.generate("a", max_new_tokens=2)[0].error is None


def test_a_session_and_calls_take_turns(pair):
    (wanted,) = pair.generate("The quick", max_new_tokens=8)
    with pair.session(max_new_tokens=300) as session:
        long = session.add("a")
        next(long)
        assert same(pair.generate("The quick", max_new_tokens=8)[0], wanted)
        assert not long.done
        with pytest.raises(TimeoutError, match="row 0 has not ended"):
            long.result(0.001)


def test_what_cannot_be_a_request_is_an_error_row_and_the_session_lives(pair):
    with pair.session(max_new_tokens=2) as session:
        for wrong in (
            BatchRequest(7),
            BatchRequest("a", row_id=2**70),
            BatchRequest("a", row_id="x"),
            BatchRequest("a", seed=-1),
            BatchRequest("a", sampling="hot"),
            BatchRequest("a", method="unite"),
            BatchRequest("a", weight=[1, 2, 3]),
            BatchRequest("a", max_new_tokens=0),
            BatchRequest(ed.TokenPrompt({0: ["x"]})),
        ):
            assert session.add(wrong).result(60).finish_reason == "error", wrong
        assert session.add("a").result(60).error is None
