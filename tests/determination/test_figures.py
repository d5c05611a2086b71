"""Figures and recommendations on responses whose scores and lengths are known by construction."""

import json
import math

import numpy as np
import pytest

import ensemble_decode as ed
from ensemble_decode.determination.figures import likeness
from ensemble_decode.determination.html import prompt_end
from ensemble_decode.determination.stats import Bootstrap, ratio
from ensemble_decode.errors import InputError

N = 100


def study(tmp_path, *, rules=None, data=None, **models):
    """`determine` on texts alone. A model is a list of N texts; "r" begins those that are right."""
    data = data or [{"id": i, "prompt": f"question {i}", "answer": "^r", "grader": "regex"} for i in range(N)]
    files = {}
    for name, texts in models.items():
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    return ed.determine(
        list(models), data, generations=files, texts_only=True, folder=tmp_path / "out", rules=rules, resamples=500
    )


def answers(right, words=2, other="w"):
    """N responses, right at the given places, each of so many words."""
    tail = " x" * (words - 1)
    return [("r" if i in right else f"{other}{i}") + tail for i in range(N)]


def test_every_figure_of_a_pair(tmp_path):
    report = study(tmp_path, one=answers(range(60)), two=answers(range(40, 95), words=3, other="v"))
    one, two = report.models
    assert (one.score.value, two.score.value) == (0.60, 0.55)
    assert (one.gap.value, two.gap.value) == (0.0, pytest.approx(0.05))
    assert one.score.low < 0.6 < one.score.high
    assert (one.words.mean, two.words.mean) == (2, 3)
    lengths = [len(t) for t in answers(range(60))]
    assert one.characters.mean == pytest.approx(np.mean(lengths))
    assert (one.characters.least, one.characters.most) == (min(lengths), max(lengths))
    (pair,) = report.pairs
    assert (pair.both, pair.only_first, pair.only_second, pair.neither) == (0.20, 0.40, 0.35, 0.05)
    assert pair.equal_answers == 0.20  # the wrong ones are all different
    assert pair.oracle.value == pytest.approx(0.95)
    assert pair.room.value == pytest.approx(0.35)
    assert pair.words_ratio == 1.5
    other = [len(t) for t in answers(range(40, 95), words=3, other="v")]
    assert pair.characters_ratio == pytest.approx(np.mean(other) / np.mean(lengths))
    advice = report.recommendation
    assert advice.ensemble
    assert (advice.models, advice.primary, advice.method) == ([0, 1], 0, "safe")
    assert advice.oracle.value == pytest.approx(0.95)
    assert report.cost is None
    assert pair.js == {}


def test_a_score_too_far_below_and_a_length_too_different_are_left_out(tmp_path):
    report = study(
        tmp_path,
        best=answers(range(70)),
        weak=answers(range(41, 100)),  # 11 points below
        long=answers(range(35, 100), words=5),
        fine=answers(range(40, 100)),  # 10 points below: within
    )
    advice = report.recommendation
    assert [report.names[m] for m in advice.models] == ["best", "fine"]
    assert set(advice.left_out) == {"weak", "long"}
    assert "11.0 points" in advice.left_out["weak"]
    assert "2.5 times" in advice.left_out["long"]


@pytest.mark.parametrize(
    ("rules", "members"),
    [
        (ed.Rules(max_gap=0.11), ["best", "fine", "weak"]),
        (ed.Rules(max_gap=0.05), ["best"]),
        (ed.Rules(max_gap=0.15, gap="relative"), ["best", "fine"]),  # 15 % of 70 are 10.5 points
        (ed.Rules(max_gap=0.10, gap="relative"), ["best"]),
        (ed.Rules(max_length_ratio=2.5), ["best", "long"]),  # together they have everything right
        (ed.Rules(max_length_ratio=2.5, min_room=0), ["best", "long", "fine"]),
        (ed.Rules(max_length_ratio=2.5, min_room=0, max_models=2), ["best", "long"]),
        (ed.Rules(min_room=0.31), ["best"]),
    ],
    ids=str,
)
def test_every_rule_moves_the_choice(tmp_path, rules, members):
    report = (
        study(
            tmp_path,
            rules=rules,
            best=answers(range(70)),
            weak=answers([*range(41, 99), 40]),  # 59 right
            long=answers(range(35, 100), words=5),
            fine=answers(range(40, 100)),
        )
        if rules.max_gap != 0.11
        else study(
            tmp_path,
            rules=rules,
            best=answers(range(70)),
            weak=answers([*range(31, 89), 99]),
            fine=answers(range(30, 90)),
        )
    )
    assert [report.names[m] for m in report.recommendation.models] == members
    assert report.recommendation.ensemble == (len(members) > 1)


