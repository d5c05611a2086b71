"""The quality side: questions have right answers, models are measured on the same bytes, intervals hold what they
should."""

import calendar
import math
import re

import pytest
import torch
from support import bench as support_bench
from support import tiny_models, tokenizers
from support.ensembles import byte_ensemble

import ensemble_decode as ed
from ensemble_decode.bench import quality
from ensemble_decode.determination.questions import Question, arithmetic, completion, correct, multiple_choice, short


def test_arithmetic_is_right_and_seeded():
    made = arithmetic(200, seed=1)
    assert made == arithmetic(200, seed=1)
    assert made != arithmetic(200, seed=2)
    for question in made:
        a, sign, b = question.prompt.rsplit("What is ", 1)[1].removesuffix("?\nAnswer:").split()
        value = {"plus": int(a) + int(b), "minus": int(a) - int(b), "times": int(a) * int(b)}[sign]
        assert question.answer == str(value)
        assert value >= 0


def capitals():
    """By country, as the short questions have them."""
    asked = [(q.prompt.rsplit("Question: ", 1)[1], q.answer) for seed in range(4) for q in short(500, seed)]
    return {match[1]: answer for text, answer in asked if (match := re.match("What is the capital of (.*)[?]", text))}


def test_lines_end_with_their_one_right_word():
    kinds = set()
    for question in completion(300, seed=1):
        *solved, asked = question.prompt.split("\n")
        assert len(solved) == 3
        assert all(line.endswith(".") for line in solved)
        assert f"{asked} {question.answer}." not in solved
        if match := re.fullmatch("The capital of (.*) is", asked):
            assert question.answer == capitals()[match[1]]
        elif not asked.startswith("The opposite of "):
            words = [*asked.removesuffix(",").split(", "), question.answer]
            order = list(calendar.day_name if words[0].endswith("day") else calendar.month_name[1:])
            assert words == [order[(order.index(words[0]) + i) % len(order)] for i in range(4)]
        kinds.add(asked.split(" ")[1] if " of " in asked else order[0])
    assert kinds == {"capital", "opposite", "Monday", "January"}


def test_one_option_alone_is_what_was_asked_for():
    kind_of = dict.fromkeys(calendar.day_name, "a day of the week") | dict.fromkeys(calendar.month_name, "a month")
    kind_of |= dict.fromkeys(capitals(), "a country") | dict.fromkeys(capitals().values(), "a capital city")
    letters = []
    for question in multiple_choice(300, seed=1):
        asked, *options = (
            question.prompt.rsplit("Question: Which of these is ", 1)[1].removesuffix("\nAnswer:").split("\n")
        )
        words = dict(option.split(") ") for option in options)
        assert list(words) == ["A", "B", "C"]
        assert [letter for letter, word in words.items() if kind_of[word] == asked.removesuffix("?")] == [
            question.answer
        ]
        letters.append(question.answer)
    assert min(map(letters.count, "ABC")) > 60


def test_prompts_do_not_give_the_answer_away():
    for question in (*arithmetic(100), *short(100)):
        solved, asked = question.prompt.rsplit("Question: ", 1)
        assert solved.count("Answer:") == 3
        assert asked.removesuffix("\nAnswer:") not in solved
        assert asked.endswith("?\nAnswer:")


def test_short_questions_cover_every_kind():
    asked = [question.prompt.rsplit("Question: ", 1)[1] for question in short(100)]
    for words in ("Which day", "Which month", "Which letter", "capital", "opposite"):
        assert any(words in text for text in asked)
    sunday = [q for q in short(300) if q.prompt.endswith("after Sunday?\nAnswer:")]
    assert sunday
    assert {q.answer for q in sunday} == {"Monday"}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" Paris", True),
        (" paris.", True),
        (" Paris is", True),
        ("", False),
        (" London, not Paris", False),
        (" Parisian", False),
    ],
)
def test_exact_match(text, right):
    assert correct(Question("k", "p", "Paris"), text) is right


