"""What the harness passes as text: ``model_args`` of the model, ``generation_kwargs`` of a task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lm_eval.utils import handle_arg_string

from ensemble_decode.decode.requests import check_max_new_tokens
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import InputError
from ensemble_decode.sampling import Sampling

NEW_TOKENS = 256  # where a task does not say, as the harness's own models
_BATCH = 8  # for batch_size=auto
_LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "seed")
_PER_MODEL = ("device", "dtype", "revision", "weight")  # several with semicolons between
LOAD_OPTIONS = tuple(inspect.signature(Ensemble.load).parameters)[1:]  # beside the models


def model_args(text: str) -> dict[str, Any]:
    """``key=value,...`` as a dictionary.

    A comma within brackets or quotes separates nothing, so that ``method=safe(draft_length=5,sharpen=prefix)`` is one
    value.

    Args:
        text: The argument of ``--model_args``.

    Raises:
        InputError: A part is no ``key=value``.
    """
    parts, depth, quote = [""], 0, ""
    for char in text:
        if char == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "([{") - (char in ")]}") if not quote else 0
        parts[-1] += char
    found = {}
    for part in filter(None, map(str.strip, parts)):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"model_args: expected key=value, got {part!r}")
        found[key.strip()] = handle_arg_string(value)
    return found


def with_the_harness_own(given: Mapping[str, Any], harness: Mapping[str, Any] | None) -> dict[str, Any]:
    """``model_args`` beside what the harness adds to them.

    Args:
        given: The user's.
        harness: ``batch_size``, ``max_batch_size`` and ``device`` of the harness's command line. What ``model_args``
            name goes before. ``cuda:0`` is the harness's default, whatever the machine has, and says nothing.
    """
    added = {key: value for key, value in (harness or {}).items() if value is not None}
    if added.get("device") == "cuda:0":
        del added["device"]
    return {**added, **given}


def load_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``Ensemble.load`` from those of ``model_args``.

    Raises:
        InputError: It has no such parameter.
    """
    if "pretrained" in given:
        raise InputError(
            "model_args: the models of an ensemble are given by models=, such as models=A;B, not by pretrained="
        )
    unknown = sorted(set(given) - set(LOAD_OPTIONS))
    if unknown:
        raise InputError(
            f"model_args: {', '.join(unknown)} is not known; there are models, method, join and "
            f"{', '.join(LOAD_OPTIONS)}. "
            "Options of a method stand in its parentheses: method=safe(draft_length=5)"
        )
    made = dict(given)
    for key in _PER_MODEL:
        if isinstance(made.get(key), str) and ";" in made[key]:
            made[key] = several(made[key])
    if "weight" in made:
        made["weight"] = _weights(made["weight"])
    return made


def several(value: Any) -> list[Any]:
    """``A;B`` as a list; a list as it is."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(";") if part.strip()]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _weights(value: Any) -> Any:
    try:
        return [float(one) for one in value] if isinstance(value, (list, tuple)) else float(value)
    except (TypeError, ValueError):
        raise InputError(f"model_args: weight must be numbers with ; between, got {value!r}") from None


def batch_size(value: int | str, most: int | None) -> int:
    """Rows that run at once.

    Args:
        value: A positive number; or ``auto``, which is 8.
        most: The most that ``auto`` may be.

    Raises:
        InputError: It is neither.
    """
    text = str(value)
    if text.startswith("auto"):
        return _BATCH if most is None else min(_BATCH, int(most))
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"batch_size must be a positive integer or auto, got {value!r}")
    return int(text)


def generation(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``max_new_tokens``, ``stop`` and ``sampling`` of one request.

    Args:
        kwargs: A task's ``generation_kwargs``. Without ``do_sample``, a temperature above 0 samples; with it and
            without a temperature, the temperature is 1, as in the harness's other models.

    Raises:
        InputError: A key is not known, or a value does not fit.
    """
    options = dict(kwargs)
    until = options.pop("until", None) or []
    lengths = [value for key in _LENGTH_KEYS if (value := options.pop(key, None)) is not None]
    sampled = options.pop("do_sample", None)
    given = {key: options.pop(key) for key in _SAMPLING_KEYS if key in options}
    if options:
        raise InputError(f"generation_kwargs: {', '.join(sorted(options))} is not known here")
    temperature = given.pop("temperature", None)
    if sampled is None:
        sampled = bool(temperature)
    if sampled:
        sampling = Sampling(temperature=1.0 if temperature is None else float(temperature), **given)
    else:
        sampling = Sampling()
    try:
        length = check_max_new_tokens(lengths[0] if lengths else NEW_TOKENS)
    except InputError as error:
        raise InputError(f"generation_kwargs: {error}") from None
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    return {"max_new_tokens": length, "stop": stops, "sampling": sampling}
