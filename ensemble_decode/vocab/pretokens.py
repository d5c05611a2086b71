"""How far a pre-tokenizer can look: when a split already made is sure to stay, whatever text follows.

A pre-tokenizer's regular expression scans from left to right. A split found at ``r`` stays when text is appended after
``c`` if no attempt to match that starts before ``r`` can read as far as ``c``. An attempt reads at most one run of
characters for each unbounded item of the pattern (``\\p{L}+``) and one character for each bounded one. So characters
are put into groups such that every unbounded item stays inside one group; then an attempt that uses ``u`` unbounded
items and ``n`` bounded characters crosses at most ``u + n`` borders between groups, and a split with more borders than
that between it and ``c`` is final. Marks belong to no group, since patterns disagree on them; they are passed over when
borders are counted. Patterns with constructs that look left or without bound (look-behind, anchors, repeated groups)
get no such bound.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple

BLANK, SPACE, LETTER, NUMBER, OTHER, MARK = range(6)
_ALL = frozenset((BLANK, SPACE, LETTER, NUMBER, OTHER))
_BY_PROPERTY = {"L": {LETTER}, "N": {NUMBER}, "M": set(), "P": {OTHER}, "S": {OTHER}, "Z": {BLANK, SPACE}}
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class _Unbounded(Exception):
    """The pattern holds something whose reach has no bound that this module can state."""


class _Measured(NamedTuple):
    """What one stage of a pre-tokenizer may read in an attempt to match.

    Attributes:
        unbounded: The most unbounded items in any alternative of its pattern.
        bounded: The most bounded characters in any alternative.
        unions: For each item that repeats, the groups that it can run through.
        single: Every alternative is one item.
    """

    unbounded: int
    bounded: int
    unions: list[frozenset[int]]
    single: bool


class _Escape(NamedTuple):
    """An escape of a pattern: the groups that it may match, those that it matches whole, the character it stands
    for."""

    may: set[int]
    whole: set[int]
    char: str


@lru_cache(maxsize=65536)
def group_of(char: str) -> int:
    """The elementary group of a character; lone surrogates (invalid bytes) are OTHER."""
    if char == " ":
        return BLANK
    if char.isspace():
        return SPACE
    kind = unicodedata.category(char)[0]
    return {"L": LETTER, "N": NUMBER, "M": MARK}.get(kind, OTHER)


class Reach:
    """The bound for one pre-tokenizer: ``borders`` that must lie between a final split and the change, under ``merged``
    groups.

    ``edges``: a restart must itself lie on a border, because an earlier stage of the pre-tokenizer could otherwise have
    a match across it.
    """

    def __init__(self, borders: int, merged: dict[int, int], edges: bool):
        self.borders, self._merged, self.edges = borders, merged, edges

    def group(self, char: str) -> int | None:
        """The merged group of a character, None for a mark."""
        return self._merged.get(group_of(char))

    def final_before(self, text: str) -> int | None:
        """The largest index of ``text`` with enough borders between it and the end; None where there is none."""
        wanted, last = self.borders, None
        for index in range(len(text) - 1, -1, -1):
            group = self.group(text[index])
            if group is None:
                continue
            if last is not None and group != last:
                wanted -= 1
                if wanted == 0:
                    return index
            last = group
        return None


def reach_of(pre_tokenizer: list[dict[str, Any]]) -> Reach | None:
    """The bound for a pre-tokenizer given as the JSON of its stages; None where it cannot be stated."""
    stages: list[_Measured] = []
    try:
        for state in pre_tokenizer:
            stages += _stage(state)
    except _Unbounded:
        return None
    if not stages or not all(stage.single for stage in stages[:-1]):
        return None
    merged = {group: group for group in _ALL}
    for stage in stages:
        for groups in stage.unions:
            joined = {merged[group] for group in groups}
            merged = {group: min(joined) if name in joined else name for group, name in merged.items()}
    if len(set(merged.values())) < 2:
        return None
    return Reach(sum(stage.unbounded + stage.bounded for stage in stages) + 2, merged, edges=len(stages) > 1)


def _stage(stage: dict[str, Any]) -> list[_Measured]:
    kind = stage["type"]
    if kind == "ByteLevel":
        return [_measure(GPT2_PATTERN)] if stage["use_regex"] else []
    if kind == "Split" and "Regex" in stage["pattern"]:
        if (stage["behavior"], stage["invert"]) not in (("Isolated", False), ("Removed", True)):
            raise _Unbounded
        return [_measure(stage["pattern"]["Regex"])]
    if kind == "Digits":
        return [_measure(r"\p{N}" if stage["individual_digits"] else r"\p{N}+")]
    if kind == "Metaspace" and stage["split"]:
        return [_measure(r" ?[^ ]+| ")]
    raise _Unbounded


def _measure(pattern: str) -> _Measured:
    parser = _Parser(pattern)
    unbounded, bounded = parser.alternatives()
    if parser.at != len(pattern):
        raise _Unbounded
    return _Measured(unbounded, bounded, parser.unions, parser.single)


class _Parser:
    """Reads the part of the regular expression syntax that pre-tokenizers use; anything else raises `_Unbounded`."""

    def __init__(self, pattern: str):
        self.pattern, self.at, self.depth = pattern, 0, 0
        self.unions: list[frozenset[int]] = []  # groups that one item can run through
        self.single = True  # every alternative is one item

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def alternatives(self) -> tuple[int, int]:
        """The largest number of unbounded items, and of bounded characters, in any alternative."""
        best_u = best_n = u = n = items = 0
        while True:
            char = self._peek()
            if char in ("", ")", "|"):
                best_u, best_n = max(best_u, u), max(best_n, n)
                if self.depth == 0 and items > 1:
                    self.single = False
                u = n = items = 0
                if char != "|":
                    return best_u, best_n
                self.at += 1
                continue
            item_u, item_n = self._item()
            u, n, items = u + item_u, n + item_n, items + 1

    def _item(self) -> tuple[int, int]:
        if self._take("$"):
            return 0, 1  # looks at what follows, as a look-ahead does
        if self._peek() == "(":
            u, n = self._group()
            most = self._quantifier()
            if most is None:
                raise _Unbounded
            return u * most, n * most
        groups = self._class()
        most = self._quantifier()
        if most is None or most > 1:
            self.unions.append(frozenset(groups))
        return (1, 0) if most is None else (0, most)

    def _group(self) -> tuple[int, int]:
        if not any(self._take(opening) for opening in ("(?:", "(?i:", "(?!", "(?=")):
            if self.pattern.startswith("(?", self.at):
                raise _Unbounded
            self.at += 1
        self.depth += 1
        size = self.alternatives()
        self.depth -= 1
        self.single = False
        if not self._take(")"):
            raise _Unbounded
        return size

    def _quantifier(self) -> int | None:
        """How often the item may repeat; None without bound."""
        most: int | None = 1
        if self._take("*") or self._take("+"):
            most = None
        elif self._take("?"):
            most = 1
        elif self._peek() == "{":
            inside, closed, _ = self.pattern[self.at + 1 :].partition("}")
            low, comma, high = inside.partition(",")
            if not closed or not low.isdigit() or (high and not high.isdigit()):
                raise _Unbounded
            self.at += len(inside) + 2
            most = int(high) if high else (None if comma else int(low))
        else:
            return 1
        if not self._take("+"):  # possessive and lazy forms read no further
            self._take("?")
        return most

    def _class(self) -> set[int]:
        char = self._peek()
        if char == "[":
            return self._bracket()
        if char == "\\":
            return self._escape().may
        if char in "^*+?{":
            raise _Unbounded
        self.at += 1
        return set(_ALL) if char == "." else _literal(char)

    def _escape(self) -> _Escape:
        self.at += 1
        char = self._peek()
        self.at += 1
        if char in ("p", "P"):
            name, closed, _ = self.pattern[self.at :].removeprefix("{").partition("}")
            if self._peek() != "{" or not closed or name.lstrip("^")[:1] not in _BY_PROPERTY:
                raise _Unbounded
            self.at += len(name) + 2
            if char == "P" or name.startswith("^"):
                return _Escape(set(_ALL), set(), "")
            groups = set(_BY_PROPERTY[name[0]])
            # P and S are each a part of OTHER, as Lu is of LETTER and Z of the white space.
            return _Escape(groups, groups if name in ("L", "N") else set(), "")
        if char == "s":
            return _Escape({BLANK, SPACE}, {BLANK, SPACE}, "")
        if char == "d":
            return _Escape({NUMBER}, set(), "")
        if char == "S":
            return _Escape({LETTER, NUMBER, OTHER}, {LETTER, NUMBER, OTHER}, "")
        plain = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}.get(char, char)
        if not plain or (plain == char and char.isalnum()):
            raise _Unbounded
        return _Escape(_literal(plain), _whole(plain), plain)

    def _bracket(self) -> set[int]:
        self.at += 1
        negated = self._take("^")
        some: set[int] = set()
        whole: set[int] = set()
        while not self._take("]"):
            char = self._peek()
            if char in ("", "[") or self.pattern.startswith("&&", self.at):
                raise _Unbounded
            if char == "\\":
                may, full, first = self._escape()
            else:
                self.at += 1
                may, full, first = _literal(char), _whole(char), char
            if first and self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self._peek()
                if last == "\\":
                    last = self._escape().char
                else:
                    self.at += 1
                if not last or last < first:
                    raise _Unbounded
                may = {group_of(chr(code)) for code in range(ord(first), ord(last) + 1)} - {MARK}
            some |= may
            whole |= full
        return set(_ALL) - whole if negated else some


def _literal(char: str) -> set[int]:
    # Some patterns ignore case, which never leaves the group.
    return {group_of(char)} - {MARK}


def _whole(char: str) -> set[int]:
    return {BLANK} if char == " " else set()