def test_answers_are_judged_per_question():
    """A method that is right on every other question, by a stub that answers from outside."""

    class Half:
        def generate(self, prompts, **settings):
            assert settings["stop"] == "\n"
            texts = [q.answer if i % 2 else "no idea" for i, q in enumerate(asked)]
            return [ed.Completion(" " + text, text.encode(), [1], "length") for text in texts]

    asked = arithmetic(10)
    assert quality.answer(Half(), ed.UniTE(), asked) == [False, True] * 5
    share = quality.Share([False, True] * 50)
    assert share.mean == 0.5
    low, high = share.interval
    assert 0.38 < low < 0.45 < 0.55 < high < 0.62


PARAGRAPHS = ["The river runs slowly past the old mill.", "Größe und Länge, 12 + 7 = 19."]


def test_bits_of_single_models_by_hand():
    """Equal to the model's own log-probabilities, one forward of the plain model."""
    entries = support_bench.loaded()
    ensemble = ed.Ensemble.from_models(
        [e.model for e in entries], [e.tokenizer for e in entries], names=["a", "b"], cache_dir=None
    )
    again = support_bench.loaded()
    found = quality.bits_of_text(ensemble, PARAGRAPHS)
    assert list(found) == ["a alone", "b alone", "mixture"]
    for m, name in enumerate(["a alone", "b alone"]):
        vocab = ensemble.vocab.models[m]
        for n, paragraph in enumerate(PARAGRAPHS):
            ids = vocab.encode(paragraph.encode())
            start = [] if vocab.bos_id is None else [vocab.bos_id]
            logits = again[m].model(torch.tensor([start + ids])).logits[0].double()
            logits[:, ~torch.from_numpy(vocab.allowed)] = -math.inf
            logs = logits.log_softmax(-1)
            skipped = len(paragraph.encode()) - found[name].sizes[n]  # bytes of the first stretch
            place, total = 0, 0.0
            for i, token in enumerate(ids):
                if place >= skipped:
                    total += float(logs[len(start) + i - 1, token])
                place += len(vocab.token_bytes[token])
            assert found[name].bits[n] == pytest.approx(-total / math.log(2), rel=1e-4)


def test_a_mixture_of_twins_is_the_model_itself():
    found = quality.bits_of_text(byte_ensemble(2, twins=True), PARAGRAPHS)
    assert found["mixture"].bits == pytest.approx(found["model 0 alone"].bits)
    assert found["model 0 alone"].bits == pytest.approx(found["model 1 alone"].bits)


def test_a_mixture_is_between_the_best_and_one_bit_per_stretch_worse():
    ensemble = byte_ensemble(2)
    found = quality.bits_of_text(ensemble, PARAGRAPHS)
    for n, size in enumerate(found["mixture"].sizes):
        alone = [found[f"model {m} alone"].bits[n] for m in (0, 1)]
        assert found["mixture"].bits[n] <= min(alone) + size  # a mean of two is at least half of the larger
        assert found["mixture"].bits[n] < max(alone)


def test_weight_one_is_that_model():
    ensemble = byte_ensemble(2, weights=(1.0, 0.0))
    found = quality.bits_of_text(ensemble, PARAGRAPHS)
    assert found["mixture"].bits == pytest.approx(found["model 0 alone"].bits)


def test_case_7_every_single_model_stands_beside_every_method():
    found = quality.evaluate(support_bench.bench().ensemble, PARAGRAPHS, questions=2, seed=3)
    assert list(found["answers"]) == ["llama3 alone", "gemma alone", "UniTE", "GaC", "SAFE", "SpecFuse"]
    assert list(found["text"]) == ["llama3 alone", "gemma alone", "mixture"]
    exact, text = quality.quality_tables(found)
    assert [row[0] for row in exact.rows] == list(found["answers"])
    assert "seed 3" in exact.title
    assert all("(" in row[1] for row in (*exact.rows, *text.rows))


def test_rows_that_fail_are_not_counted_as_wrong_answers():
    tokenizer = tokenizers.build("gpt2")
    model = tiny_models.tiny_model("gpt2", "gpt2", n_positions=8)
    with pytest.raises(RuntimeError, match="evaluation failed"):
        quality.answer(ed.Ensemble.from_models([model], [tokenizer], cache_dir=None), ed.Single(), arithmetic(2))
