"""A JSON schema in words: what a value is expected to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "True or False",
    "null": "None",
}


def expected(schema: Mapping[str, Any]) -> str:
    """What a value of this schema is: "an integer from 1 to 1024", "one of word, none"."""
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        parts = [part for shape in schema["anyOf"] for part in _parts(shape)]
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    return _TYPES[schema["type"]] + _bounds(schema)


def _parts(schema: Mapping[str, Any]) -> list[str]:
    return ["True", "False"] if schema.get("type") == "boolean" else [expected(schema)]


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    named = {"exclusiveMinimum": "above", "minimum": "of at least", "maximum": "at most", "exclusiveMaximum": "below"}
    parts = [f"{word} {schema[key]}" for key, word in named.items() if key in schema]
    return f" {' and '.join(parts)}" if parts else ""
