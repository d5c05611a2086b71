"""Questions with one right answer, generated from a seed: arithmetic, small facts, sentences to complete, options to
choose from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = [
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
]  # fmt: skip
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "Russia": "Moscow",
    "Greece": "Athens", "Egypt": "Cairo", "Austria": "Vienna",
    "England": "London", "Ireland": "Dublin", "Norway": "Oslo",
    "Portugal": "Lisbon", "Poland": "Warsaw", "Sweden": "Stockholm",
    "Cuba": "Havana", "Peru": "Lima", "Kenya": "Nairobi",
}  # fmt: skip
_OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night",
    "old": "young", "open": "closed", "left": "right", "early": "late",
    "full": "empty", "high": "low", "dry": "wet", "fast": "slow",
    "rich": "poor", "strong": "weak", "hard": "soft", "light": "dark",
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """``prompt``: three solved examples and the question; ``answer``: the one right word, number or letter of an
    option."""

    kind: str
    prompt: str
    answer: str


def arithmetic(count: int, seed: int = 0) -> list[Question]:
    """Sums, differences and products of small numbers."""
    return _questions("arithmetic", count, seed, _sum)


def short(count: int, seed: int = 0) -> list[Question]:
    """What follows a day, a month or a letter; capitals; opposites."""
    return _questions("short questions", count, seed, _fact)


def completion(count: int, seed: int = 0) -> list[Question]:
    """Lines that lack their last word: capitals, opposites, days and months in order. The examples are whole lines."""
    return _questions("completion", count, seed, _line, solved="{} {}.\n", asked="{}")


def multiple_choice(count: int, seed: int = 0) -> list[Question]:
    """Which of three words is a day, a month, a capital or a country: A, B or C."""
    return _questions("multiple choice", count, seed, _options)


def correct(question: Question, text: str) -> bool:
    """Exact match: the first word of the text, less punctuation around it, is the answer; case counts for nothing."""
    words = text.split()
    return bool(words) and words[0].strip(".,;:!?\"'()*").casefold() == question.answer.casefold()


def _questions(
    kind: str,
    count: int,
    seed: int,
    make: Callable[[random.Random], tuple[str, str]],
    solved: str = "Question: {}\nAnswer: {}\n\n",
    asked: str = "Question: {}\nAnswer:",
) -> list[Question]:
    """``solved`` takes an example and its answer, ``asked`` the question. Examples are not asked again."""
    chance = random.Random(f"{kind}{seed}")
    examples: list[tuple[str, str]] = []
    while len(examples) < 3:
        made = make(chance)
        if made not in examples:
            examples.append(made)
    before = "".join(solved.format(*example) for example in examples)
    made_questions: list[Question] = []
    while len(made_questions) < count:
        text, answer = make(chance)
        if (text, answer) not in examples:
            made_questions.append(Question(kind, before + asked.format(text), answer))
    return made_questions


def _sum(chance: random.Random) -> tuple[str, str]:
    sign = chance.choice("+-x")
    if sign == "x":
        a, b = chance.randint(2, 9), chance.randint(2, 9)
        return f"What is {a} times {b}?", str(a * b)
    a, b = chance.randint(2, 50), chance.randint(2, 50)
    if sign == "-":
        a, b = max(a, b), min(a, b)
        return f"What is {a} minus {b}?", str(a - b)
    return f"What is {a} plus {b}?", str(a + b)


def _fact(chance: random.Random) -> tuple[str, str]:
    kind = chance.randrange(5)
    if kind == 0:
        return _follows(chance, _DAYS, "Which day comes after {}?")
    if kind == 1:
        return _follows(chance, _MONTHS, "Which month comes after {}?")
    if kind == 2:
        return _follows(chance, _LETTERS[:-1], "Which letter comes after {}?", _LETTERS)
    if kind == 3:
        country = chance.choice(sorted(_CAPITALS))
        return f"What is the capital of {country}?", _CAPITALS[country]
    word = chance.choice(sorted(_OPPOSITES))
    return f"What is the opposite of {word}?", _OPPOSITES[word]


def _follows(
    chance: random.Random, items: Sequence[str], words: str, order: Sequence[str] | None = None
) -> tuple[str, str]:
    order = order or items
    place = chance.randrange(len(items))
    return words.format(order[place]), order[(place + 1) % len(order)]


def _line(chance: random.Random) -> tuple[str, str]:
    kind = chance.randrange(3)
    if kind == 0:
        country = chance.choice(sorted(_CAPITALS))
        return f"The capital of {country} is", _CAPITALS[country]
    if kind == 1:
        word = chance.choice(sorted(_OPPOSITES))
        return f"The opposite of {word} is", _OPPOSITES[word]
    order = chance.choice([_DAYS, _MONTHS])
    place = chance.randrange(len(order))
    *given, last = (order[(place + i) % len(order)] for i in range(4))
    return f"{', '.join(given)},", last


def _options(chance: random.Random) -> tuple[str, str]:
    kinds = {
        "a day of the week": _DAYS,
        "a month": _MONTHS,
        "a capital city": sorted(_CAPITALS.values()),
        "a country": sorted(_CAPITALS),
    }
    asked, *others = chance.sample(sorted(kinds), 3)
    right = chance.choice(kinds[asked])
    words = [right, *(chance.choice(kinds[other]) for other in others)]
    chance.shuffle(words)
    options = "\n".join(f"{letter}) {word}" for letter, word in zip("ABC", words, strict=True))
    return f"Which of these is {asked}?\n{options}", "ABC"[words.index(right)]
