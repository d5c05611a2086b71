"""One row of the batch: what was asked, what it has written, in which slots it sits, and how it ended."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ensemble_decode.decode.row_text import RowText
from ensemble_decode.decode.token_ids import TokenIds
from ensemble_decode.errors import ContextError
from ensemble_decode.methods import Method
from ensemble_decode.outputs import Completion, Delta, ErrorKind, FinishReason, Stats, TraceStep
from ensemble_decode.sampling import Sampling
from ensemble_decode.vocab.aligned import AlignedVocab


@dataclass
class Request:
    """What the caller asked of one row, already tokenized for every model.

    Attributes:
        number: The row's place among its call's prompts.
        prompt_ids: Every model's ids of the prompt; empty for models that take no part.
        max_new_tokens: The most tokens of the primary, END included.
        stops: Stop strings.
        seed_row: The row's number in sampling.
        trace: Whether every step is kept.
        prompt: The prompt as it was given.
        method: This row's own; None: the engine's.
        sampling: This row's own; None: the engine's.
        seed: This row's own; None: that of its sampling.
        weights: This row's own, one per model, sum 1; None: the ensemble's.
    """

    number: int
    prompt_ids: list[list[int]]
    max_new_tokens: int
    stops: Sequence[str | bytes] = ()
    seed_row: int = 0
    trace: bool = False
    prompt: Any = None
    method: Method | None = None
    sampling: Sampling | None = None
    seed: int | None = None
    weights: Sequence[float] | None = None


class Row:
    """One sequence that is being generated.

    A row grows by tokens of the primary (``append_tokens``) or, for methods that set ``retokenize_primary``, by bytes
    (``append_segment``).

    Args:
        request: What was asked.
        vocab: The aligned vocabulary.
        context_lengths: Every model's.
        models: The models that take part, ascending.
        primary: The model whose ids are reported.
        retokenize_primary: Whether the primary's ids, too, are the tokenization of the text.

    Attributes:
        data: The bytes written so far.
        ids: Every model's ids of them.
        held: Per model: so many leading ids of prompt + ids are in its cache, at least.
        slots: The row's slot in every model's cache, None where it has none.
        end_id: The primary's id for END, once it was chosen.
        finish_reason: Why the row ended; None while it runs.
        stop_reason: The stop string as it was given, or the id of END, that ended it.
        error: What went wrong.
        error_kind: Of what kind that is.
        ensembled_at: Indices of tokens that the ensemble chose.
        stats: Counts and times.
        trace: The steps so far, where they are kept.
        state: What the method keeps for this row between its rounds.
    """

    def __init__(
        self,
        request: Request,
        vocab: AlignedVocab,
        context_lengths: Sequence[int],
        models: Sequence[int],
        primary: int = 0,
        retokenize_primary: bool = False,
    ) -> None:
        count = len(vocab.models)
        self.request = request
        self.primary = primary
        self.retokenize_primary = retokenize_primary
        self.context_lengths = context_lengths
        self._vocab = vocab
        self._tokens = TokenIds(vocab, request.prompt_ids, context_lengths, models, primary, retokenize_primary)
        self._text = RowText(request.stops)
        self.data = self._text.data
        self.ids = self._tokens.ids
        self.held = self._tokens.held
        self.slots: list[int | None] = [None] * count
        self.end_id: int | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | bytes | int | None = None
        self.error: str | None = None
        self.error_kind: ErrorKind | None = None
        self.ensembled_at: list[int] = []
        self.stats = Stats(agreed=[0] * count, forwarded=[0] * count, forward_seconds=[0.0] * count)
        self.trace: list[TraceStep] = []
        self.state: object = None
        self._token_ends: list[int] = []  # where each token that the primary emitted ends in ``data``
        self._ensembled_until = 0  # bytes up to the end of the last segment that several models chose among
        self._shown_ids = 0

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def models(self) -> Sequence[int]:
        """The models that still take part."""
        return self._tokens.models

    @property
    def traced(self) -> bool:
        """Whether the caller asked for a trace."""
        return self.request.trace

    @property
    def finished(self) -> bool:
        """Whether the row has ended, well or with an error."""
        return self.finish_reason is not None

    @property
    def length(self) -> int:
        """Tokens of the primary so far, END included."""
        return len(self.ids[self.primary]) + (self.end_id is not None)

    @property
    def room(self) -> int:
        """Tokens of the primary that may still be added before ``max_new_tokens``."""
        return self.request.max_new_tokens - self.length

    def slot(self, m: int) -> int:
        """The slot of model m's cache, while the row runs."""
        slot = self.slots[m]
        assert slot is not None
        return slot

    def prompt(self, m: int) -> list[int]:
        """Model m's ids of the prompt."""
        return self.request.prompt_ids[m]

    def total(self, m: int) -> int:
        """The number of model m's ids, prompt included."""
        return len(self.request.prompt_ids[m]) + len(self.ids[m])

    def pending(self, m: int) -> list[int]:
        """The ids that model m must still run to know what comes next; at least one."""
        return self._tokens.pending(m)

    def spell(self, m: int, data: bytes) -> list[int]:
        """``T_m(data)`` of a text near the row's own, for a model whose ids follow the bytes."""
        return self._tokens.spell(m, data)

    def full_with(self, primary_total: int, draft: bytes) -> bool:
        """Whether a draft would fill some context, the primary then holding ``primary_total`` ids."""
        return self._tokens.full_with(primary_total, self.data, draft)

    def overfull_with(self, draft: bytes) -> bool:
        """Whether the context of some model whose ids follow the bytes could not hold a draft."""
        return self._tokens.overfull_with(self.data, draft)

    # -- growing -----------------------------------------------------------------------------------------------------

    def append_tokens(self, ids: Sequence[int], pieces: Sequence[bytes], *, ensembled: bool = False) -> int:
        """Add tokens of the primary, in order, until one of them ends the row.

        Every other model's ids follow the bytes. The row ends with a stop string, with ``max_new_tokens``, and where a
        context is full.

        Args:
            ids: The tokens' ids.
            pieces: Their bytes.
            ensembled: Whether the ensemble chose them.

        Returns:
            How many of them are in the row now.
        """
        before = len(self.ids[self.primary])
        if len(ids) <= self.room and self._tokens.far_from_full(sum(map(len, pieces))):
            self._append(ids, pieces, ensembled)
        else:
            for token, piece in zip(ids, pieces, strict=True):
                self._append([token], [piece], ensembled)
        return max(0, len(self.ids[self.primary]) - before)

    def _append(self, ids: Sequence[int], pieces: Sequence[bytes], ensembled: bool) -> None:
        if self.finished or not ids:
            return
        own = self.ids[self.primary]
        if ensembled:
            self.ensembled_at.extend(range(len(own), len(own) + len(ids)))
            self.stats.ensembled += len(ids)
        own.extend(ids)
        end = len(self.data)
        for piece in pieces:
            end += len(piece)
            self._token_ends.append(end)
        stopped = self._text.append(b"".join(pieces))
        if stopped:
            self._drop_cut_tokens()
        self._tokens.update(bytes(self.data))
        if stopped:
            self.finish_reason, self.stop_reason = "stop", self._text.stop
        elif self.length >= self.request.max_new_tokens or self._tokens.full():
            self.finish_reason = "length"

    def _drop_cut_tokens(self) -> None:
        """Drop the tokens whose bytes do not lie wholly before a stop string, and what is known of them."""
        keep = sum(end <= len(self.data) for end in self._token_ends)
        self._tokens.cut_primary(keep)
        del self._token_ends[keep:], self.trace[keep:]
        kept = [i for i in self.ensembled_at if i < keep]
        self.stats.ensembled -= len(self.ensembled_at) - len(kept)
        self.ensembled_at = kept

    def append_segment(self, piece: bytes, *, ended: bool, ensembled: bool) -> None:
        """Add bytes, then END where ``ended``; every model's ids become the tokenization of the text.

        The row ends with a stop string, with ``max_new_tokens``, with END, and where a context is full, in this order.

        Args:
            piece: The bytes.
            ended: Whether END follows them.
            ensembled: Whether several models chose among several segments.
        """
        stood = len(self.data)
        stopped = self._text.append(piece)
        self._tokens.update(bytes(self.data))
        limit = self.request.max_new_tokens
        if len(self.ids[self.primary]) > limit:
            self._cut_to(limit, min(stood, len(self.data)))
            self.finish_reason = "length"
        elif stopped:
            self.finish_reason, self.stop_reason = "stop", self._text.stop
        elif len(self.ids[self.primary]) == limit:
            self.finish_reason = "length"
        elif ended:
            self.end(next(iter(self._vocab.models[self.primary].eos_ids), None))
        elif self._tokens.full():
            self.finish_reason = "length"
        if ensembled:
            self._ensembled_until = len(self.data)

    def _cut_to(self, limit: int, floor: int) -> None:
        """Cut the primary's ids to ``limit`` and the text with them, but not its first ``floor`` bytes."""
        pieces = self._vocab.models[self.primary].token_bytes
        ids = self.ids[self.primary][:limit]
        if sum(len(pieces[i]) for i in ids) < floor:
            ids = self.spell(self.primary, bytes(self.data[:floor]))[:limit]
        self.ids[self.primary] = ids
        del self.data[sum(len(pieces[i]) for i in ids) :]

    def drop_model(self, m: int) -> None:
        """Model m takes no further part; the primary's ids are still kept, for they are reported."""
        self._tokens.drop(m)

    def forget_caches(self) -> None:
        """The caches hold nothing of this row: prompt and text are to be read again."""
        self._tokens.forget_caches()
        forget = getattr(self.state, "forget_caches", None)
        if forget is not None:
            forget()

    # -- ending ------------------------------------------------------------------------------------------------------

    def end(self, end_id: int | None, *, ensembled: bool = False) -> None:
        """END was chosen: ``end_id`` is the primary's id for it, None where it has none."""
        if ensembled:
            self.stats.ensembled += 1
            if end_id is not None:
                self.ensembled_at.append(len(self.ids[self.primary]))
        self.end_id = end_id
        self.finish_reason, self.stop_reason = "stop", end_id

    def end_full(self) -> None:
        """Some model's context holds nothing more."""
        self.finish_reason = "length"

    def cancel(self) -> None:
        """Nobody wants the row any more."""
        self.finish_reason = "cancelled"

    def fail(self, message: str, kind: ErrorKind = "model") -> None:
        """End the row with an error."""
        self.finish_reason, self.error, self.error_kind = "error", message, kind

    # -- results -----------------------------------------------------------------------------------------------------

    def delta(self) -> Delta:
        """What became final since the last call: whole characters, and ids that no stop string can take back."""
        shown = self._text.shown
        text, fresh = self._text.show(self.finished)
        ids, first = self.ids[self.primary], self._shown_ids
        self._shown_ids = self._final_ids()
        ensembled = any(first <= i < self._shown_ids for i in self.ensembled_at)
        ensembled |= fresh > 0 and shown < self._ensembled_until
        new = ids[first : self._shown_ids]
        if self.finished and self.end_id is not None:
            ensembled |= bool(self.ensembled_at) and self.ensembled_at[-1] == self._shown_ids
            new = [*new, self.end_id]
        return Delta(text, new, ensembled, self.request.number, self.finish_reason, self.stop_reason, self.error)

    def _final_ids(self) -> int:
        """How many of the primary's ids are final; ids that follow the text are so only at the end."""
        if self.finished:
            return len(self.ids[self.primary])
        final, safe = self._shown_ids, self._text.final(finished=False)
        while final < len(self._token_ends) and self._token_ends[final] <= safe:
            final += 1
        return final

    def completion(self) -> Completion:
        """The row as it stands; asking changes nothing."""
        data = bytes(self.data)
        stats, ensembled_at = _copied(self.stats), list(self.ensembled_at)
        if self.retokenize_primary:
            ensembled_at = self._starting_before(self._ensembled_until)
            stats.ensembled = len(ensembled_at)
        return Completion(
            text=data.decode("utf-8", "replace"),
            data=data,
            token_ids=self.ids[self.primary] + ([self.end_id] if self.end_id is not None else []),
            finish_reason=self.finish_reason or "length",
            stop_reason=self.stop_reason,
            index=self.request.number,
            prompt=self.request.prompt,
            error=self.error,
            error_kind=self.error_kind,
            ensembled_at=ensembled_at,
            stats=stats,
            trace=list(self.trace) if self.request.trace else None,
        )

    def _starting_before(self, offset: int) -> list[int]:
        """Indices of the primary's ids whose bytes start before ``offset``."""
        lengths = [len(self._vocab.models[self.primary].token_bytes[token]) for token in self.ids[self.primary]]
        return [i for i, end in enumerate(accumulate(lengths)) if end - lengths[i] < offset]

    # -- undoing a round ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What a round may change in this row, as it stands."""
        return Snapshot(self)


