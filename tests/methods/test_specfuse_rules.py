"""The rules of SpecFuse one by one, and the example of docs/specfuse.md, worked out by hand."""

import math

import pytest
from support.bigrams import bigram_ensemble
from support.oracle.vocab import END

import ensemble_decode as ed
from ensemble_decode.methods.specfuse.exits import Standing, comparisons_won, feedback_factor
from ensemble_decode.methods.specfuse.trim import trim_word

# -- the worked example ------------------------------------------------------------------------------------------

MODELS = (
    {
        "s": {"a": 0.8, "x": 0.02},
        "a": {"b": 0.6, "c": 0.2},
        "b": {"a": 0.5, "d": 0.4, "x": 0.02},
        "d": {"e": 0.8},
        "x": {"y": 0.1},
        "e": {"f": 0.7, END: 0.1},
        "f": {END: 0.6},
    },
    {
        "s": {"a": 0.6, "x": 0.05},
        "a": {"c": 0.5, "b": 0.4},
        "b": {"d": 0.9, "a": 0.05, "x": 0.03},
        "d": {"e": 0.7},
        "x": {"y": 0.05},
        "e": {END: 0.5, "f": 0.3},
        "f": {END: 0.8},
    },
    {
        "s": {"x": 0.5, "a": 0.2},
        "a": {"b": 0.4, "c": 0.2},
        "b": {"x": 0.6, "d": 0.2, "a": 0.1},
        "d": {"e": 0.4},
        "x": {"y": 0.5},
    },
)


def near(*values):
    return pytest.approx(list(values), abs=2e-6)


def test_the_worked_example_of_the_docs():
    """Three models, three rounds, one exit: every number of docs/specfuse.md."""
    method = ed.SpecFuse(segment_length=2, trim="none")
    (row,) = bigram_ensemble(*MODELS).generate("s", method=method, max_new_tokens=20, trace=True)
    one, two, three = row.trace

    assert one.candidates == [b"ab", b"ac", b"xy"]
    assert one.segment.scores == [near(0.7, 0.5, 0.06), near(0.5, 0.55, 0.05), near(0.3, 0.2, 0.5)]
    assert one.probs == near(1.5 / 3, 1.25 / 3, 0.61 / 3)
    assert (one.chosen, one.segment.winner, one.segment.left) == (b"ab", 0, [])
    assert one.segment.tau == 0.5
    assert one.segment.exit_probs == pytest.approx([0.4168, 0.3529, 0.2303], abs=5e-5)

    assert two.candidates == [b"ab", b"de", b"xy"]
    assert two.segment.scores == [near(0.55, 0.6, 0.06), near(0.225, 0.8, 0.04), near(0.25, 0.3, 0.55)]
    assert two.probs == near(1.025 / 3, 1.7 / 3, 0.65 / 3)
    assert (two.chosen, two.segment.winner) == (b"de", 1)
    assert two.segment.quality == near((1.5 + 1.025) / 6, (1.25 + 1.7) / 6, (0.61 + 0.65) / 6)
    assert two.segment.tau == 0.25
    assert two.segment.exit_probs == pytest.approx([0.3626, 0.4814, 0.1560], abs=5e-5)
    assert two.segment.left == [2], "0.1560 is below 0.5 / 3"
    assert two.segment.weights == [0.5, 0.5, 0.0]

    assert three.segment.active == [0, 1]
    assert three.candidates == [b"f", b""]
    assert three.segment.ended == [True, True]
    assert three.segment.scores == [near(0.65, 0.1), near(0.55, 0.5)]
    assert three.probs == near(0.6, 0.3)
    assert (three.chosen, three.ended) == (b"f", True)

    assert row.text == "abdef"
    assert row.ended
    assert row.stats.segments == [2, 1, 0]
    assert row.stats.active == [3, 3, 2]
    # model 2 would have run two drafting forwards and one scoring forward in round 3
    assert row.stats.forwards_saved == 3
    # Every token that is run. Models 0 and 1: s a x, b a d x (the winner's d is kept), e f. Model 2: s x a, b x a d.
    assert row.stats.forwarded == [9, 9, 7]


def test_the_worked_example_with_feedback():
    """Round 1 of the example: r = 2/4, 1/4, 0; the weights of round 2 follow from it."""
    method = ed.SpecFuse(segment_length=2, trim="none", feedback=1.0)
    (row,) = bigram_ensemble(*MODELS).generate("s", method=method, max_new_tokens=2, trace=True)
    assert row.trace[0].segment.weights == pytest.approx([0.38243, 0.33103, 0.28654], abs=5e-6)


