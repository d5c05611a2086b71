"""Graders on responses as models write them."""

import pytest

from ensemble_decode.determination.data import read_items
from ensemble_decode.determination.graders import grader, letter_in, number_in
from ensemble_decode.errors import InputError


@pytest.mark.parametrize(
    ("text", "last", "first"),
    [
        ("The answer is 42.", 42, 42),
        ("3 + 4 = 7", 7, 3),
        ("It costs $1,234.50 in all", 1234.5, 1234.5),
        ("−5 degrees", -5, -5),
        ("1e3", 1000, 1000),
        ("first 1, then 2,000, then .5", 0.5, 1),
        ("none", None, None),
        ("", None, None),
    ],
)
def test_numbers(text, last, first):
    assert (number_in(text, -1), number_in(text, 0)) == (last, first)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (" B", "B"), ("B) horse", "B"), ("(C)", "C"), ("C.\nBecause", "C"), ("**D**", "D"), ("(b) horse", "B"),
        ("The answer is B.", "B"), ("Answer: (A)", "A"), ("answer is a horse", None), ("A horse is B", "B"),
        ("I think C", "C"), ("the horse", None), ("", None), ("Because of the cat, D", "D"),
    ],
)  # fmt: skip
def test_letters(text, letter):
    assert letter_in(text) == letter


@pytest.mark.parametrize(
    ("kind", "text", "answer", "score", "given"),
    [
        ("exact", "  two \n words ", "two words", 1, "two words"),
        ("exact", "Two words", "two words", 0, "Two words"),
        ("exact", "b", ["a", "b"], 1, "b"),
        ("exact", "", "x", 0, None),
        ("numeric", "so 7 and 12", 12, 1, "12"),
        ("numeric", "12.0000001", 12, 1, "12.0000001"),
        ("numeric", "12.1", "12", 0, "12.1"),
        ("numeric", "1,000", "#### 1000", 1, "1000"),
        ("numeric:first", "12\nQuestion: 5", 12, 1, "12"),
        ("choice", " B", "B", 1, "B"),
        ("choice", " B", "(b)", 1, "B"),
        ("choice", "", "B", 0, None),
        ("regex", " Saturn, Uranus", r"^\s*Saturn\b", 1, " Saturn"),
        ("regex", " Saturnus", r"^\s*Saturn\b", 0, "Saturnus"),
    ],
)
def test_grades(kind, text, answer, score, given):
    assert grader(kind)(text, answer, {}) == (score, given)


def test_a_function_by_dotted_name(monkeypatch, tmp_path):
    (tmp_path / "judges.py").write_text(
        "def half(text, item):\n    return 0.5 if item['id'] == 'x' else True\ndef two(text, item):\n    return 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("judges:half", "judges.half"):
        assert grader(name)("t", None, {"id": "x"}).score == 0.5
        assert grader(name)("t", None, {"id": "y"}).score == 1.0
    with pytest.raises(InputError, match="0 to 1"):
        grader("judges:two")("t", None, {"id": "x"})
    for name in ("judges:none", "nosuchmodule:f", "exactly", ""):
        with pytest.raises(InputError, match="exact, numeric"):
            grader(name)
    (item,) = read_items([{"prompt": "p", "grader": "judges:half", "id": "x"}])
    assert item.open_ended
    assert item.grade("t").score == 0.5


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ({"answer": 1}, "prompt"),
        ({"prompt": 3, "answer": 1}, "prompt"),
        ({"prompt": "x"}, "answer"),
        ({"prompt": "x", "answer": 1, "grader": "vague"}, "vague"),
        ({"prompt": [{"role": "user"}], "answer": 1}, "content"),
    ],
)
def test_bad_lines_are_named(line, word):
    with pytest.raises(InputError, match=rf"item 1: .*{word}"):
        read_items([{"prompt": "fine", "answer": "a"}, line])


def test_files(tmp_path):
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "a", "answer": 1}\n\n{"prompt": "b\\u2028c", "answer": 2, "id": 7}\n')
    assert [(i.id, i.prompt, i.grader) for i in read_items(file, "numeric")] == [
        ("0", "a", "numeric"),
        ("7", "b\u2028c", "numeric"),
    ]
    file.write_text('{"prompt": "a", "answer": 1}\n{"prompt": \n')
    with pytest.raises(InputError, match="line 2"):
        read_items(file)
    file.write_text("")
    with pytest.raises(InputError, match="no items"):
        read_items(file)
    with pytest.raises(InputError, match="twice"):
        read_items([{"prompt": "a", "answer": 1, "id": "x"}, {"prompt": "b", "answer": 1, "id": "x"}])
    with pytest.raises(InputError, match="numeric"):
        read_items([{"prompt": "a", "answer": "no number"}], "numeric")[0].grade("4")