class Snapshot:
    """A row as it stood before a round, so that a round that ran out of memory leaves no trace in it.

    The ids of models that follow the bytes are found again from the bytes. A method's state is copied by ``copy.copy``.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self._data = bytes(row.data)
        self._ids = list(row.ids[row.primary])
        self._models = row.models
        self._fields: dict[str, Any] = {
            "_token_ends": list(row._token_ends),
            "_ensembled_until": row._ensembled_until,
            "ensembled_at": list(row.ensembled_at),
            "end_id": row.end_id,
            "finish_reason": row.finish_reason,
            "stop_reason": row.stop_reason,
            "error": row.error,
            "error_kind": row.error_kind,
            "state": copy.copy(row.state),
            "trace": list(row.trace),
        }
        self._stats = _copied(row.stats)

    def restore(self) -> None:
        """Put the row back. Nothing of it is in the caches any more; whoever calls this empties them."""
        row = self._row
        for name, value in self._fields.items():
            setattr(row, name, value)
        row.stats = replace(self._stats, forwarded=row.stats.forwarded)  # that was run, whatever became of it
        row._text.restore(self._data)
        row._tokens.restore(self._data, self._ids, self._models)
        row.forget_caches()


def _copied(stats: Stats) -> Stats:
    return replace(stats, **{name: copy.copy(value) for name, value in vars(stats).items()})


def check_prompt(prompt_ids: Sequence[Sequence[int]], context_lengths: Sequence[int], names: Sequence[str]) -> None:
    """Refuse a prompt that leaves no room in some model's context, or that a model sees as nothing at all.

    Args:
        prompt_ids: Every model's ids of the prompt.
        context_lengths: Every model's.
        names: What errors call the models.

    Raises:
        ContextError: With the figures.
    """
    for ids, limit, name in zip(prompt_ids, context_lengths, names, strict=True):
        if not ids:
            raise ContextError(
                f"the prompt is empty for {name}, whose tokenizer adds no BOS token: there is nothing to continue; "
                "give at least one character"
            )
        if len(ids) >= limit:
            raise ContextError(
                f"the prompt has {len(ids)} tokens in {name}, whose context holds {limit}: at most {limit - 1} leave "
                "room for one more"
            )
