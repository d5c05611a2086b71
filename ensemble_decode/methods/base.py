"""What a method is, and what it sees of the engine (``StepContext``) and of a row (``StepRow``).

A method of one's own subclasses ``Method`` and defines ``round``, or subclasses ``BaseMethod`` and defines ``fuse``.
Everything it may use is in this file; docs/methods.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch

from ensemble_decode import kernels
from ensemble_decode.errors import InputError
from ensemble_decode.members.protocol import missing
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen

if TYPE_CHECKING:
    from ensemble_decode.members.protocol import Logits, Member
    from ensemble_decode.members.tree import Tree
    from ensemble_decode.outputs import Stats, TraceStep
    from ensemble_decode.sampling import Keys, Sampling
    from ensemble_decode.vocab.aligned import AlignedVocab


class StepRow(Protocol):
    """What a method sees of one row of the batch."""

    data: bytearray
    """The bytes written so far."""
    ids: list[list[int]]
    """Each model's ids of ``data``: for the primary the ids it emitted, unless the method sets ``retokenize_primary``;
    for every other model the tokenization of ``data``."""
    held: list[int]
    """Per model: so many leading ids of prompt + ``ids[m]`` are in its cache, at least."""
    stats: Stats
    """Counts of this row; a method adds to those that it knows of."""
    trace: list[TraceStep]
    """The steps of ``trace=True``."""
    state: object
    """What the method keeps for this row between its rounds; None at first. ``copy.copy`` of it must be a snapshot that
    later rounds do not change. Where it rests on what the caches hold, it has a method ``forget_caches()``."""
    context_lengths: Sequence[int]
    """Positions that each model's context has."""

    @property
    def models(self) -> Sequence[int]:
        """The models that still take part in this row, ascending."""

    @property
    def traced(self) -> bool:
        """Whether the caller asked for a trace."""

    @property
    def finished(self) -> bool:
        """Whether the row has ended, well or with an error; nothing is added to it any more."""

    @property
    def length(self) -> int:
        """Tokens of the primary so far, END included."""

    @property
    def room(self) -> int:
        """Tokens of the primary that may still be added before ``max_new_tokens``."""

    def prompt(self, m: int) -> list[int]:
        """Model ``m``'s ids of the prompt."""

    def total(self, m: int) -> int:
        """The number of model ``m``'s ids, prompt included."""

    def spell(self, m: int, data: bytes) -> list[int]:
        """Model ``m``'s tokenization of ``data``, a text near the row's own, for a model whose ids follow the bytes."""

    def full_with(self, primary_total: int, draft: bytes) -> bool:
        """Whether the text ``draft`` would fill some context, the primary then holding ``primary_total`` ids."""

    def overfull_with(self, draft: bytes) -> bool:
        """Whether the context of some model whose ids follow the bytes could not hold the text ``draft``."""

    def append_tokens(self, ids: Sequence[int], pieces: Sequence[bytes], *, ensembled: bool = False) -> int:
        """Add tokens of the primary until one of them ends the row; how many of them are in the row now."""

    def append_segment(self, piece: bytes, *, ended: bool, ensembled: bool) -> None:
        """Add bytes, then END where ``ended``; every model's ids become the tokenization of the text."""

    def end(self, end_id: int | None, *, ensembled: bool = False) -> None:
        """END was chosen; ``end_id`` is the primary's id for it, None where it has none."""

    def end_full(self) -> None:
        """Some model's context holds nothing more: the row ends with ``length``."""


