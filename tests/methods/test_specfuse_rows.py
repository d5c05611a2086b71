"""What a caller sees of SpecFuse: ends, streams, literals, contexts, errors, exits that save work, and its
invariances."""

import dataclasses

import pytest
import torch
from support import tiny_models, tokenizers
from support.bigrams import bigram_ensemble
from support.ensembles import MIXED, byte_ensemble, ensemble_of, models, prompt_ids, same, tiny
from support.equality import finish_of
from support.oracle.vocab import END

import ensemble_decode as ed

METHOD = ed.SpecFuse(segment_length=4)


@pytest.fixture(scope="module")
def trio() -> ed.Ensemble:
    return tiny("gpt2", "llama2", "gemma")


def ring(letters: str, p: float = 0.6, **others: dict) -> dict:
    """A table that goes round ``letters``, every step with probability ``p``."""
    return {a: {b: p} for a, b in zip(letters, letters[1:] + letters[0], strict=True)} | others


# -- ends --------------------------------------------------------------------------------------------------------


def test_max_new_tokens_cuts_ids_and_text_together(trio):
    vocab = trio.vocab.models[0]
    (long,) = trio.generate(MIXED[0], method=METHOD, max_new_tokens=24, trace=True)
    joined = b"".join(step.chosen for step in long.trace)
    for limit in (1, 5, 11):
        (row,) = trio.generate(MIXED[0], method=METHOD, max_new_tokens=limit)
        assert row.finish_reason == "length"
        assert len(row.token_ids) == limit
        assert vocab.decode(row.token_ids) == row.data
        assert joined.startswith(row.data)
        assert row.ensembled_at == list(range(limit))
        assert row.stats.ensembled == limit


def test_a_cut_never_takes_back_what_was_shown():
    """T_0 of a longer text may need more ids for what stood before: runs of spaces are tokens of llama2's tokenizer."""
    spaces = {" ": {" ": 0.9}, "x": {" ": 0.9}}
    ensemble = bigram_ensemble(spaces, spaces, names=("metaspace", "bytes"))
    method = ed.SpecFuse(segment_length=3, trim="none")
    for limit in range(1, 7):
        (row,) = ensemble.generate("x", method=method, max_new_tokens=limit)
        deltas = list(ensemble.stream("x", method=method, max_new_tokens=limit))
        assert "".join(d.text for d in deltas) == row.text
        assert ensemble.vocab.models[0].decode(row.token_ids) == row.data
        assert len(row.token_ids) <= limit


def test_a_stop_string_across_segments_cuts_before_it():
    ensemble = bigram_ensemble(ring("sabcd"), ring("sabcd", 0.5))
    for length in (1, 2, 3, 7):
        method = ed.SpecFuse(segment_length=length)
        (row,) = ensemble.generate("s", method=method, max_new_tokens=30, stop=["dsa", "zz"])
        assert (row.text, row.finish_reason) == ("abc", "stop")
        assert row.token_ids == ensemble.vocab.models[0].encode(b"abc")
        deltas = list(ensemble.stream("s", method=method, max_new_tokens=30, stop=["dsa"]))
        assert "".join(d.text for d in deltas) == "abc"


def test_end_wins_alone_and_an_empty_segment_is_a_candidate():
    """Model 1 ends at once; the empty candidate scores P(END) in both models."""
    ensemble = bigram_ensemble({"s": {"a": 0.5, END: 0.4}, "a": {"b": 0.2}}, {"s": {END: 0.9}})
    (row,) = ensemble.generate("s", method=ed.SpecFuse(segment_length=2), max_new_tokens=9, trace=True)
    assert row.trace[0].candidates == [b"ab", b""]
    assert row.trace[0].segment.ended == [False, True]
    assert row.trace[0].probs[1] == pytest.approx((0.4 + 0.9) / 2, abs=1e-6)
    assert (row.data, finish_of(row)) == (b"", "end")
    assert row.token_ids == [ensemble.vocab.models[0].eos_ids[0]]


