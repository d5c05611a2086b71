"""The grammar of options as text: ``safe(draft_length=auto, base=gac(threshold=0.4), test=none)``.

    value  = call | word | number | string | bytes | list
    call   = word "(" [argument {"," argument}] ")"
    argument = [word "="] value
    list   = "[" [value {"," value}] "]"

Strings are written as in JSON, bytes as ``b"..."`` with one character up to U+00FF per byte. Blanks between parts do
not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ensemble_decode.errors import InputError

_DEEPEST = 16
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+)
    |(?P<string>b?"(?:[^"\\]|\\.)*")
    |(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[()\[\],=])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Word(str):
    """A bare word of the text: a string, a name, or ``none``, ``true`` or ``false``, as the field has it."""

    __slots__ = ()


@dataclass(frozen=True)
class Call:
    """A name with what stands in its parentheses.

    Attributes:
        name: The name.
        values: Arguments without a name, in order.
        named: Arguments by name.
    """

    name: str
    values: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


def read(text: str) -> Any:
    """Read one value.

    Args:
        text: The text of the value, and nothing else.

    Returns:
        A ``Call``, ``Word``, str, bytes, int, float or list.

    Raises:
        InputError: The text does not follow the grammar; the message shows where.
    """
    reader = _Reader(text)
    value = reader.value(0)
    if reader.kind:
        reader.refuse("expected nothing more")
    return value


def write(value: Any) -> str:
    """The text that ``read`` reads as ``value``: None, bool, number, str, bytes, list, tuple or ``Call``."""
    if isinstance(value, Call):
        inside = [*map(write, value.values), *(f"{name}={write(v)}" for name, v in value.named.items())]
        return f"{value.name}({', '.join(inside)})" if inside else value.name
    if isinstance(value, Word):
        return str(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bytes):
        return "b" + json.dumps(value.decode("latin-1"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write, value))}]"
    return repr(value)


def is_word(text: str) -> bool:
    """Whether ``text`` can be written without quotes."""
    return _WORD.fullmatch(text) is not None


class _Reader:
    """One token ahead: ``kind`` and ``token``, which begins at ``at``; ``kind`` is empty at the end."""

    def __init__(self, text: str) -> None:
        self.text, self.next = text, 0
        self.kind, self.token, self.at = "", "", 0
        self.step()

    def step(self) -> str:
        """Take the token and look at the next one."""
        taken = self.token
        while True:
            self.at = self.next
            if self.at == len(self.text):
                self.kind, self.token = "", ""
                return taken
            found = _TOKEN.match(self.text, self.at)
            if found is None:
                self.refuse("not understood" if self.text[self.at] != '"' else "the string has no end")
            self.next = found.end()
            if found.lastgroup != "blank":
                self.kind, self.token = str(found.lastgroup), found[0]
                return taken

    def take(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.step()
            return True
        return False

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            self.refuse(f"more than {_DEEPEST} parentheses and brackets within each other")
        if self.take("["):
            return self.items("]", lambda: self.value(depth + 1))
        if self.kind == "word":
            name = self.step()
            return self.call(name, depth) if self.take("(") else Word(name)
        if self.kind not in ("number", "string"):
            self.refuse("expected a value")
        kind, token, at = self.kind, self.token, self.at
        try:
            value = _number(token) if kind == "number" else _string(token)
        except ValueError as error:
            self.refuse(str(error), at)
        self.step()
        return value

    def call(self, name: str, depth: int) -> Call:
        values: list[Any] = []
        named: dict[str, Any] = {}

        def argument() -> None:
            at, value = self.at, self.value(depth + 1)
            if not isinstance(value, Word) or not self.take("="):
                if named:
                    self.refuse("a value without a name stands behind one with a name", at)
                values.append(value)
            elif value in named:
                self.refuse(f"{value} is given twice", at)
            else:
                named[str(value)] = self.value(depth + 1)

        self.items(")", argument)
        return Call(name, tuple(values), named)

    def items(self, end: str, item: Any) -> list[Any]:
        found: list[Any] = []
        while not self.take(end):
            if found and not self.take(","):
                self.refuse(f'expected "," or "{end}"')
            found.append(item())
        return found

    def refuse(self, why: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        where = "at its end" if at >= len(self.text) else f"at {_shortened(self.text[at:])}"
        raise InputError(f"{_shortened(self.text)}: {why} (character {at + 1}, {where})")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _number(token: str) -> int | float:
    try:
        return int(token)
    except ValueError:
        if not any(mark in token for mark in ".eE"):
            raise ValueError("the number has too many digits") from None
        return float(token)


def _string(token: str) -> str | bytes:
    try:
        text = json.loads(token.removeprefix("b"), strict=False)
    except ValueError:
        raise ValueError("the string has an escape that JSON does not know") from None
    if not token.startswith("b"):
        return text
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("bytes hold characters up to U+00FF only, one for each byte") from None