class StepContext(Protocol):
    """What a method sees of the engine: the models' logits, fusion, and choices under one sampling.

    Logits arrive on ``device``, the primary's, whatever device a model runs on. Rows are given in any number and order;
    ``m`` is a model's number.
    """

    vocab: AlignedVocab
    """The aligned vocabulary; END is candidate ``vocab.size - 1``."""
    tensors: kernels.VocabTensors
    """The vocabulary's tables on ``device``, as the operators of ``ensemble_decode.kernels`` take them."""
    weights: torch.Tensor
    """The ensemble's weights, f32 [M] on ``device``, sum 1."""
    sampling: Sampling
    """How tokens are chosen."""
    device: torch.device
    """The primary's device."""
    devices: Sequence[torch.device]
    """Every model's device; its length is the number of models."""
    eos: Sequence[frozenset[int]]
    """Every model's EOS ids."""
    allowed: Sequence[torch.Tensor]
    """The ids that each model may emit, bool [V_m] on ``device``."""

    # -- forwards --------------------------------------------------------------------------------------------------

    def next_logits(self, m: int, rows: Sequence[StepRow]) -> torch.Tensor:
        """Model ``m``'s logits [B, V_m] of what comes next in each row.

        Whatever it has not read of prompt and text is read first, in one forward: a model that was not asked for a
        while catches up here.
        """

    def extend(
        self, m: int, rows: Sequence[StepRow], ids: Sequence[Sequence[int]], logits: Literal["last"] | list[int]
    ) -> Logits:
        """Forward drafts: ids behind what model ``m``'s cache holds, which are no part of the rows' texts yet.

        Args:
            m: The model.
            rows: B rows.
            ids: B sequences of at least one id each.
            logits: ``"last"``: those behind each row's last id; or B numbers of trailing ids whose logits are wanted.

        Returns:
            ``values`` [R, V_m] in the order of the rows; those of row i are ``values[starts[i]:starts[i + 1]]``.
        """

    def roll_back(self, m: int, row: StepRow, length: int) -> None:
        """Cut model ``m``'s cache of a row to its first ``length`` positions, once a draft is judged.

        They must be the first of prompt + ``row.ids[m]``. A cache that is shorter already stays as it is.
        """

    def read_trees(self, m: int, rows: Sequence[StepRow], trees: Sequence[Tree]) -> Logits:
        """Model ``m``'s logits behind the wanted nodes of each row's tree of continuations."""

    def keep_paths(
        self, m: int, rows: Sequence[StepRow], trees: Sequence[Tree], paths: Sequence[Sequence[int]]
    ) -> None:
        """Make one path of each row's tree, read just before, part of model ``m``'s cache of the row."""

    def leave(self, row: StepRow, m: int) -> None:
        """Model ``m`` takes no further part in a row; its slot is free for another row."""

    # -- fusion ----------------------------------------------------------------------------------------------------

    def time_fusion(self) -> AbstractContextManager[None]:
        """Counts the time inside as fusion in the rows' ``stats``."""

    def seconds(self) -> float:
        """Seconds since this round began."""

    def settings(
        self,
        rows: Sequence[StepRow],
        *,
        weights: torch.Tensor | None = None,
        draw: bool = True,
        **fields: Any,
    ) -> kernels.FuseSettings:
        """Settings of a fusion, one per row.

        Args:
            rows: B rows.
            weights: f32 [B, M] on ``device``, each row summing to 1; default: ``row_weights``.
            draw: False leaves the call's sampling out: the operator then chooses the most probable candidate.
            fields: Any other field of ``kernels.FuseSettings.make``.
        """

    def row_weights(self, rows: Sequence[StepRow]) -> torch.Tensor:
        """The weights of each row, f32 [B, M] on ``device``, each row summing to 1: its request's own, or the
        ensemble's."""

    def sampling_keys(self, rows: Sequence[StepRow], ahead: Sequence[int] | None = None) -> Keys:
        """The random generator's keys for the token ``ahead[i]`` (default 0) places behind the next one of row i."""

    # -- choices ---------------------------------------------------------------------------------------------------

    def top_alone(self, m: int, logits: torch.Tensor, rows: Sequence[StepRow]) -> kernels.TopkStats:
        """Model ``m``'s most probable ids: one, or as many as a trace shows where one of ``rows`` is traced."""

    def choose(
        self, m: int, rows: Sequence[StepRow], logits: torch.Tensor, ahead: Sequence[int]
    ) -> list[Choice | None]:
        """Model ``m``'s own choice from each row of ``logits`` [B, V_m], greedy or sampled; the rows stay as they are.

        Args:
            m: The model.
            rows: B rows.
            logits: [B, V_m].
            ahead: How many places behind its row's next token each choice is, for the random generator.

        Returns:
            B choices; None where nothing can be chosen.
        """

    def commit_alone(self, m: int, rows: Sequence[StepRow], logits: torch.Tensor, tops: kernels.TopkStats) -> None:
        """Give each row model ``m``'s own choice from ``logits`` [B, V_m]; ``tops`` are its ``top_alone``."""

    def commit(
        self,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        fused: kernels.FuseStep,
        *,
        chosen: Sequence[int] | None = None,
        whole: Callable[[], Distribution] | None = None,
    ) -> None:
        """Give each row the token that a fusion chose, or the primary's own choice where the gate stayed closed.

        Args:
            rows: B rows.
            logits: Every model's [B, V_m], from which a row that cannot go on is told why.
            fused: What the operator returned.
            chosen: B candidates drawn by the caller, in place of the fusion's choice.
            whole: The distribution that the choice was made from, for a trace whose chosen candidate is not among
                ``fused.cids``.
        """

    def fail(self, row: StepRow, m: int, logits: torch.Tensor) -> None:
        """End a row with an error: nothing can be chosen from model ``m``'s ``logits`` [V_m], and they say why."""


