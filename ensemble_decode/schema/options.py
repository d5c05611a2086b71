"""Options of a class, each declared once.

A class of options is a frozen dataclass that subclasses ``Options``. A field's annotation says which values it takes,
in pydantic's terms; the ``Args:`` of the class's docstring say what it means. Values are checked as the object is made:
what does not fit is an ``InputError`` that names the class, the option, what was given and what is expected.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import numbers
import re
import reprlib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, get_type_hints

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from ensemble_decode.errors import InputError
from ensemble_decode.schema.grammar import Call, Word, is_word, read
from ensemble_decode.schema.words import expected


def _integer(value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    number = _number(value)
    if not number.is_integer():
        raise ValueError("not an integer")
    return int(number)


def _number(value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError("not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("too large") from None
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


INTEGER = BeforeValidator(_integer)
"""Takes a whole number: an int of Python or numpy, or a float without a fraction, as tables with gaps have. No bool."""
NUMBER = BeforeValidator(_number)
"""Takes a finite number of Python or numpy. No bool."""
FLAG = BeforeValidator(_flag)
"""Takes True or False, and nothing that merely counts as one of them."""


class Options:
    """Base of a frozen dataclass whose fields are checked as it is made.

    Raises:
        InputError: A value does not fit its field.
    """

    source: ClassVar[str] = ""
    """The paper that the class follows."""

    def __post_init__(self) -> None:
        """Check every field, and replace its value by what the field makes of it."""
        owner: Any = type(self)
        for name, adapter in _adapters(owner).items():
            value = getattr(self, name)
            try:
                checked = adapter.validate_python(value)
            except ValidationError as error:
                raise refusal(owner.__name__, name, value, error, adapter) from None
            object.__setattr__(self, name, checked)


def refusal(owner: str, name: str, value: Any, error: ValidationError, adapter: TypeAdapter[Any]) -> InputError:
    """The ``InputError`` for a value that pydantic refused: its own words, where an ``InputError`` lies behind it.

    Args:
        owner: What the option belongs to.
        name: The option.
        value: What was given.
        error: What pydantic says.
        adapter: What was expected.
    """
    for one in error.errors():
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            return cause
    return InputError(f"{owner}: {name} must be {expected(adapter.json_schema())}, got {reprlib.repr(value)}")


@cache
def _adapters(owner: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(owner, include_extras=True)
    return {f.name: TypeAdapter(hints[f.name]) for f in dataclasses.fields(owner)}


@cache
def _choices(owner: Any) -> dict[str, Choice | None]:
    hints = get_type_hints(owner, include_extras=True)
    found: dict[str, Choice | None] = {}
    for f in dataclasses.fields(owner):
        notes = getattr(hints[f.name], "__metadata__", ())
        found[f.name] = next((note for note in notes if isinstance(note, Choice)), None)
    return found


@cache
def _schemas(owner: Any) -> dict[str, dict[str, Any]]:
    return {name: adapter.json_schema() for name, adapter in _adapters(owner).items()}


def meanings(owner: type) -> dict[str, str]:
    """What each field of a class means: the entries of ``Args:`` in its docstring, without markup."""
    found: dict[str, str] = {}
    lines = (inspect.getdoc(owner) or "").partition("Args:\n")[2].splitlines()
    for line in itertools.takewhile(lambda text: not text or text.startswith("    "), lines):
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif line.strip():
            found[name] += f" {line.strip()}"
    return {name: text.replace("``", "") for name, text in found.items()}


def properties(owner: type) -> dict[str, dict[str, Any]]:
    """The JSON schema of every field of a class of options, in order, with ``description`` and ``default``."""
    found, meaning = {}, meanings(owner)
    for field in dataclasses.fields(owner):
        default = _default(field)
        told = {} if default is dataclasses.MISSING else {"default": _plain(_choices(owner)[field.name], default)}
        found[field.name] = _schemas(owner)[field.name] | {"description": meaning.get(field.name, "")} | told
    return found


class Choice:
    """Objects that are chosen by name: the type of a field, and what reads them from text and JSON.

    A field takes an object; its name; text such as ``kl(0.2)``; or a mapping such as
    ``{"name": "kl", "threshold": 0.2}``.
    """

    def __init__(
        self,
        what: str,
        classes: Mapping[str, type],
        *,
        tag: str | None = None,
        optional: bool = False,
        others: type | None = None,
    ) -> None:
        """Declare what may be chosen.

        Args:
            what: What is chosen, with its article, as errors name it: "a gate".
            classes: The class behind each name.
            tag: The field that holds the name, where several names share one class.
            optional: Whether None is one of the values.
            others: Objects of this class are taken too, although they have no name.
        """
        self.what, self.classes, self.tag, self.optional, self.others = what, dict(classes), tag, optional, others

    def build(self, value: Any) -> Any:
        """The object that ``value`` stands for.

        Raises:
            InputError: There is no such name, no such option, or a value that does not fit.
            ValueError: ``value`` is of a type that stands for no object.
        """
        if value is None and self.optional:
            return None
        if type(value) in self.classes.values() or (self.others is not None and isinstance(value, self.others)):
            return value
        if isinstance(value, str):
            value = read(value)
            if self.optional and value == "none":
                return None
        if isinstance(value, Word):
            value = Call(value)
        if isinstance(value, Mapping):
            value = self._call(value)
        if not isinstance(value, Call):
            raise ValueError("stands for no object")
        if value.name not in self.classes:
            raise InputError(f"{value.name!r} is not {self.what}; expected {self.names()}")
        return self._make(value)

    def names(self) -> str:
        """The names, as errors list them."""
        *first, last = [*self.classes, *(["none"] if self.optional else [])]
        return f"{', '.join(first)} or {last}" if first else last

    def name_of(self, value: Any) -> str:
        """The name of an object.

        Raises:
            InputError: It has none.
        """
        for name, cls in self.classes.items():
            if type(value) is cls and (self.tag is None or getattr(value, self.tag) == name):
                return name
        raise InputError(f"{value!r} has no name as {self.what}; names stand for {self.names()}")

    def fields(self, name: str) -> list[dataclasses.Field[Any]]:
        """The fields that may be given beside a name."""
        return [f for f in dataclasses.fields(self.classes[name]) if f.name != self.tag]

    def call_of(self, value: Any) -> Call:
        """An object as text has it: its name, with the options that are not the default.

        Raises:
            InputError: The object, or one within it, has no name.
        """
        name, named, within = self.name_of(value), {}, self._within(value)
        for field in self.fields(name):
            given = getattr(value, field.name)
            if given != _default(field):
                named[field.name] = _as_call(within[field.name], given)
        return Call(name, (), named)

    def plain(self, value: Any) -> dict[str, Any]:
        """An object as JSON has it: its name, with every option.

        Raises:
            InputError: The object, or one within it, has no name, or an option holds bytes, which JSON does not have.
        """
        name, within = self.name_of(value), self._within(value)
        return {"name": name} | {f.name: _plain(within[f.name], getattr(value, f.name)) for f in self.fields(name)}

    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of what the field takes: a name, or an object with ``name`` and options."""
        shapes: list[dict[str, Any]] = [{"enum": list(self.classes)}]
        for name, cls in self.classes.items():
            inside = {key: told for key, told in properties(cls).items() if key != self.tag}
            shapes.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, **inside},
                    "required": ["name"],
                    "additionalProperties": False,
                }
            )
        if self.optional:
            shapes.append({"type": "null"})
        others = f", or another {self.others.__name__}" if self.others else ""
        return {"title": f"{self.what} ({self.names()}{others})", "anyOf": shapes}

    @staticmethod
    def _within(value: Any) -> dict[str, Choice | None]:
        owner: Any = type(value)
        return _choices(owner)

    def _call(self, given: Mapping[Any, Any]) -> Call:
        name = given.get("name")
        if not isinstance(name, str):
            raise InputError(f"{self.what} needs a 'name', {self.names()}; got {reprlib.repr(dict(given))}")
        return Call(name, (), {key: value for key, value in given.items() if key != "name"})

    def _make(self, call: Call) -> Any:
        cls, names = self.classes[call.name], [f.name for f in self.fields(call.name)]
        if len(call.values) > len(names):
            raise InputError(f"{call.name} takes at most {len(names)} options, got {len(call.values)}")
        given = dict(zip(names, call.values, strict=False))
        for name, value in call.named.items():
            if name not in names:
                known = f"expected {', '.join(names)}" if names else "it has none"
                raise InputError(f"{call.name} has no option {name!r}; {known}")
            if name in given:
                raise InputError(f"{call.name}: {name} is given twice")
            given[name] = value
        tagged = {} if self.tag is None else {self.tag: call.name}
        return cls(**tagged, **{name: _meant(_schemas(cls)[name], value) for name, value in given.items()})

    # -- as the type of a field ------------------------------------------------------------------------------------

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's hook: the field is validated by ``build``."""
        return core_schema.no_info_plain_validator_function(self.build)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """pydantic's hook: the field's JSON schema."""
        return self.json_schema()


def _meant(schema: Mapping[str, Any], value: Any) -> Any:
    """A bare word as the field understands it: ``none``, ``true`` or ``false`` where it has these values, else a
    string."""
    if isinstance(value, Word):
        shapes = schema.get("anyOf", [schema])
        if value == "none" and {"type": "null"} in shapes:
            return None
        if value in ("true", "false") and {"type": "boolean"} in shapes:
            return value == "true"
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _as_call(choice: Choice | None, value: Any) -> Any:
    if choice is not None and value is not None:
        return choice.call_of(value)
    return Word(value) if isinstance(value, str) and is_word(value) else value


def _plain(choice: Choice | None, value: Any) -> Any:
    if choice is not None and value is not None:
        return choice.plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain(None, one) for one in value]
    if isinstance(value, bytes):
        raise InputError(f"JSON has no bytes: {value!r}")
    return value
