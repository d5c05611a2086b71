"""The separate options of the command line, until everything takes a method as one text (``methods.options``)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.methods import Method

# Which options each method takes, in the words of the command line.
_UNITE = ("top-k", "oov", "aggregate", "gate")
_SHARPEN = ("sharpen", "trigger", "sharpen-threshold", "sharpen-min-prob", "sharpen-temperature")
METHOD_OPTIONS: dict[str, tuple[str, ...]] = {
    "unite": _UNITE,
    "gac": ("threshold",),
    "safe": ("base", "draft-length", "test", *_SHARPEN, *_UNITE, "threshold"),
    "specfuse": ("segment-length", "exit-threshold", "exit-temperature", "feedback", "trim", "literal"),
    "single": ("single-model",),
}
_GATES = ("max_prob", "kl", "js")


def build_method(name: str, options: Mapping[str, Any]) -> "Method":
    """The method called ``name`` with the options that were given (those that are None were not).

    Raises ``InputError`` for an unknown method and for an option that the method does not take: nothing is ignored.
    """
    if name not in METHOD_OPTIONS:
        raise InputError(f"--method {name!r}: there are {', '.join(METHOD_OPTIONS)}")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in METHOD_OPTIONS[name]:
            takers = ", ".join(method for method, taken in METHOD_OPTIONS.items() if option in taken)
            raise InputError(f"--{option} is an option of --method {takers}, not of {name}")
    from ensemble_decode.methods import Single

    if name == "unite":
        return _unite(given)
    if name == "gac":
        return _gac(given)
    if name == "specfuse":
        return _specfuse(given)
    if name == "single":
        return Single(given.get("single-model", 0))
    return _safe(given)


def _unite(given: Mapping[str, Any]) -> Any:
    from ensemble_decode.methods import UniTE

    gate = {"gate": parse_gate(given["gate"])} if "gate" in given else {}
    return UniTE(**_renamed(given, {"top-k": "top_k", "oov": "oov", "aggregate": "aggregate"}), **gate)


def _gac(given: Mapping[str, Any]) -> Any:
    from ensemble_decode.methods import GaC

    return GaC(**_renamed(given, {"threshold": "threshold"}))


def _safe(given: Mapping[str, Any]) -> Any:
    from ensemble_decode.methods import SAFE, Sharpen

    base_name = given.get("base", "unite")
    if base_name not in ("unite", "gac"):
        raise InputError(f"--base {base_name!r}: there are unite, gac")
    wrong = [option for option in given if option in (_UNITE if base_name == "gac" else ("threshold",))]
    if wrong:
        raise InputError(f"--{wrong[0]} is not an option of --method safe --base {base_name}")
    sharpen = _renamed(
        given,
        {
            "sharpen": "kind",
            "trigger": "trigger",
            "sharpen-threshold": "threshold",
            "sharpen-min-prob": "min_prob",
            "sharpen-temperature": "temperature",
        },
    )
    lengths = {"draft_length": _draft_length(given["draft-length"])} if "draft-length" in given else {}
    test = {"test": parse_gate(given["test"])} if "test" in given else {}
    base = _gac(given) if base_name == "gac" else _unite(given)
    return SAFE(base=base, sharpen=Sharpen(**sharpen), **lengths, **test)


def _specfuse(given: Mapping[str, Any]) -> Any:
    from ensemble_decode.methods import SpecFuse

    names = {
        "segment-length": "segment_length",
        "exit-threshold": "exit_threshold",
        "exit-temperature": "temperature",
        "feedback": "feedback",
        "trim": "trim",
        "literal": "literals",
    }
    return SpecFuse(**_renamed(given, names))


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: given[option] for option, field in names.items() if option in given}


def _draft_length(text: str) -> Any:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--draft-length {text!r}: give a positive integer or auto") from None


def parse_gate(text: str) -> Any:
    """``max_prob``, ``kl`` or ``js``, with a threshold after a colon where it is not the default: ``kl:0.2``."""
    from ensemble_decode.methods import JS, KL, MaxProb

    name, colon, number = text.partition(":")
    if name not in _GATES:
        raise InputError(f"gate {text!r}: there are {', '.join(_GATES)}, with a threshold as in kl:0.2")
    gate = {"max_prob": MaxProb, "kl": KL, "js": JS}[name]
    try:
        return gate(float(number)) if colon else gate()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"gate {text!r}: the threshold {number!r} is not a number") from None