# -- trimming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        (" hello wor", " hello"),
        (" hello  \n wor", " hello"),
        (" hello", " hello"),  # nothing but whitespace before the last word
        ("hello", "hello"),
        (" hello world.", " hello world."),  # ends with punctuation: the word is complete
        (" hello world ", " hello world "),
        (" don't", " don't"),
        ("a b's", "a"),  # the last word is what stands between whitespace
        ("x\u00a0y", "x"),  # a no-break space is whitespace
        ("去 北京", "去"),  # ideographs are alphanumeric
        ("price: 12", "price:"),
        ("  ", "  "),
        ("\u0301", "\u0301"),
    ],
)
def test_trim_word(draft, kept):
    assert trim_word(draft.encode()) == kept.encode()


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        (b"go \xf0\x9f\x98", b"go "),  # an unfinished emoji
        (b"one two\xc3", b"one"),  # behind the unfinished character there is a word
        (b"\xf0\x9f", b"\xf0\x9f"),  # a round must add something
        (b"\x98\x80 a b", b"\x98\x80 a"),  # the end of a character that the text before began
        (b"a \xff", b"a \xff"),  # no beginning of anything: not unfinished
        (b"\xc3\xa4", b"\xc3\xa4"),
    ],
)
def test_trim_bytes(draft, kept):
    assert trim_word(draft) == kept


# -- exit and feedback -------------------------------------------------------------------------------------------


def test_exit_by_the_formula_and_for_good():
    standing = Standing.start([1, 1, 2])
    assert standing.weights == [0.25, 0.25, 0.5]
    first = standing.record([0.5, 0.4, 0.1], temperature=0.5, threshold=0.5)
    powers = [math.exp(q / 0.5) for q in (0.5, 0.4, 0.1)]
    assert first.probs == pytest.approx([p / sum(powers) for p in powers])
    assert first.left == []
    second = standing.record([0.5, 0.4, 0.1], temperature=0.5, threshold=0.5)
    powers = [math.exp(q / 0.25) for q in (0.5, 0.4, 0.1)]
    assert second.probs == pytest.approx([p / sum(powers) for p in powers])
    assert second.left == [2]
    standing.renormalise()
    assert standing.weights == [0.5, 0.5, 0.0]
    third = standing.record([0.1, 0.9], temperature=0.5, threshold=0.5)
    assert third.quality == pytest.approx([1.1 / 3, 1.7 / 3])
    assert standing.active == [0, 1]


def test_exit_edges():
    equal = Standing.start([1, 1, 1])
    assert equal.record([0.3, 0.3, 0.3], 0.5, 1.0).left == [], "1/3 is not below 1/3"
    lone = Standing.start([1.0])
    assert lone.record([0.0], 0.5, 1.0).left == []
    cold = Standing.start([1, 1])
    for _ in range(30):
        last = cold.record([0.5, 0.49], 0.5, 0.0)
    assert last.tau == 0.05, "0.5 / 30 is below the coldest"
    assert cold.active == [0, 1], "threshold 0 keeps all"
    two = Standing.start([1, 1])
    assert two.record([0.9, 0.9], 0.001, 1.0).left == [], "of equals nobody is below"
    best = Standing.start([1, 1])
    assert best.record([0.2, 0.9], 0.01, 1.0).left == [0], "the primary may leave"
    # all remaining weights are 0: equal
    idle = Standing.start([1.0, 0.0])
    idle.active = [1]
    idle.renormalise()
    assert idle.weights == [0.0, 1.0]


def test_feedback_by_the_formula():
    scores = [[0.7, 0.5, 0.06], [0.5, 0.55, 0.05], [0.3, 0.2, 0.5]]
    assert comparisons_won(scores, [0, 1, 2]) == [0.5, 0.25, 0.0]
    assert comparisons_won([[0.7, 0.5], [0.4, 0.6]], [0, 1]) == [0.0, 0.0], "each is beaten in the other's judgement"
    assert comparisons_won([[0.7, 0.5], [0.6, 0.6]], [0, 0]) == [1.0, 1.0], "a candidate ties with itself"
    assert comparisons_won([[0.7]], [0]) == [0.0]
    assert feedback_factor(2.0, 0.75, models=4, rounds=3) == pytest.approx(math.exp(2.0 * 0.5 / 3 * 0.75))


# -- pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_length": 0}, "segment_length must be an integer of at least 1, got 0"),
        ({"segment_length": True}, "segment_length must be an integer of at least 1, got True"),
        ({"exit_threshold": -0.1}, "exit_threshold must be a number from 0 to 1"),
        ({"exit_threshold": float("nan")}, "exit_threshold must be a number from 0 to 1"),
        ({"temperature": 0}, "temperature must be a number above 0"),
        ({"feedback": 0.0}, "feedback must be a number above 0 or None"),
        ({"trim": "sentence"}, "trim must be one of 'word', 'none'"),
        ({"literals": "yes"}, "literals must be a list of strings or bytes"),
        ({"literals": ("",)}, "none of them empty"),
        ({"literals": (3,)}, "literals must be a list of strings or bytes"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ed.InputError, match=message):
        ed.SpecFuse(**settings)