def test_candidates_that_begin_with_one_another():
    """ "a" + END, "ab" and "ab" + END are three candidates, each scored by its own ids."""
    one = {"s": {"a": 0.9}, "a": {END: 0.45, "b": 0.44}, "b": {"c": 0.1, END: 0.3}}
    two = {"s": {"a": 0.9}, "a": {"b": 0.8, END: 0.1}, "b": {END: 0.6}}
    three = {"s": {"a": 0.9}, "a": {"b": 0.8, END: 0.1}, "b": {"c": 0.5, END: 0.3}}
    ensemble = bigram_ensemble(one, two, three)
    (row,) = ensemble.generate(
        "s", method=ed.SpecFuse(segment_length=3, literals=("ab",)), max_new_tokens=3, trace=True
    )
    step = row.trace[0]
    assert step.candidates == [b"a", b"ab", b"abc", b"ab"]
    assert step.segment.ended == [True, True, False, False]
    assert step.segment.drafted_by == [[0], [1], [2], []]
    by_hand = [
        [(0.9 + 0.45) / 2, (0.9 + 0.44 + 0.3) / 3, (0.9 + 0.44 + 0.1) / 3, (0.9 + 0.44) / 2],
        [(0.9 + 0.1) / 2, (0.9 + 0.8 + 0.6) / 3, None, (0.9 + 0.8) / 2],
        [(0.9 + 0.1) / 2, (0.9 + 0.8 + 0.3) / 3, (0.9 + 0.8 + 0.5) / 3, (0.9 + 0.8) / 2],
    ]
    for scores, wanted in zip(step.segment.scores, by_hand, strict=True):
        assert [s for s, w in zip(scores, wanted, strict=True) if w] == pytest.approx(
            [w for w in wanted if w], abs=1e-6
        )


# -- literals ----------------------------------------------------------------------------------------------------


def test_case_8_a_literal_beside_two_families_with_ranking_and_source():
    ensemble = tiny("gpt2", "llama2")
    said = " I do not know."
    method = dataclasses.replace(METHOD, literals=(said, b" 42"))
    (row,) = ensemble.generate("What? ", method=method, max_new_tokens=6, trace=True)
    step = row.trace[0]
    assert step.candidates[-2:] == [said.encode(), b" 42"]
    assert step.segment.drafted_by[-2:] == [[], []]
    assert len(step.probs) == len(step.candidates) == len(step.segment.scores[0])
    assert step.segment.winner == max(range(len(step.probs)), key=step.probs.__getitem__)


def test_a_literal_may_win_and_counts_for_nobody():
    """Both models find the literal likely but neither drafts it: each has a first choice of its own."""
    one = {"s": {"a": 0.5, "b": 0.45}, "b": {"b": 0.9}, "a": {"c": 0.1}}
    two = {"s": {"d": 0.5, "b": 0.45}, "b": {"b": 0.9}, "d": {"c": 0.1}}
    method = ed.SpecFuse(segment_length=2, literals=("bb",))
    (row,) = bigram_ensemble(one, two).generate("s", method=method, max_new_tokens=2, trace=True)
    assert row.text == "bb"
    assert row.trace[0].segment.drafted_by[row.trace[0].segment.winner] == []
    assert row.stats.segments == [0, 0]
    assert row.stats.accepted == 0


def test_a_literal_that_a_model_drafts_is_its_candidate():
    method = ed.SpecFuse(segment_length=2, literals=("ab",))
    (row,) = bigram_ensemble(ring("sab"), ring("sab")).generate("s", method=method, max_new_tokens=2, trace=True)
    assert row.trace[0].segment.drafted_by == [[0, 1]]


# -- streams -----------------------------------------------------------------------------------------------------


def test_the_first_text_comes_after_one_segment(trio):
    method = ed.SpecFuse(segment_length=5)
    stream = trio.stream(MIXED[0], method=method, max_new_tokens=40)
    first = next(stream)
    forwards = [runner.stats.forwards for runner in trio.runners]
    assert first.text
    assert first.ensembled
    second = next(stream)
    # per round and model at most five drafting forwards and one that scores
    assert all(0 < now.stats.forwards - before <= 6 for now, before in zip(trio.runners, forwards, strict=True))
    assert second.text
    stream.close()
    (row,) = trio.generate(MIXED[0], method=method, max_new_tokens=40)
    assert row.stats.first_segment_seconds > 0
    assert row.text.startswith(first.text + second.text)


# -- exits -------------------------------------------------------------------------------------------------------

STRONG = ring("sabc", 0.9)
WEAK = {a: {"z": 0.5} for a in "sabcz"}


def test_a_model_that_left_costs_nothing_and_its_slot_is_free():
    ensemble = bigram_ensemble(STRONG, WEAK, STRONG)
    method = ed.SpecFuse(segment_length=4, temperature=0.3)
    row, other = ensemble.generate(["s", "a"], method=method, max_new_tokens=30)
    assert row.stats.active == [3] + [2] * (row.stats.rounds - 1)
    assert row.stats.forwards_saved == 5 * (row.stats.rounds - 1)
    assert row.stats.segments == [row.stats.rounds, 0, 0]
    # the prompt, 3 of its 4 drafted tokens (the last is never run), 3 of the other candidate's
    assert row.stats.forwarded[1] == other.stats.forwarded[1] == 7
    assert ensemble.runners[1].stats.tokens == 14
    stream = ensemble.stream("s", method=method, max_new_tokens=30)
    next(stream)
    assert [runner.longest > 0 for runner in ensemble.runners] == [True, False, True]
    before = ensemble.runners[1].stats.forwards
    rest = list(stream)
    assert rest[-1].finish_reason == "length"
    assert ensemble.runners[1].stats.forwards == before, "a model that has left every row is not run"


