"""Graders: from a response and an item's answer to a score between 0 and 1, and to the answer that the response gives.

A grader is named in the data (``"grader"`` of a line) or for all of it: ``exact``, ``numeric`` (``numeric:first``),
``choice``, ``regex``, or the dotted name of a function, ``package.module:function``.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ensemble_decode.errors import InputError

NAMES = ("exact", "numeric", "numeric:first", "choice", "regex")

_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+−]?\.\d+")
_STATED = re.compile(r"(?i:answer)\s*(?i:is|:)?[\s:*]*(?:\(\**([A-Za-z])\**\)|([A-Z])(?![A-Za-z'’]))")
_LEADING = re.compile(r"\s*(?:[\[(*]*([A-Z])(?:[\])*.:,]|\s*$|\s*\n)|\(([a-z])\))")
_ALONE = re.compile(r"(?<![A-Za-z'’])([A-Z])(?![A-Za-z'’])")


class Grade(NamedTuple):
    """``score`` in 0..1; ``given``: the answer that the response gives, in one spelling; None where it gives none."""

    score: float
    given: str | None


Grader = Callable[[str, Any, Mapping[str, Any]], Grade]


def number_in(text: str, which: int = -1) -> float | None:
    """The last (``which=-1``) or first (0) number written in a text: signs, thousands separators, decimals,
    exponents."""
    found = _NUMBER.findall(text)
    return float(found[which].replace(",", "").replace("−", "-")) if found else None


def letter_in(text: str) -> str | None:
    """The option a response names: after "answer", else a letter that it begins with, else a capital letter that stands
    alone."""
    if stated := _STATED.search(text):
        return (stated.group(1) or stated.group(2)).upper()
    if leading := _LEADING.match(text):
        return (leading.group(1) or leading.group(2)).upper()
    # "A" and "I" are words too: they count only where no other letter stands alone
    alone = _ALONE.findall(text)
    other = [letter for letter in alone if letter not in "AI"]
    return (other or alone or [None])[0]


def _exact(text: str, answer: Any, item: Mapping[str, Any]) -> Grade:
    given = " ".join(text.split())
    right = [" ".join(str(one).split()) for one in _accepted(answer)]
    return Grade(float(given in right), given or None)


def _numeric(which: int) -> Grader:
    def grade(text: str, answer: Any, item: Mapping[str, Any]) -> Grade:
        given = number_in(text, which)
        wanted = [_as_number(one) for one in _accepted(answer)]
        right = given is not None and any(math.isclose(given, one, rel_tol=1e-6, abs_tol=1e-9) for one in wanted)
        return Grade(float(right), None if given is None else f"{given:.9g}")

    return grade


def _choice(text: str, answer: Any, item: Mapping[str, Any]) -> Grade:
    given = letter_in(text)
    return Grade(
        float(given is not None and given in [str(one).strip("() .").upper() for one in _accepted(answer)]), given
    )


def _regex(text: str, answer: Any, item: Mapping[str, Any]) -> Grade:
    for pattern in _accepted(answer):
        try:
            found = re.search(str(pattern), text)
        except re.error as error:
            raise InputError(f"item {item.get('id')!r}: {pattern!r} is not a regular expression: {error}") from error
        if found:
            return Grade(1.0, found.group(0))
    return Grade(0.0, " ".join(text.split()) or None)


def _accepted(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def _as_number(answer: Any) -> float:
    found = float(answer) if isinstance(answer, (int, float)) else number_in(str(answer))
    if found is None or math.isnan(found):
        raise InputError(f"answer {answer!r} holds no number; the numeric grader needs one")
    return found


def _function(name: str) -> Grader:
    module, colon, attribute = name.partition(":")
    if not colon:
        module, _, attribute = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"grader {name!r}: there are {', '.join(NAMES)}, or a function as package.module:function; {error}"
        ) from error

    def grade(text: str, answer: Any, item: Mapping[str, Any]) -> Grade:
        score = float(function(text, dict(item)))
        if not 0 <= score <= 1:
            raise InputError(
                f"grader {name!r} gave {score!r} for item {item.get('id')!r}; right is 0 to 1, or a truth value"
            )
        return Grade(score, " ".join(text.split()) or None)

    return grade


def grader(name: str) -> Grader:
    """The grader of that name. A function is called with the response and the item's line, and returns a truth value or
    0..1.

    Raises ``InputError`` for a name that is none of ``NAMES`` and no importable function.
    """
    known: dict[str, Grader] = {
        "exact": _exact,
        "numeric": _numeric(-1),
        "numeric:first": _numeric(0),
        "choice": _choice,
        "regex": _regex,
    }
    return known[name] if name in known else _function(name)


def needs_answer(name: str) -> bool:
    """Whether a grader compares with an item's ``answer``; a function may do without."""
    return name in NAMES
