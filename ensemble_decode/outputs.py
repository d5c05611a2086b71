"""What a caller gets back: completions, deltas, statistics and traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ensemble_decode.errors import CacheLimitError, ContextError, EnsembleError, InputError, ModelError

FinishReason = Literal["stop", "length", "error", "cancelled"]
# a line that cannot be read; a field with a wrong value; a prompt that cannot be used; one too long for a context;
# logits that
# nothing can be chosen from; memory that does not hold even this row alone
ErrorKind = Literal["line", "field", "prompt", "too_long", "model", "memory"]


@dataclass
class Stats:
    """Counts and times of one row. Seconds are the row's equal share of every round it took part in, so they add up
    over a batch.

    ``agreed[m]`` counts the tokens that model m's own top choice would have been; ``forwarded[m]`` the tokens that
    model m ran through its layers for this row, prompt included, less what was copied from a row that begins alike. Of
    SpecFuse: ``segments[m]`` counts the rounds that model m's draft won, ``active`` the models that took part in each
    round, ``forwards_saved`` the forwards that models which had left would have taken; ``first_segment_seconds`` lie
    between the row's first forward and its first text.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    ensembled: int = 0
    sharpened: int = 0
    unsafe: int = 0
    agreed: list[int] = field(default_factory=list)
    forwarded: list[int] = field(default_factory=list)
    forward_seconds: list[float] = field(default_factory=list)
    fusion_seconds: float = 0.0
    host_seconds: float = 0.0
    segments: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    forwards_saved: int = 0
    first_segment_seconds: float = 0.0


class SegmentRound(NamedTuple):
    """One round of SpecFuse; lists per candidate are in the order of the step's ``candidates``.

    ``active``: the models that drafted and judged. ``ended``, ``drafted_by`` per candidate: whether END follows, and
    whose draft it is (nobody's: a literal). ``scores[i][c]``: the score that model ``active[i]`` gives candidate c.
    ``winner``: a candidate's number. ``quality``, ``exit_probs`` per active model: Q and p of the exit test, at
    temperature ``tau``; ``left``: models that leave here. ``weights`` of all models after the round.
    """

    active: list[int]
    ended: list[bool]
    drafted_by: list[list[int]]
    scores: list[list[float]]
    winner: int
    quality: list[float]
    exit_probs: list[float]
    tau: float
    left: list[int]
    weights: list[float]


class TraceStep(NamedTuple):
    """One choice: the candidates (``b""`` stands for END), their probabilities, what was chosen and what each model
    wanted.

    In a round of SpecFuse the candidates are segments, ``probs`` their scores, ``model_top`` the draft of each active
    model, and ``segment`` has the rest.
    """

    candidates: list[bytes]
    probs: list[float]
    chosen: bytes
    ended: bool
    ensembled: bool
    sharpened: bool
    max_prob: float
    entropy: float
    kl: list[float]
    js: float
    model_top: list[bytes]
    token_id: int | None
    written: bytes
    segment: SegmentRound | None = None


_RAISED: dict[str | None, type[EnsembleError]] = {
    "line": InputError,
    "field": InputError,
    "prompt": InputError,
    "too_long": ContextError,
    "model": ModelError,
    "memory": CacheLimitError,
}


@dataclass
class Completion:
    """The result of one row.

    Attributes:
        text: What was written; U+FFFD only where the bytes are not UTF-8.
        data: The exact bytes of it.
        token_ids: The primary's ids, with its END id last where END ended the row. After a stop string they are the ids
            whose bytes lie wholly before the cut.
        finish_reason: "stop" (END or a stop string), "length" (``max_new_tokens`` or a full context) or "error"; in a
            session also "cancelled".
        stop_reason: The stop string, as it was given; or the primary's EOS id; None otherwise, and for END where the
            primary has no EOS id.
        index: The place of its prompt among the prompts of the call.
        prompt: The prompt, as it was given.
        error: What went wrong, with the row's or model's name; None where nothing did.
        error_kind: The class of the error.
        ensembled_at: Indices into ``token_ids`` of the tokens that several models chose together.
        stats: Counts and times.
        trace: One step per token; None unless it was asked for.
    """

    text: str
    data: bytes
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | bytes | int | None = None
    index: int = 0
    prompt: Any = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    ensembled_at: list[int] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    trace: list[TraceStep] | None = None

    @property
    def ended(self) -> bool:
        """Whether the models ended the text, rather than a stop string or a limit."""
        return self.finish_reason == "stop" and not isinstance(self.stop_reason, (str, bytes))

    def raise_for_error(self) -> Completion:
        """Raise the row's error, if it has one.

        Returns:
            The completion itself, where nothing went wrong.

        Raises:
            InputError: The prompt or a setting of the row could not be used; ``ContextError`` where the prompt was too
                long.
            ModelError: A model gave NaN, or allowed nothing.
            CacheLimitError: The row did not fit into memory alone.
        """
        if self.error is not None:
            raise _RAISED.get(self.error_kind, EnsembleError)(f"prompt {self.index}: {self.error}")
        return self


@dataclass
class Delta:
    """A piece of one row's stream.

    Attributes:
        text: Whole characters that no stop string or roll back can take away any more.
        token_ids: The primary's ids that became final with them.
        ensembled: Whether at least one of these tokens came out of a fusion.
        row: The place of the row's prompt among the prompts of the call.
        finish_reason: Of the row's last delta as in ``Completion``; None before.
        stop_reason: Likewise.
        error: Likewise.
    """

    text: str
    token_ids: list[int]
    ensembled: bool = False
    row: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | bytes | int | None = None
    error: str | None = None