def test_no_room_no_ensemble(tmp_path):
    same = answers(range(50))
    report = study(tmp_path, one=same, two=same)
    assert not report.recommendation.ensemble
    assert report.recommendation.method == "single"
    assert "right where the others are" in report.recommendation.left_out["two"]
    assert report.pairs[0].equal_answers == 1.0
    assert report.pairs[0].room.value == 0.0


def test_ties_go_to_the_first_and_all_ties_are_kept(tmp_path):
    report = study(
        tmp_path, b=answers(range(50)), a=answers(range(50, 100)), c=answers(range(25, 75)), rules=ed.Rules(min_room=0)
    )
    assert report.recommendation.models == [0, 1, 2]
    assert [m.gap.value for m in report.models] == [0, 0, 0]


def test_a_model_alone(tmp_path):
    report = study(tmp_path, only=answers(range(30)))
    assert report.pairs == []
    assert not report.recommendation.ensemble
    assert report.recommendation.models == [0]
    assert "only model" in report.recommendation.reasons[0]
    assert "Do not ensemble" in report.to_html()


def test_all_incompatible(tmp_path):
    report = study(tmp_path, a=answers(range(90)), b=answers(range(50)), c=answers(range(5, 90), words=9))
    assert not report.recommendation.ensemble
    assert report.recommendation.models == [0]
    assert set(report.recommendation.left_out) == {"b", "c"}
    assert report.recommendation.reasons[0].startswith("Do not ensemble: use a alone")


def test_nothing_right_and_nothing_said(tmp_path):
    report = study(tmp_path, a=answers([]), b=[""] * N)
    assert not report.recommendation.ensemble
    assert "nothing to combine" in report.recommendation.reasons[0]
    assert report.models[1].score.high == pytest.approx(1 - 0.025 ** (1 / N))
    assert report.pairs[0].words_ratio is None
    json.loads(report.to_json())  # no NaN, no infinity


def test_the_method_follows_length_and_kind(tmp_path):
    long = study(tmp_path, a=answers(range(60), words=80), b=answers(range(40, 100), words=70))
    assert long.recommendation.method == "safe"
    assert "long" in long.recommendation.reasons[-1]
    open_ended = study(tmp_path, a=answers(range(60)), b=answers(range(40, 100)), rules=ed.Rules(open_ended=True))
    assert open_ended.recommendation.method == "specfuse"


