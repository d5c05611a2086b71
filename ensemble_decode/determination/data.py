"""The items that models are judged on, from JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ensemble_decode.decode.prompts import check_prompt_type
from ensemble_decode.determination.graders import Grade, grader, needs_answer
from ensemble_decode.errors import InputError


@dataclass(frozen=True)
class Item:
    """One question. ``prompt``: text or chat messages; ``line``: everything its line says, for graders that are
    functions."""

    id: str
    prompt: Any
    answer: Any
    grader: str
    line: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What a saved generation is found by: a hash of the prompt."""
        return hashlib.sha256(json.dumps(self.prompt, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def open_ended(self) -> bool:
        """No answer to compare with: a function judges the text as a whole."""
        return self.answer is None

    def grade(self, text: str) -> Grade:
        """The grade of a response to this item."""
        return grader(self.grader)(text, self.answer, self.line)


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; empty lines are skipped. Raises ``InputError`` with the number of a bad
    line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: a JSON object is needed, got {type(value).__name__}")
        lines.append(value)
    return lines


def read_items(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]], default_grader: str = "exact"
) -> list[Item]:
    """Items from a file of JSON lines, or from mappings.

    A line has ``prompt`` (text or chat messages), ``answer`` (or a list of accepted ones), optionally ``id`` (default:
    its number, from 0) and ``grader`` (default: ``default_grader``). Raises ``InputError``, naming the line, where
    something is missing, an id comes twice, or a grader is not known.
    """
    if isinstance(source, (str, os.PathLike)):
        name, lines = str(source), read_jsonl(source)
    else:
        name, lines = "data", [dict(line) for line in source]
    items: list[Item] = []
    seen: set[str] = set()
    for number, line in enumerate(lines):
        where = f"{name}, item {number}"
        if "prompt" not in line:
            raise InputError(f"{where}: no 'prompt'; it has {', '.join(line) or 'nothing'}")
        try:
            check_prompt_type(line["prompt"])
            kind = str(line.get("grader", default_grader))
            grader(kind)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if line.get("answer") is None and needs_answer(kind):
            raise InputError(f"{where}: the grader {kind!r} needs an 'answer'; a function as grader may do without")
        identity = str(line.get("id", number))
        if identity in seen:
            raise InputError(f"{where}: the id {identity!r} comes twice")
        seen.add(identity)
        items.append(Item(identity, line["prompt"], line.get("answer"), kind, {**line, "id": identity}))
    if not items:
        raise InputError(f"{name}: no items")
    return items


def fingerprint(items: Iterable[Item]) -> str:
    """A hash of prompts, answers and graders."""
    parts = [[item.id, item.prompt, item.answer, item.grader] for item in items]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