def test_the_primary_may_leave_and_its_ids_are_still_reported():
    ensemble = bigram_ensemble(WEAK, STRONG, STRONG, names=("gpt2", "bytes", "bytes"))
    method = ed.SpecFuse(segment_length=4, temperature=0.3)
    (row,) = ensemble.generate("s", method=method, max_new_tokens=10, trace=True)
    assert [step.segment.left for step in row.trace] == [[0]] + [[]] * (len(row.trace) - 1)
    assert row.text == ("abcs" * 10)[: len(row.text)]
    assert len(row.token_ids) == 10
    vocab = ensemble.vocab.models[0]
    longer = b"abcs" * 10
    assert row.token_ids == vocab.encode(longer[: len(row.data) + 4])[:10]
    assert vocab.decode(row.token_ids) == row.data


def test_rows_lose_different_models_in_one_batch():
    """Models 0 and 3 know the letters a, b, c; models 1 and 2 know x, y, z; nobody else's. Weights make either side
    win."""
    one = ring("abc", 0.9, **{a: {"q": 0.3} for a in "xyz"})
    two = ring("xyz", 0.9, **{a: {"q": 0.3} for a in "abc"})
    ensemble = bigram_ensemble(one, two, two, one)
    method = ed.SpecFuse(segment_length=3, exit_threshold=1.0, trim="none")
    prompts = ["a", "z", "y", "b", "x"]
    rows = ensemble.generate(prompts, method=method, max_new_tokens=18, trace=True, batch_size=3)
    assert [row.trace[-1].segment.active for row in rows] == [[0, 3], [1, 2], [1, 2], [0, 3], [1, 2]]
    for prompt, row in zip(prompts, rows, strict=True):
        assert same(row, ensemble.generate(prompt, method=method, max_new_tokens=18)[0])


# -- limits and errors -------------------------------------------------------------------------------------------


def limited(**limits: int) -> ed.Ensemble:
    """One tiny model per tokenizer name, with contexts of that length."""
    made = []
    for i, (name, limit) in enumerate(limits.items()):
        family = tiny_models.USUAL[name]
        length = {"n_positions" if family == "gpt2" else "max_position_embeddings": limit}
        made += models([name], seed=i, **length)
    return ensemble_of(made, list(limits))


@pytest.mark.parametrize("short", [0, 1, 2])
def test_case_24_the_shortest_context_ends_a_row(short):
    """No forward ever passes a context, the text fits into all of them, and little room is left unused."""
    limits = [128, 128, 128]
    limits[short] = 40
    ensemble = limited(gpt2=limits[0], llama2=limits[1], gemma=limits[2])
    ends = []
    for prompt in MIXED[:3]:
        (row,) = ensemble.generate(prompt, method=METHOD, max_new_tokens=80, trace=True)
        assert row.error is None
        model = ensemble.vocab.models[short]
        used = len(prompt_ids(ensemble, short, prompt)) + len(model.encode(row.data))
        ends.append((row.finish_reason, used))
        assert used <= 40
        assert same(row, ensemble.generate([MIXED[5], prompt], method=METHOD, max_new_tokens=80)[1])
    assert any(reason == "length" and used >= 28 for reason, used in ends), ends


def test_a_literal_that_does_not_fit_a_context_is_left_out():
    ensemble = limited(gpt2=128, llama2=40)
    method = dataclasses.replace(METHOD, literals=(" and so on" * 20,))
    (row,) = ensemble.generate("a", method=method, max_new_tokens=4, trace=True)
    assert row.error is None
    assert all(step.segment.drafted_by[-1] for step in row.trace)


def test_case_27_nan_ends_its_row_alone_and_names_the_model():
    names = ("gpt2", "llama2", "gemma")
    for broken in range(3):
        made = models(names)
        ensemble = ensemble_of(made, names)
        good = ensemble.generate(MIXED[:2], method=METHOD, max_new_tokens=6)
        poison = ensemble.vocab.models[broken].encode("你".encode())[-1]
        made[broken].get_input_embeddings().weight[poison] = float("nan")
        rows = ensemble.generate([MIXED[0], "你", MIXED[1]], method=METHOD, max_new_tokens=6)
        assert rows[1].finish_reason == "error"
        assert f"model {broken} ({names[broken]}) gave NaN logits" in rows[1].error
        assert same(rows[0], good[0])
        assert same(rows[2], good[1])
        assert all(runner.held == 0 for runner in ensemble.runners)


