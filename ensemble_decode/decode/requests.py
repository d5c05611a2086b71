"""What one row of a batch asks for, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ensemble_decode.decode.prompts import Prompt
from ensemble_decode.errors import InputError
from ensemble_decode.methods import Method
from ensemble_decode.outputs import Completion, ErrorKind
from ensemble_decode.settings import Limits, Sampling

Order = Literal["input", "finished"]


@dataclass(frozen=True)
class BatchRequest:
    """A prompt with settings of its own; what is None is the batch's.

    Attributes:
        prompt: As ``generate`` takes it.
        max_new_tokens: The most tokens of the primary.
        stop: Stop strings.
        seed: Makes the row independent of its place: it gives what ``generate`` gives for this prompt alone with that
            seed.
        sampling: How its tokens are chosen.
        method: Which method runs it.
        weight: Of the models: one value per model.
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
    weight: Sequence[float] | None = None
    row_id: int | None = None
    trace: bool = False
    tag: Any = None


@dataclass(frozen=True)
class BatchResult:
    """What became of a request.

    Attributes:
        index: The request's place.
        request: The request.
        completion: Its completion.
        error_kind: Of what kind its error is; None where it has none.
    """

    index: int
    request: BatchRequest
    completion: Completion
    error_kind: ErrorKind | None = None


def check_limits(max_new_tokens: Any = 1, stop: Any = None) -> Limits:
    """Where a text ends, checked.

    Args:
        max_new_tokens: An integer, 1 or more.
        stop: A string, a list of strings, none of them empty, or None.

    Raises:
        InputError: One of them is something else.
    """
    try:
        return Limits(max_new_tokens=max_new_tokens, stop=stop)
    except InputError as error:
        raise InputError(str(error).removeprefix("Limits: ")) from None


def check_max_new_tokens(value: object) -> int:
    """``value`` as a positive int; InputError otherwise."""
    return check_limits(max_new_tokens=value).max_new_tokens


def as_stops(stop: object) -> list[str | bytes]:
    """A stop or several as a list; InputError for anything else and for an empty one."""
    return list(check_limits(stop=stop).stop)


def check_seed(value: object) -> int:
    """``value`` as a seed; InputError otherwise."""
    try:
        seed = Sampling(seed=value).seed  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(str(error).removeprefix("Sampling: ")) from None
    if seed is None:
        raise InputError("seed must be an integer, got None")
    return seed
