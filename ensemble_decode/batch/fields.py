"""The fields of a line: from JSON to a request, and from a result back to JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ensemble_decode.batch.source import Line
from ensemble_decode.decode.prompts import check_prompt_type
from ensemble_decode.decode.requests import BatchRequest, as_stops, check_max_new_tokens, check_seed
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.methods import Method
from ensemble_decode.methods.flags import METHOD_OPTIONS, build_method
from ensemble_decode.methods.options import parse_method
from ensemble_decode.outputs import Completion, ErrorKind, Stats
from ensemble_decode.sampling import Sampling

_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "sample_top_k": "top_k", "min_p": "min_p"}
READ = ("prompt", "messages", "max_new_tokens", "stop", "seed", *_SAMPLING, "method", "settings")
WRITTEN = ("line", "text", "token_ids", "finish_reason", "stop_reason", "stats", "error", "error_kind")
# what depends on the batch a row ran in has no place in a file that is to be the same after every restart
_VOLATILE = ("forwarded", "forward_seconds", "fusion_seconds", "host_seconds", "first_segment_seconds")
STATS = tuple(f.name for f in fields(Stats) if f.name not in _VOLATILE)


class BadField(InputError):
    """A field of a line that cannot be used; ``kind`` says which sort of error row it makes."""

    def __init__(self, message: str, kind: ErrorKind = "field") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Defaults:
    """The run's own settings, which a line's fields change: ``options`` of ``method`` in the words of the command line."""

    method: str = "unite"
    options: Mapping[str, Any] | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def build(self) -> Method:
        return build_method(self.method, dict(self.options)) if self.options else parse_method(self.method)


def as_request(line: Line, defaults: Defaults) -> BatchRequest:
    """The request of a line, with the line as its tag. Raises ``BadField``."""
    given = line.fields
    if given is None:
        raise BadField(line.error or "the line cannot be read", "line")
    clash = [name for name in WRITTEN if name in given and f"input_{name}" in given]
    if clash:
        raise BadField(
            f"the field {clash[0]!r} would be written as 'input_{clash[0]}', which the line has too; rename one"
        )
    prompt = _prompt(given)
    try:
        return BatchRequest(
            prompt,
            max_new_tokens=check_max_new_tokens(given["max_new_tokens"]) if "max_new_tokens" in given else None,
            stop=as_stops(given["stop"]) if "stop" in given else None,
            seed=check_seed(given["seed"]) if "seed" in given else None,
            sampling=_sampling(given, defaults.sampling),
            method=_method(given, defaults),
            row_id=line.number - 1,
            tag=line,
        )
    except BadField:
        raise
    except (EnsembleError, TypeError, ValueError, AttributeError) as error:
        raise BadField(str(error)) from error


def _prompt(given: Mapping[str, Any]) -> Any:
    if ("prompt" in given) == ("messages" in given):
        how = "both" if "prompt" in given else "neither"
        raise BadField(f"a line has a 'prompt' or 'messages'; this one has {how}", "prompt")
    if "messages" in given:
        messages = given["messages"]
        if not isinstance(messages, list):
            raise BadField(f"'messages' must be a list of chat messages, got {type(messages).__name__}", "prompt")
        prompt: Any = messages
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


def _sampling(given: Mapping[str, Any], run: Sampling) -> Sampling | None:
    own = {name: given[key] for key, name in _SAMPLING.items() if key in given}
    for name, value in own.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadField(f"{name} must be a number, got {value!r}")
    # the run's seed stays the run's: it is keyed by the line's number
    return Sampling(**({name: getattr(run, name) for name in _SAMPLING.values()} | own)) if own else None


def _method(given: Mapping[str, Any], defaults: Defaults) -> Method | None:
    if "method" not in given and "settings" not in given:
        return None
    name, settings = given.get("method", defaults.method), given.get("settings", {})
    if not isinstance(name, str) or name not in METHOD_OPTIONS:
        raise BadField(f"'method' must be one of {', '.join(METHOD_OPTIONS)}, got {name!r}")
    if not isinstance(settings, dict):
        raise BadField(f"'settings' must be an object of the method's options, got {type(settings).__name__}")
    known = {option.replace("-", "_"): option for options in METHOD_OPTIONS.values() for option in options}
    for option in settings:
        if option not in known:
            raise BadField(f"'settings' has {option!r}, which is no option of any method; there are {', '.join(known)}")
    own = {known[option]: tuple(v) if isinstance(v, list) else v for option, v in settings.items()}
    if "draft-length" in own:
        own["draft-length"] = str(own["draft-length"])
    base = dict(defaults.options or {}) if name == defaults.method else {}
    return build_method(name, base | own)


def encode_result(line: Line, completion: Completion, kind: ErrorKind | None, *, ids: bool) -> bytes:
    """One line of output: the input's fields, and what became of them.

    A field of the input that has the name of one of the output's is written as ``input_<name>``.
    """
    out: dict[str, Any] = {"line": line.number}
    for name, value in (line.fields or {}).items():
        out[f"input_{name}" if name in WRITTEN else name] = value
    out["text"] = completion.text
    if ids:
        out["token_ids"] = completion.token_ids
    out["finish_reason"] = completion.finish_reason
    out["stop_reason"] = completion.stop_reason
    out["stats"] = {name: getattr(completion.stats, name) for name in STATS}
    out["error"] = completion.error
    out["error_kind"] = kind
    try:
        return json.dumps(out, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate in a field that is carried through
        return json.dumps(out).encode() + b"\n"


def error_result(line: Line, error: BadField, models: int, *, ids: bool) -> bytes:
    """The line of output of a line that never became a request."""
    stats = Stats(agreed=[0] * models)
    failed = Completion("", b"", [], "error", error=str(error), stats=stats)
    return encode_result(line, failed, error.kind, ids=ids)