def test_nan_while_scoring_names_the_judge():
    """Model 1 never drafts the letter that breaks it, but must score it."""
    one, two = ring("sabc", 0.9), ring("sxy", 0.9)
    ensemble = bigram_ensemble(one, two)
    weight = ensemble.runners[1].model.get_input_embeddings().weight
    weight[ensemble.vocab.models[1].encode(b"a")[0]] = float("nan")
    bad, good = ensemble.generate(["s", "x"], method=ed.SpecFuse(segment_length=2), max_new_tokens=2)
    assert bad.finish_reason == "error"
    assert "model 1" in bad.error
    assert good.error is None


# -- invariances -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [ed.Sampling(), ed.Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_one_model_writes_its_own_output(sampling):
    """Trimmed words are drafted again, and come out the same."""
    ensemble = byte_ensemble(1)  # texts have one tokenization only: the ids are those that were chosen
    trimmed = 0
    for prompt in MIXED[:4]:
        options = {"max_new_tokens": 40, "sampling": sampling}
        (own,) = ensemble.generate(prompt, method=ed.Single(), **options)
        (row,) = ensemble.generate(prompt, method=ed.SpecFuse(segment_length=9), **options)
        assert (row.data, row.token_ids, row.finish_reason) == (own.data, own.token_ids, own.finish_reason)
        assert row.ensembled_at == []
        trimmed += row.stats.drafted > row.stats.accepted
    assert trimmed >= 2


@pytest.mark.parametrize("sampling", [ed.Sampling(), ed.Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_the_order_of_models_does_not_matter(trio, sampling):
    orders = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    weights = (0.5, 0.2, 0.3)
    method = ed.SpecFuse(segment_length=4, exit_threshold=0.9, feedback=1.0)
    for prompt in MIXED[:3]:
        seen = []
        for order in orders:
            names = [("gpt2", "llama2", "gemma")[m] for m in order]
            ensemble = ed.Ensemble(
                [trio.runners[m] for m in order],
                [trio.tokenizers[m] for m in order],
                ed.AlignedVocab.build(
                    [tokenizers.build(name) for name in names],
                    sizes=[trio.vocab.models[m].size for m in order],
                    eos_ids=[trio.vocab.models[m].eos_ids for m in order],
                    cache_dir=None,
                ),
                [weights[m] for m in order],
            )
            (row,) = ensemble.generate(prompt, method=method, max_new_tokens=25, sampling=sampling, trace=True)
            # max_new_tokens counts the first model's tokens, so the last rounds may be missing
            left = [sorted(order[m] for m in step.segment.left) for step in row.trace]
            seen.append([(step.chosen, step.ended, gone) for step, gone in zip(row.trace, left, strict=True)])
        rounds = min(map(len, seen))
        assert rounds >= 2
        assert seen[0][:rounds] == seen[1][:rounds] == seen[2][:rounds]


def test_a_duplicate_with_half_the_weight_changes_no_winner(trio):
    """A duplicate's draft merges with the original's; their votes add up to the original's."""
    keep = ed.SpecFuse(segment_length=4, exit_threshold=0.0)
    order = (0, 1, 2, 1)
    names = [("gpt2", "llama2", "gemma")[m] for m in order]
    twice = ensemble_of([trio.runners[m].model for m in order], names, weight=[2, 1, 2, 1])
    for prompt in MIXED[:4]:
        (one,) = trio.generate(prompt, method=keep, max_new_tokens=16, trace=True)
        (two,) = twice.generate(prompt, method=keep, max_new_tokens=16, trace=True)
        assert [s.candidates for s in one.trace] == [s.candidates for s in two.trace]
        assert [s.chosen for s in one.trace] == [s.chosen for s in two.trace]
        for step in two.trace:
            assert all((1 in by) == (3 in by) for by in step.segment.drafted_by)


def test_eight_models_one_of_them_much_weaker():
    names = ("gpt2", "llama2", "gemma", "qwen2", "llama3", "metaspace", "unigram", "added")
    good = tiny(*names)
    (row,) = good.generate(MIXED[0], method=ed.SpecFuse(segment_length=3), max_new_tokens=12, trace=True)
    assert row.finish_reason in ("end", "length")
    assert row.stats.active[0] == 8
    assert sum(row.stats.segments) == row.stats.rounds
    assert all(sum(step.segment.weights) == pytest.approx(1) for step in row.trace)


def test_scores_are_taken_without_temperature(trio):
    """Sampled and greedy drafts that agree score the same."""
    cold = ed.Sampling(temperature=1e-4, seed=1)
    (greedy,) = trio.generate("a", method=METHOD, max_new_tokens=8, trace=True)
    (sampled,) = trio.generate("a", method=METHOD, max_new_tokens=8, sampling=cold, trace=True)
    assert sampled.data == greedy.data
    for one, two in zip(greedy.trace, sampled.trace, strict=True):
        assert torch.tensor(one.probs) == pytest.approx(two.probs, abs=1e-6)
