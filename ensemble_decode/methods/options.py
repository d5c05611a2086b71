"""Methods as text and as JSON, and the tables of what there is to choose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import Method
from ensemble_decode.methods.gates import GATES
from ensemble_decode.methods.registry import METHODS
from ensemble_decode.methods.sharpen import SHARPENINGS
from ensemble_decode.schema.grammar import Word, write
from ensemble_decode.schema.options import Choice, meanings, properties
from ensemble_decode.schema.words import expected
from ensemble_decode.settings import Limits, Sampling


def parse_method(given: str | Mapping[str, Any]) -> Method:
    """The method that text or JSON stands for.

    Args:
        given: Text such as ``safe(draft_length=auto, base=gac(threshold=0.4))``; the text of a JSON object; or a
            mapping such as ``{"name": "safe", "draft_length": "auto", "base": {"name": "gac", "threshold": 0.4}}``.
            Options that are left out have their defaults. Within parentheses, values without a name are taken in the
            order of the class's fields.

    Raises:
        InputError: The text cannot be read, there is no such method or option, or a value does not fit.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InputError(f"a method as JSON: {error}") from None
    try:
        return METHODS.build(given)
    except InputError:
        raise
    except ValueError:
        raise InputError(f"a method is text or an object with a 'name', got {given!r}") from None


def describe(method: Method) -> str:
    """A method as the shortest text that ``parse_method`` reads as an equal one: only options that are not the default.

    Raises:
        InputError: The method, or one within it, is of a class that has no name.
    """
    return write(METHODS.call_of(method))


def as_mapping(method: Method) -> dict[str, Any]:
    """A method as JSON has it, with every option; ``parse_method`` reads it as an equal one.

    Raises:
        InputError: As ``describe``; or an option holds bytes, which JSON does not have.
    """
    return METHODS.plain(method)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a method: what ``parse_method`` takes as a mapping, or as the name alone."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **METHODS.json_schema(), "title": "method"}


@dataclass(frozen=True)
class OptionRow:
    """One line of the table of options.

    Attributes:
        owner: The name that the option belongs to, such as ``unite``.
        name: The option.
        values: What it may be, in words.
        default: As text has it.
        meaning: What it does.
    """

    owner: str
    name: str
    values: str
    default: str
    meaning: str


@dataclass(frozen=True)
class OptionGroup:
    """A method, gate or sharpening with its options, or the options that every method shares.

    Attributes:
        name: Its name; for sharpenings, which share their options, all names.
        kind: "method", "gate", "sharpening" or "for every method".
        meaning: The first sentence of its description.
        source: The paper, or "".
        options: Its options, in the order of the class.
    """

    name: str
    kind: str
    meaning: str
    source: str
    options: tuple[OptionRow, ...]


def option_groups() -> list[OptionGroup]:
    """Every method, gate and sharpening with its options, and the options that every method shares."""
    groups = [_group("method", name, cls, METHODS) for name, cls in METHODS.classes.items()]
    groups += [_group("gate", name, cls, GATES) for name, cls in GATES.classes.items()]
    sharpen = next(iter(SHARPENINGS.classes.values()))
    shared = _group("sharpening", ", ".join(SHARPENINGS.classes), sharpen, SHARPENINGS)
    groups.append(replace(shared, meaning=meanings(sharpen)["kind"]))
    of_all = (("sampling", Sampling), ("limits", Limits))
    return [*groups, *(_group("for every method", name, cls, None) for name, cls in of_all)]


def _group(kind: str, name: str, cls: type, choice: Choice | None) -> OptionGroup:
    meaning = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
    return OptionGroup(
        name, kind, meaning, getattr(cls, "source", ""), tuple(_rows(name, cls, choice.tag if choice else None))
    )


def _rows(owner: str, cls: type, tag: str | None) -> Iterator[OptionRow]:
    for name, schema in properties(cls).items():
        if name != tag:
            default = write(_shown(schema["default"]))
            yield OptionRow(owner, name, expected(schema), default, schema["description"])


def _shown(default: Any) -> Any:
    if isinstance(default, dict):
        return Word(default["name"])
    return Word(default) if isinstance(default, str) else default


def options_table() -> str:
    """The table of all options in Markdown, for the documentation."""
    lines = []
    for group in option_groups():
        source = f" ({group.source})" if group.source else ""
        lines += [f"**`{group.name}`** ({group.kind}): {group.meaning}{source}", ""]
        if group.options:
            lines += ["| option | default | values | meaning |", "| --- | --- | --- | --- |"]
            lines += [f"| `{row.name}` | `{row.default}` | {row.values} | {row.meaning} |" for row in group.options]
            lines.append("")
    return "\n".join(lines)