class Choice(NamedTuple):
    """What one model alone would write next.

    Attributes:
        id: The model's id.
        prob: Its probability; END: of all EOS ids of the model together.
    """

    id: int
    prob: float


class Distribution(NamedTuple):
    """What one step chooses from.

    Attributes:
        cids: Candidates, i64 [B, U], padded with −1.
        probs: Their probabilities, f32 [B, U], before temperature and filters.
        ensembled: Whether the gate was open, bool [B].
    """

    cids: torch.Tensor
    probs: torch.Tensor
    ensembled: torch.Tensor


class Method(ABC):
    """A way for several models to write one text, in rounds.

    It holds settings only; what belongs to a row lies in ``row.state``.

    Two methods that are equal (``==``) share their forwards, so a method of one's own is best a frozen dataclass.
    """

    @property
    def primary(self) -> int:
        """The model whose ids are reported, and counted by ``max_new_tokens``."""
        return 0

    @property
    def retokenize_primary(self) -> bool:
        """Whether the primary's ids follow the text, too: True for methods that use ``append_segment``."""
        return False

    def models(self, count: int) -> Sequence[int]:
        """The models that take part, out of ``count``, ascending; all of them unless overridden.

        Raises:
            InputError: The method cannot run with so many models.
        """
        return range(count)

    @property
    def needs(self) -> Sequence[str]:
        """Names of ``members.protocol.Capabilities`` that every model must have."""
        return ("rollback", "full_logits")

    @abstractmethod
    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """Advance every row by at least one byte, or end it, in forwards that the rows share."""


class BaseMethod(Method):
    """A method that chooses one token a step from every model's logits; SAFE takes it as its base."""

    @property
    def alone_from(self) -> float | None:
        """From this top probability on, the primary's own choice stands and no other model is run; None: never."""
        return None

    @abstractmethod
    def fuse(
        self,
        context: StepContext,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        sharpen: Sharpen = NO_SHARPEN,
        *,
        draw: bool = True,
    ) -> kernels.FuseStep:
        """Choose a candidate for every row.

        Args:
            context: The engine.
            rows: B rows.
            logits: One [B, V_m] per model, on the primary's device.
            sharpen: How to sharpen the ensemble's distribution.
            draw: False: the most probable candidate, whatever the sampling; the caller draws.
        """

    def distribution(
        self, context: StepContext, rows: Sequence[StepRow], logits: Sequence[torch.Tensor], sharpen: Sharpen
    ) -> Distribution:
        """The whole distribution that ``fuse`` chooses from, which may return only the most probable part of it."""
        fused = self.fuse(context, rows, logits, sharpen, draw=False)
        return Distribution(fused.cids.long(), fused.probs, fused.ensembled)

    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """One step of every row; models that are not run catch up later, several tokens in one forward."""
        first = context.next_logits(0, rows)
        if self.alone_from is not None:
            tops = context.top_alone(0, first, rows)
            with context.time_fusion():
                above = (tops.values[:, 0] - tops.logsumexp).exp() >= self.alone_from
                sure = (above | (tops.flags != 0)).tolist()
            closed = [i for i, s in enumerate(sure) if s]
            if closed:
                picked = kernels.TopkStats(*(t[closed] for t in tops))
                context.commit_alone(0, [rows[i] for i in closed], first[closed], picked)
            opened = [i for i, s in enumerate(sure) if not s]
            if not opened:
                return
            rows, first = [rows[i] for i in opened], first[opened]
        logits = [first, *(context.next_logits(m, rows) for m in range(1, len(context.devices)))]
        with context.time_fusion():
            fused = self.fuse(context, rows, logits)
        context.commit(rows, logits, fused, whole=lambda: self.distribution(context, rows, logits, NO_SHARPEN))


def participants(method: object, members: Sequence[Member]) -> list[int]:
    """The models that take part in a method.

    Raises:
        InputError: It is no method, or it cannot run with these models.
    """
    if not isinstance(method, Method):
        raise InputError(f"method must be a Method such as UniTE() or SAFE(), got {method!r}")
    models = list(method.models(len(members)))
    for m in models:
        lacking = missing(members[m], method.needs)
        if lacking is not None:
            raise InputError(f"{type(method).__name__}: {lacking}")
    return models
