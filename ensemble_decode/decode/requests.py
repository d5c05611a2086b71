"""What one row of a batch asks for, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ensemble_decode.decode.prompts import Prompt
from ensemble_decode.errors import InputError
from ensemble_decode.methods import Method
from ensemble_decode.outputs import Completion, ErrorKind
from ensemble_decode.sampling import Sampling

Order = Literal["input", "finished"]


@dataclass(frozen=True)
class BatchRequest:
    """A prompt with settings of its own; what is None is the batch's.

    Attributes:
        prompt: As ``generate`` takes it.
        max_new_tokens: The most tokens of the primary.
        stop: Stop strings.
        seed: Makes the row independent of its place: it gives what ``generate`` gives for this prompt alone with that seed.
        sampling: How its tokens are chosen.
        method: Which method runs it.
        row_id: Takes the part of the row's place in sampling without a seed of its own.
        trace: Keep every step's candidates.
        tag: Anything; comes back with the result.
    """

    prompt: Prompt
    max_new_tokens: int | None = None
    stop: str | bytes | Sequence[str | bytes] | None = None
    seed: int | None = None
    sampling: Sampling | None = None
    method: Method | None = None
    row_id: int | None = None
    trace: bool = False
    tag: Any = None


@dataclass(frozen=True)
class BatchResult:
    """``completion`` of the request at place ``index``; ``error_kind`` where it failed."""

    index: int
    request: BatchRequest
    completion: Completion
    error_kind: ErrorKind | None = None


def check_max_new_tokens(value: object) -> int:
    """``value`` as a positive int; InputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"max_new_tokens must be a positive integer, got {value!r}")
    return value


def check_seed(value: object) -> int:
    """``value`` as a seed; InputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InputError(f"seed must be an integer in [0, 2**63), got {value!r}")
    return value


def as_stops(stop: object) -> list[str | bytes]:
    """A stop or several as a list; InputError for anything else and for an empty one."""
    stops = [stop] if isinstance(stop, (str, bytes)) else stop
    if stops is None:
        return []
    if not isinstance(stops, Sequence) or not all(isinstance(s, (str, bytes)) and s for s in stops):
        raise InputError(f"stop must be a string or a list of strings, none of them empty; got {stop!r}")
    return list(stops)
