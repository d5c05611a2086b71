"""SpecFuse equals the oracle, which knows neither cache nor batch: candidates, scores, winners, exits, weights,
bytes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import equality
from support.ensembles import MIXED, same
from support.oracle import specfuse as oracle
from support.prompts import TEXTS

import ensemble_decode as ed

TRIOS = [("gpt2", "llama2", "gemma"), ("qwen2", "unigram", "llama3"), ("metaspace", "added", "gpt2")]
SCORE = 1e-5


def check(pair: equality.Pair, prompt: str, method: ed.SpecFuse, max_new_tokens: int, stop=None) -> int:
    """Compare round by round, up to a decision that is a tie in float32; the rounds that were equal."""
    (done,) = pair.ensemble.generate(prompt, method=method, max_new_tokens=max_new_tokens, stop=stop, trace=True)
    expected, rounds = oracle.specfuse(
        pair.models,
        prompt,
        max_new_tokens,
        stop,
        pair.ensemble.weights,
        segment_length=method.segment_length,
        exit_threshold=method.exit_threshold,
        temperature=method.temperature,
        words=method.trim == "word",
        rate=method.feedback,
    )
    before = list(range(len(pair.models)))
    for number, (ours, theirs) in enumerate(zip(done.trace, rounds, strict=False)):
        segment = ours.segment
        note = f"round {number} of {prompt!r} with {method}"
        assert segment.active == before, note
        assert [(c, e) for c, e in zip(ours.candidates, segment.ended, strict=True)] == [
            (c.data, c.ended) for c in theirs.candidates
        ], note
        assert segment.drafted_by == [c.by for c in theirs.candidates], note
        assert ours.probs == pytest.approx(theirs.scores, abs=SCORE), note
        if theirs.margin < equality.TIE:
            return number
        assert segment.winner == theirs.winner, note
        assert segment.quality == pytest.approx([theirs.quality[m] for m in segment.active], abs=SCORE), note
        assert [m for m in segment.active if m not in segment.left] == theirs.active, note
        total = sum(theirs.weights[m] for m in theirs.active)
        weights = [theirs.weights[m] / total if m in theirs.active else 0.0 for m in range(len(pair.models))]
        assert segment.weights == pytest.approx(weights, abs=SCORE), note
        before = theirs.active
    assert len(done.trace) == len(rounds) == done.stats.rounds
    ids = done.token_ids[:-1] if done.ended else done.token_ids
    assert (done.data, ids, equality.finish_of(done)) == (expected.data, expected.ids, expected.finish), prompt
    return len(rounds)


@pytest.mark.parametrize("names", TRIOS, ids="+".join)
def test_equals_the_oracle(names):
    """Exits included: a threshold of 1 lets every model leave that is below average."""
    pair = equality.tiny(names)
    left = rounds = 0
    for prompt in MIXED[:4]:
        for method in (ed.SpecFuse(), ed.SpecFuse(segment_length=3, exit_threshold=1.0, temperature=0.2, feedback=2.0)):
            rounds += check(pair, prompt, method, 10)
        (row,) = pair.ensemble.generate(prompt, method=method, max_new_tokens=10)
        left += row.stats.active[-1] < 3
    assert left >= 2
    assert rounds >= 16


def test_equals_the_oracle_with_weights_stops_and_end():
    names = ("llama2", "gpt2", "qwen2")
    pair = equality.tiny(names, 5, (0.5, 0.1, 0.4), end=4.0)
    finished = set()
    for prompt in MIXED[:6]:
        check(pair, prompt, ed.SpecFuse(segment_length=5), 14, ["ou", ". ", "\n\n"])
        finished.add(
            equality.finish_of(
                pair.ensemble.generate(prompt, method=ed.SpecFuse(segment_length=5), max_new_tokens=14)[0]
            )
        )
    assert finished >= {"end", "length"}


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompt=st.text(st.sampled_from("aeinrst  ,.\n123äßé你好😀\u0301<>\t"), min_size=1, max_size=12),
    names=st.sampled_from(TRIOS),
    length=st.sampled_from([1, 2, 4, 7]),
    threshold=st.sampled_from([0.0, 0.5, 1.0]),
    rate=st.sampled_from([None, 1.0]),
)
def test_equals_the_oracle_on_any_prompt(prompt, names, length, threshold, rate):
    method = ed.SpecFuse(segment_length=length, exit_threshold=threshold, feedback=rate)
    check(equality.tiny(names), prompt, method, 8)


@pytest.mark.parametrize(
    "sampling", [ed.Sampling(), ed.Sampling(temperature=1.0, top_k=30, seed=8)], ids=["greedy", "sampled"]
)
def test_batch_equals_solo(sampling):
    """Rows that lose models, end and are replaced at different times, each as if alone; streams join to the same
    text."""
    ensemble = equality.tiny(TRIOS[0]).ensemble
    options = {
        "method": ed.SpecFuse(segment_length=4, exit_threshold=1.0, feedback=1.0),
        "max_new_tokens": 12,
        "sampling": sampling,
        "stop": ["ee", "\n\n"],
    }
    together = ensemble.generate(MIXED, batch_size=3, trace=True, **options)
    assert len({tuple(row.stats.active) for row in together}) > 2
    assert len({row.finish_reason for row in together}) > 1
    for i, prompt in enumerate(MIXED):
        (alone,) = ensemble.generate(prompt, row_ids=[i], trace=True, **options)
        assert same(together[i], alone), prompt
        for ours, theirs in zip(together[i].trace, alone.trace, strict=True):
            assert ours.candidates == theirs.candidates
            assert ours.probs == pytest.approx(theirs.probs, abs=SCORE)
            assert ours.segment.left == theirs.segment.left
        assert together[i].stats.forwarded == alone.stats.forwarded
        deltas = list(ensemble.stream(prompt, row_ids=[i], **options))
        assert "".join(d.text for d in deltas) == alone.text
        assert [t for d in deltas for t in d.token_ids] == alone.token_ids
        assert any(d.ensembled for d in deltas) == bool(alone.ensembled_at)
    assert all(runner.held == 0 for runner in ensemble.runners)


def test_sampled_drafts_follow_seed_and_row():
    ensemble = equality.tiny(TRIOS[0]).ensemble
    method = ed.SpecFuse(segment_length=5)

    def texts(seed, row):
        sampling = ed.Sampling(temperature=1.2, seed=seed)
        return ensemble.generate("a", method=method, max_new_tokens=12, sampling=sampling, row_ids=[row])[0].data

    assert texts(1, 0) == texts(1, 0)
    assert len({texts(1, 0), texts(2, 0), texts(1, 7)}) == 3


@pytest.mark.real
def test_equals_the_oracle_on_the_demo_models(demo_models, demo_oracle):
    fast = ed.Ensemble.from_models([m for m, _ in demo_models], [t for _, t in demo_models])
    pair = equality.Pair(("smollm2", "gemma3"), fast, demo_oracle)
    for name, method in (
        ("english", ed.SpecFuse(segment_length=4)),
        ("chinese", ed.SpecFuse(segment_length=2, exit_threshold=1.0)),
    ):
        assert check(pair, TEXTS[name], method, 8) >= 2
