"""The fields of a line: from JSON to a request, and from a result back to JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from ensemble_decode.batch.lines import Line
from ensemble_decode.decode.prompts import check_prompt_type
from ensemble_decode.decode.requests import BatchRequest, check_limits, check_seed
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.methods.options import parse_method
from ensemble_decode.outputs import Completion, ErrorKind, Stats, TraceStep
from ensemble_decode.settings import Sampling

WRITTEN = [
    "line",
    "text",
    "token_ids",
    "logprobs",
    "trace",
    "finish_reason",
    "stop_reason",
    "stats",
    "error",
    "error_kind",
]
"""Names that a line of output has of its own; an input's field of such a name is written as ``input_<name>``."""
# what depends on the batch a row ran in has no place in a file that is to be the same after every restart
_VOLATILE = ("forwarded", "forward_seconds", "fusion_seconds", "host_seconds", "first_segment_seconds")
STATS = tuple(f.name for f in dataclasses.fields(Stats) if f.name not in _VOLATILE)
_SAMPLING = tuple(f.name for f in dataclasses.fields(Sampling) if f.name != "seed")


class BadField(InputError):
    """A field of a line that cannot be used.

    Attributes:
        kind: Which sort of error row it makes.
    """

    def __init__(self, message: str, kind: ErrorKind = "field") -> None:
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a line of output has beside its text.

    Attributes:
        ids: ``token_ids``.
        logprobs: The logarithm of every token's probability.
        trace: Every step's candidates and choice.
    """

    ids: bool = False
    logprobs: bool = False
    trace: bool = False

    @property
    def steps(self) -> bool:
        """Whether rows have to keep their steps."""
        return self.logprobs or self.trace


def as_request(line: Line, sampling: Sampling, trace: bool = False) -> BatchRequest:
    """The request of a line, with the line as its tag. A field that is null counts as absent.

    Args:
        line: A line of input.
        sampling: The run's own, which fields of the line change. Its seed is not taken over: a row without a seed is
            keyed by the run's and the line's number.
        trace: Whether the row keeps its steps.

    Raises:
        BadField: The line is none, or one of its fields cannot be used.
    """
    if line.fields is None:
        raise BadField(line.error or "the line cannot be read", "line")
    clash = [name for name in WRITTEN if name in line.fields and f"input_{name}" in line.fields]
    if clash:
        raise BadField(
            f"the field {clash[0]!r} would be written as 'input_{clash[0]}', which the line has too; rename one"
        )
    given = {name: value for name, value in line.fields.items() if value is not None}
    prompt = _prompt(given)
    try:
        limits = check_limits(given.get("max_new_tokens", 1), given.get("stop"))
        own = {name: given[name] for name in _SAMPLING if name in given}
        return BatchRequest(
            prompt,
            max_new_tokens=limits.max_new_tokens if "max_new_tokens" in given else None,
            stop=limits.stop if "stop" in given else None,
            seed=check_seed(given["seed"]) if "seed" in given else None,
            sampling=dataclasses.replace(sampling, seed=None, **own) if own else None,
            method=parse_method(_without_nulls(given["method"])) if "method" in given else None,
            row_id=line.number - 1,
            trace=trace,
            tag=line,
        )
    except Exception as error:  # whatever a field makes a check raise is this line's error, and no other's
        raise BadField(str(error) or type(error).__name__) from error


def _prompt(given: Mapping[str, Any]) -> Any:
    if ("prompt" in given) == ("messages" in given):
        how = "both" if "prompt" in given else "neither"
        raise BadField(f"a line has a 'prompt' or 'messages'; this one has {how}", "prompt")
    if "messages" in given:
        prompt = given["messages"]
        if not isinstance(prompt, list):
            raise BadField(f"'messages' must be a list of chat messages, got {type(prompt).__name__}", "prompt")
    else:
        prompt = given["prompt"]
        if not isinstance(prompt, str):
            raise BadField(f"'prompt' must be a string, got {type(prompt).__name__}", "prompt")
        if not prompt:
            raise BadField("the prompt is empty", "prompt")
    try:
        check_prompt_type(prompt)
    except EnsembleError as error:
        raise BadField(str(error), "prompt") from error
    return prompt


def _without_nulls(value: Any) -> Any:
    """A method as JSON has it, without the options that are null, as tables with gaps have them."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def encode_result(line: Line, completion: Completion, kind: ErrorKind | None, wanted: Wanted) -> bytes:
    """One line of output: the input's fields, and what became of them.

    Args:
        line: The line of input.
        completion: Its result.
        kind: The kind of its error; None where it has none.
        wanted: What the line has beside the text.
    """
    out: dict[str, Any] = {"line": line.number}
    for name, value in (line.fields or {}).items():
        out[f"input_{name}" if name in WRITTEN else name] = value
    out["text"] = completion.text
    if wanted.ids:
        out["token_ids"] = completion.token_ids
    if wanted.logprobs:
        out["logprobs"] = logprobs(completion.trace or [])
    if wanted.trace:
        out["trace"] = [_step(step) for step in completion.trace or []]
    out["finish_reason"] = completion.finish_reason
    out["stop_reason"] = _plain(completion.stop_reason)
    out["stats"] = {name: getattr(completion.stats, name) for name in STATS}
    out["error"] = completion.error
    out["error_kind"] = kind
    try:
        return json.dumps(out, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate in a field that is carried through
        return json.dumps(out, allow_nan=False).encode() + b"\n"


def error_result(line: Line, error: BadField, models: int, wanted: Wanted) -> bytes:
    """The line of output of a line that never became a request.

    Args:
        line: The line of input.
        error: What is wrong with it.
        models: How many models the ensemble has.
        wanted: What the line has beside the text.
    """
    failed = Completion("", b"", [], "error", error=str(error), stats=Stats(agreed=[0] * models))
    return encode_result(line, failed, error.kind, wanted)


def logprobs(trace: list[TraceStep]) -> list[float | None]:
    """The logarithm of the probability of what was chosen, one per step; None where the step gives it no probability.

    In a step that several models decided, it is the ensemble's probability; with SpecFuse, a step is a segment.
    """
    found: list[float | None] = []
    for step in trace:
        probs = [
            p
            for i, (candidate, p) in enumerate(zip(step.candidates, step.probs, strict=True))
            if candidate == step.chosen and (step.segment is None or i == step.segment.winner)
        ]
        found.append(math.log(probs[0]) if probs and probs[0] > 0 else None)
    return found


def _step(step: TraceStep) -> dict[str, Any]:
    return _plain(step._asdict() | {"segment": None if step.segment is None else step.segment._asdict()})


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text with ``\\xhh`` for what is not UTF-8, null for infinities and NaN."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
