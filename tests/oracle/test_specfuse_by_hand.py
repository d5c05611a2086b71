"""The oracle's SpecFuse on examples small enough to compute by hand (numbers in the comments are worked out on
paper)."""

import math

import pytest
from support.hand_models import HandModel
from support.oracle.specfuse import specfuse, trim
from support.oracle.vocab import END

# SpecFuse: three models over the same letters.
LETTERS = ["a", "b", "c"]


def writes(text: str, p: float):
    """A model that gives the next letter of `text` the probability p at every step, and shares the rest."""

    def after(prefix: str) -> dict:
        following = text[len(prefix)] if len(prefix) < len(text) and text.startswith(prefix) else text[-1]
        rest = (1 - p) / 3
        return {letter: p if letter == following else rest for letter in LETTERS} | {END: rest}

    return HandModel(LETTERS, after)


def test_specfuse_scores_and_exit():
    models = [writes("aaaa", 0.7), writes("aaaa", 0.4), writes("cccc", 0.97)]
    made, rounds = specfuse(models, "", 2, segment_length=2)
    first = rounds[0]
    assert [(c.data, c.by) for c in first.candidates] == [(b"aa", [0, 1]), (b"cc", [2])]
    # "aa": (.7 + .4 + .01) / 3; "cc": (.1 + .2 + .97) / 3
    assert first.scores == pytest.approx([0.37, 0.423333], abs=1e-6)
    assert (made.data, made.finish) == (b"cc", "length")
    # Q = (.37, .37, .4233), tau .5: p = softmax(.74, .74, .8467) = (.3205, .3205, .3590); all above .5 / 3
    assert first.active == [0, 1, 2]
    _, rounds = specfuse(models, "", 2, segment_length=2, exit_threshold=0.97)  # .97 / 3 = .3233
    assert rounds[0].active == [2]


def test_specfuse_three_models_and_one_exit():
    models = [writes("aabb", 0.6), writes("aabb", 0.9), writes("cccc", 0.1)]
    made, rounds = specfuse(models, "", 4, segment_length=2, exit_threshold=0.9)
    # Model 2 gives every letter .3, "c" .1 and so drafts "a" (ties to the smaller id), as the others do.
    assert [(c.data, c.by) for c in rounds[0].candidates] == [(b"aa", [0, 1, 2])]
    assert rounds[0].scores == pytest.approx([(0.6 + 0.9 + 0.3) / 3])
    assert rounds[0].active == [0, 1, 2]
    # Round 2: "bb" of models 0 and 1, "aa" of model 2.
    assert [(c.data, c.by) for c in rounds[1].candidates] == [(b"bb", [0, 1]), (b"aa", [2])]
    assert rounds[1].scores == pytest.approx([(0.6 + 0.9 + 0.3) / 3, (0.4 / 3 + 0.1 / 3 + 0.3) / 3])
    # Q_2 = (.6 + .1556) / 2 = .3778, Q_0 = Q_1 = .6; tau = .25: p_2 = 1 / (1 + 2 e^.8889) = .1705 < .3
    assert rounds[1].active == [0, 1]
    assert rounds[1].quality[2] == pytest.approx(0.377778, abs=1e-6)
    assert (made.data, made.finish, made.rounds) == (b"aabb", "length", 2)


def test_specfuse_end_cut_and_stop():
    table = {"": {"a": 0.9, END: 0.1}, "a": {"b": 0.9, END: 0.1}, "ab": {END: 0.8, "c": 0.2}}
    models = [HandModel(LETTERS, table), HandModel(["ab", *LETTERS], table | {"": {"ab": 0.7, "a": 0.3}})]
    made, rounds = specfuse(models, "", 5, segment_length=10)
    assert (made.data, made.finish) == (b"ab", "end")
    # the first scores its a, b, END: (.9 + .9 + .8) / 3; the second its "ab", END: (.7 + .8) / 2
    assert rounds[0].scores == pytest.approx([(2.6 / 3 + 0.75) / 2])
    cut, _ = specfuse(models, "", 1, segment_length=10)
    assert (cut.data, cut.ids, cut.finish) == (b"a", [0], "length")
    stopped, _ = specfuse(models, "", 5, stop=["b"])
    assert (stopped.data, stopped.finish) == (b"a", "stop")


def test_specfuse_feedback_moves_weight_to_the_better_candidate():
    models = [writes("aaaa", 0.7), writes("aaaa", 0.6), writes("cccc", 0.5)]
    _, rounds = specfuse(models, "", 2, segment_length=2, rate=1.0, exit_threshold=0.0)
    # Judges: models 0, 1 prefer "aa", model 2 "cc". Model 0 against 1 (tie, judges 1, 2) and 2 (judge 1 for, 2
    # against): 3/4; model 1 the same; model 2 against 0 and 1 (judges 0, 1): none.
    eta = math.sqrt(1 / 3)
    raw = [math.exp(eta * 0.75), math.exp(eta * 0.75), 1.0]
    assert [rounds[0].weights[m] for m in range(3)] == pytest.approx([w / sum(raw) for w in raw])


@pytest.mark.parametrize(
    ("piece", "kept"),
    [
        (b"one two", b"one"),
        (b"one two.", b"one two."),
        (b"one  \n two", b"one"),
        (b" two", b" two"),
        (b"two", b"two"),
        (b"one two ", b"one two "),
        ("one zwölf".encode(), b"one"),
        ("ab 你好".encode(), b"ab"),
        ("ab, 你".encode()[:-1], b"ab, "),
        ("🎉".encode()[:2], "🎉".encode()[:2]),
        ("a🎉".encode()[:3], b"a"),
        (b"x\xff y", b"x\xff"),
        (b"", b""),
    ],
)
def test_trim(piece, kept):
    assert trim(piece) == kept
