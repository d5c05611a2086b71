"""Rows of a batch that begin alike: read once, in whatever order they come, and no result depends on it."""

import itertools

import pytest
import torch
from support import batches
from support.ensembles import prompt_ids, same, tiny

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.members.transformers.prefixes import SHORTEST
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.vocab.common_prefix import common_prefix

STEM = "the cat sat on the mat. 12 + 7 = 19. def f(x):\n    return x\n" * 4
OTHER = "The quick brown fox jumps over the lazy dog, again and again. " * 4
METHODS = [ed.UniTE(), ed.SAFE(draft_length=3), ed.SpecFuse(segment_length=4), ed.GaC(), ed.Single(1)]


@pytest.fixture(scope="module")
def pair():
    return batches.pair()


def asked(count, **options):
    """Rows of two beginnings, in turn by threes."""
    return [
        BatchRequest((STEM, OTHER)[i // 3 % 2] + f"Item {i * i}:", **({"max_new_tokens": 3 + i % 5} | options))
        for i in range(count)
    ]


def prompts_of(ensemble, requests, m):
    return [prompt_ids(ensemble, m, request.prompt) for request in requests]


def watched(monkeypatch):
    """Every forward: ``(name of the model, new ids per row)``."""
    seen, extend = [], Runner.extend

    def noting(self, slots, new_ids, logits="last"):
        seen.append((self.name, [list(ids) for ids in new_ids]))
        return extend(self, slots, new_ids, logits)

    monkeypatch.setattr(Runner, "extend", noting)
    return seen


def assert_equal(run, requests, ensemble):
    results = list(run)
    assert [result.index for result in results] == list(range(len(requests)))
    for result, request in zip(results, requests, strict=True):
        assert result.completion.finish_reason != "error"
        assert same(result.completion, batches.alone(ensemble, request)), result.index


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_rows_of_common_beginnings_equal_each_alone(pair, method):
    requests = asked(12, method=method)
    expected = [batches.alone(pair, request) for request in requests]
    for batch_size, prefill_tokens in ((4, 2048), (6, 40), (1, 2048)):
        run = pair.generate_batch(requests, batch_size=batch_size, prefill_tokens=prefill_tokens)
        for result, done in zip(run, expected, strict=True):
            assert same(result.completion, done), (batch_size, result.index)
        for m in method.models(2):
            assert run.counts.prefix_tokens_reused[m] > 4 * SHORTEST


def test_three_models_share_each_by_its_own_tokens():
    trio = tiny("gpt2", "gemma", "qwen2")
    requests = asked(6)
    run = trio.generate_batch(requests, batch_size=3)
    assert_equal(run, requests, trio)
    assert all(run.counts.prefix_tokens_reused)


def test_rows_that_start_together_read_their_beginning_once(pair, monkeypatch):
    requests = [BatchRequest(f"{STEM}Item {i}:", max_new_tokens=4, stop="\x00") for i in range(6)]
    ids = prompts_of(pair, requests, 0)
    stem = min(common_prefix(a, b) for a, b in itertools.pairwise(ids))
    seen = watched(monkeypatch)
    run = pair.generate_batch(requests, batch_size=6, method=ed.Single())
    tokens = sum(len(result.completion.token_ids) for result in run)
    first, second = (new for _, new in seen[:2])
    assert [len(new) for new in first] == [len(ids[0])]  # the others wait a round for it
    assert len(second) == 6
    assert sum(map(len, second)) <= 1 + sum(len(prompt) - stem for prompt in ids[1:])
    assert run.counts.prefix_tokens_reused[0] >= 5 * stem
    assert run.counts.forwarded[0] + run.counts.prefix_tokens_reused[0] == sum(map(len, ids)) + tokens - 6
    assert run.counts.prefix_tokens_reused[1] == 0


def test_rows_of_other_beginnings_do_not_wait(pair, monkeypatch):
    prompts = [STEM + "a", STEM + "b", OTHER + "a", OTHER + "b", "the cat"]
    seen = watched(monkeypatch)
    list(pair.generate_batch(prompts, max_new_tokens=4, method=ed.Single(), stop="\x00"))
    whole = prompts_of(pair, [BatchRequest(prompt) for prompt in prompts], 0)
    assert sorted(map(len, seen[0][1])) == sorted(len(whole[i]) for i in (0, 2, 4))
    assert len(seen[1][1]) == 5


def test_short_common_beginnings_are_not_waited_for(pair, monkeypatch):
    prompts = [f"the cat sat {i}" for i in range(4)]
    seen = watched(monkeypatch)
    run = pair.generate_batch(prompts, max_new_tokens=2, method=ed.Single())
    list(run)
    assert len(seen[0][1]) == 4
    assert run.counts.prefix_tokens_reused == [0, 0]


def test_a_beginning_that_is_being_read_in_chunks_is_copied_when_it_is_there(pair, monkeypatch):
    method = ed.Single()
    requests = [BatchRequest("a", max_new_tokens=40, stop="\x00", method=method), *asked(3, method=method)]
    ids = prompts_of(pair, requests, 0)
    seen = watched(monkeypatch)
    run = pair.generate_batch(requests, batch_size=4, prefill_tokens=24)
    assert_equal(run, requests, pair)
    assert max(len(new) for _, news in seen[:20] for new in news) <= 24
    stem = min(common_prefix(ids[1], other) for other in ids[2:])
    assert run.counts.prefix_tokens_reused[0] >= 2 * (stem - 24)  # all of it but what may be read in the same round


def test_a_row_takes_over_from_one_that_has_ended(pair):
    """One slot: each row finds the beginning that the one before it has left there."""
    requests = [BatchRequest(f"{STEM}{i}", max_new_tokens=2) for i in range(4)]
    run = pair.generate_batch(requests, batch_size=1)
    assert_equal(run, requests, pair)
    ids = prompts_of(pair, requests, 0)
    assert run.counts.prefix_tokens_reused[0] >= 3 * (len(ids[0]) - 2)
    again = pair.generate_batch(requests[:1], batch_size=1)
    list(again)
    assert again.counts.prefix_tokens_reused == [0, 0]  # nothing outlives a run


def test_a_text_that_goes_on_from_another_answer_takes_the_answer_too(pair):
    (first,) = pair.generate(STEM, max_new_tokens=12, stop="\x00")
    follow = BatchRequest(STEM + first.text + " and then", max_new_tokens=3)
    requests = [BatchRequest(STEM, max_new_tokens=12, stop="\x00"), follow]
    run = pair.generate_batch(requests, batch_size=1)
    assert_equal(run, requests, pair)
    own = [prompts_of(pair, requests, m)[0] for m in (0, 1)]
    assert any(run.counts.prefix_tokens_reused[m] > len(own[m]) for m in (0, 1))


def test_a_model_behind_a_gate_takes_over_when_it_is_asked_first(pair, monkeypatch):
    """The verifier of a gated method reads no row before its gate opens; by then another row may have been read."""
    found, take_over = [], Runner.take_over

    def noting(self, slot, ids):
        found.append(take_over(self, slot, ids))
        return found[-1]

    method = ed.UniTE(gate=ed.MaxProb(0.2))
    requests = [BatchRequest(f"{STEM}{'x' * i}", max_new_tokens=16, stop="\x00", method=method) for i in range(8)]
    expected = [batches.alone(pair, request) for request in requests]
    monkeypatch.setattr(Runner, "take_over", noting)
    run = pair.generate_batch(requests, batch_size=8)
    assert all(same(result.completion, done) for result, done in zip(run, expected, strict=True))
    assert sum(found) > SHORTEST


def test_sharing_can_be_left_out(pair):
    requests = asked(6)
    run = pair.generate_batch(requests, batch_size=3, share_prefixes=False)
    assert_equal(run, requests, pair)
    assert run.counts.prefix_tokens_reused == [0, 0]


def test_sampled_rows_of_one_prompt_differ_and_equal_each_alone(pair):
    hot = ed.Sampling(temperature=1.2, seed=5)
    together = pair.generate([STEM] * 5, max_new_tokens=8, sampling=hot)
    run = pair.generate_batch([STEM] * 5, max_new_tokens=8, sampling=hot)
    results = list(run)
    assert all(same(result.completion, done) for result, done in zip(results, together, strict=True))
    assert len({result.completion.data for result in results}) > 1
    assert run.counts.prefix_tokens_reused[0] == 4 * (len(prompt_ids(pair, 0, STEM)) - 1)


def test_failed_allocations_and_tight_limits_leave_results_as_they_are(pair, monkeypatch):
    requests, calls, extend = asked(12), [0], Runner.extend
    per_token = sum(runner.bytes_per_token for runner in pair.runners)

    def failing(self, slots, *arguments):
        calls[0] += 1
        if calls[0] in (2, 9, 10, 31):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return extend(self, slots, *arguments)

    expected = [batches.alone(pair, request) for request in requests]
    monkeypatch.setattr(Runner, "extend", failing)
    limit = int(3 * 512 * 1.3 * per_token)
    run = pair.generate_batch(requests, batch_size=6, memory=limit, prefill_tokens=64)
    assert all(same(result.completion, done) for result, done in zip(run, expected, strict=True))
    assert run.counts.failed_allocations == 4
    assert run.counts.peak_cache_bytes <= limit
    assert all(run.counts.prefix_tokens_reused)