def test_open_ended_items_are_known_by_their_lack_of_answers(tmp_path, monkeypatch):
    (tmp_path / "openjudge.py").write_text("def right(text, item):\n    return text.startswith('r')\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = [{"id": i, "prompt": f"p{i}", "grader": "openjudge:right"} for i in range(N)]
    report = study(tmp_path, data=data, a=answers(range(60)), b=answers(range(40, 100)))
    assert report.recommendation.method == "specfuse"
    closed = study(
        tmp_path, data=data, a=answers(range(60)), b=answers(range(40, 100)), rules=ed.Rules(open_ended=False)
    )
    assert closed.recommendation.method == "safe"


def test_intervals_cover_the_truth_at_their_nominal_rate():
    """Of 1000 samples of 120 items: the interval of a score and of a difference of two correlated scores."""
    rng = np.random.default_rng(5)
    covered, covered_gap, trials = 0, 0, 1000
    for trial in range(trials):
        difficulty = rng.random(120)
        a, b = (difficulty < 0.62).astype(float), (0.7 * difficulty + 0.3 * rng.random(120) < 0.5).astype(float)
        boot = Bootstrap(120, 400, 0.9, seed=trial)
        score, gap = boot.mean(a), boot.difference(a, b)
        covered += score.low <= 0.62 <= score.high
        covered_gap += gap.low <= 0.62 - 0.5 <= gap.high
    # three standard errors of a share of 0.9 are 0.028
    assert 0.87 <= covered / trials <= 0.93
    assert 0.87 <= covered_gap / trials <= 0.93


def test_likeness_averages_positions_and_both_directions():
    one = [{"js": [0.1, 0.3], "same_top": [True, False], "stands": [True, True]}]
    other = [{"js": [0.2], "same_top": [True], "stands": [False]}, {"js": [], "same_top": [], "stands": []}]
    js, js_at, same, stands = likeness(one, other, (1, 2, 5))
    assert js == pytest.approx({"1": 0.15, "2": 0.2, "5": 0.2})
    assert js_at[:2] == pytest.approx([0.15, 0.3])
    assert js_at[2:] == [None, None, None]
    assert (same, stands) == (0.75, 0.5)


def test_ratio():
    assert [ratio(2, 4), ratio(4, 2), ratio(0, 0), ratio(0, 3)] == [2, 2, 1, None]


def test_same_input_same_report_and_page(tmp_path):
    make = lambda: study(tmp_path, one=answers(range(60)), two=answers(range(40, 95)))  # noqa: E731
    assert make().to_json() == make().to_json()
    assert make().to_html() == make().to_html()


def test_the_page_is_whole_and_escaped(tmp_path):
    evil = ["r <script>alert(1)</script>"] * 50 + ["w</pre><img src=x>"] * 50
    report = study(tmp_path, one=evil, two=answers(range(50, 100)))
    page = report.to_html()
    assert "<script" not in page
    assert "<img src=x>" not in page
    assert "http" not in page.replace("https://", "http").split("<body>")[0]
    assert page.count("<figure>") == 3  # scores, lengths, who is right: texts alone have no tokens
    assert 'name="viewport"' in page
    assert math.isclose(len(report.to_dict()["models"]), 2)


def test_a_prompts_end_is_shown_where_the_question_stands():
    assert prompt_end("Q: 1\nA: 2\n\n" * 30 + "Q: " + "word " * 20) == "…\nQ: " + "word " * 19 + "word"
    assert prompt_end("A long story. " * 5 + "\n\nWho?\n\nAnswer:") == "A long story. " * 5 + "\n\nWho?\n\nAnswer:"
    assert prompt_end([{"role": "system", "content": "x"}, {"role": "user", "content": "Why?"}]) == "Why?"
    assert prompt_end("a" * 1000) == "… " + "a" * 300


def test_what_cannot_be_is_refused_by_name(tmp_path):
    data = [{"prompt": "a", "answer": "b"}]
    for arguments, word in (
        ({"models": [], "data": data}, "at least one"),
        ({"models": "abc", "data": data}, "list"),
        ({"models": ["a", "a"], "data": data}, "twice"),
        ({"models": ["a"], "data": None}, "give data"),
        ({"models": ["a"], "data": data, "texts_only": True}, "no response"),
        ({"models": ["a"], "data": data, "generations": {"b": "x"}}, "none of the models"),
        ({"models": ["a"], "data": data, "harness": {"a": "x"}}, "not both"),
        ({"models": ["a", "b"], "harness": {"a": "x"}}, "none for b"),
    ):
        with pytest.raises(InputError, match=word):
            ed.determine(**{"folder": tmp_path, **arguments})
    for wrong in (
        {"gap": "percent"},
        {"max_gap": -1},
        {"max_length_ratio": 0.5},
        {"max_models": 1},
        {"min_room": math.nan},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ed.Rules(**wrong)
