"""What an ensemble asks of a model: the ``Member`` protocol, in terms that any engine can answer.

A member holds rows of tokens in *slots*. It appends tokens to any rows, gives logits where they are asked for, and
forgets the last tokens of any row. Nothing outside ``ensemble_decode/members`` knows more about a model than this file
says. The conformance suite (``ensemble_decode/members/conformance.py``) checks all of it.

Two rules hold everywhere. A call that raises has changed nothing. What a row gets depends on that row alone, whatever
rows are beside it and in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ensemble_decode.members.tree import Tree
from ensemble_decode.vocab.model import ModelVocab


@dataclass(frozen=True)
class Logits:
    """Logits of the positions that were asked for.

    Attributes:
        values: ``[R, V]`` in the member's dtype, on its device; ``V`` is ``vocab.size``. Rows lie in the order of the
            call: row ``r`` has ``values[starts[r]:starts[r + 1]]``, in text order. A member without
            ``Capabilities.full_logits`` gives log-probabilities instead, and −inf for the ids it cannot score.
        starts: ``len(rows) + 1`` offsets into ``values``.
    """

    values: torch.Tensor
    starts: list[int]


@dataclass(frozen=True)
class Capabilities:
    """What a member can do. A method that needs what a member lacks is refused by name before it runs.

    Attributes:
        rollback: ``rollback`` shortens a row to any length. Without it (a recurrent state without snapshots) a row
            keeps its tokens until it is released; ``rollback`` to another length raises ``CacheError``.
        full_logits: Every id of the vocabulary has its logit. Without it (a server that returns its best k) only some
            have log-probabilities, the most probable id always among them.
        token_trees: ``read_trees`` and ``keep_paths`` work.
        common_beginnings: Slots acquired with their ids take over what another slot already holds.
    """

    rollback: bool = True
    full_logits: bool = True
    token_trees: bool = True
    common_beginnings: bool = True


class MemberStats(Protocol):
    """What a member has done since it was made."""

    @property
    def tokens(self) -> int:
        """Token ids forwarded."""

    @property
    def forwards(self) -> int:
        """Calls of the model."""

    @property
    def reused(self) -> int:
        """Token ids that did not have to be forwarded, since another row had begun with them."""

    @property
    def seconds(self) -> float:
        """Seconds spent in forwards. On a GPU, reading it waits for the device."""


@runtime_checkable
class Member(Protocol):
    """One language model with room for rows."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def vocab(self) -> ModelVocab | None:
        """Its vocabulary; None for a member that is used without an ensemble."""

    @property
    def context_length(self) -> int:
        """The most tokens that a row can hold."""

    @property
    def device(self) -> torch.device:
        """Where its logits come out."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its logits."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond extending rows."""

    @property
    def stats(self) -> MemberStats:
        """What it has done so far."""

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Sequence[int] | None = None) -> int:
        """Take a free slot for a new row.

        Args:
            ids: What the row is going to hold. Where another slot begins with enough of them, the new row begins with
                that beginning at once, and later rows may take over from this one. None: nothing is shared.

        Returns:
            The slot. ``length(slot)`` says how many of ``ids`` it already holds; never the last one, whose logits are
            wanted.

        Raises:
            CacheLimitError: No slot is free and the limits allow no further one.
        """

    def take_over(self, slot: int, ids: Sequence[int]) -> int:
        """Look again for the beginning of ``ids`` in other slots, for an empty slot that was acquired with its ids.

        Returns:
            Tokens that the slot has taken over; 0 where it is not empty.
        """

    def release(self, slot: int) -> None:
        """Give a slot back. Raises ``CacheError`` for a slot that is not held."""

    def length(self, slot: int) -> int:
        """Tokens that a slot holds. Raises ``CacheError`` for a slot that is not held."""

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a row.

        Args:
            slot: A held slot.
            length: Tokens that stay, 0 to ``length(slot)``.

        Raises:
            CacheError: The row is shorter than ``length``, the slot is not held, or the member cannot roll back.
        """

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``ids`` that some slot already holds; 0 where too few to be worth a copy."""

    def forget(self) -> None:
        """Let nothing that slots hold now be taken over by other rows, whether they are held or released.

        To be called when weights or adapters change. Rows that are held keep what they hold: release them first.
        """

    # -- reading -------------------------------------------------------------------------------------------------

    def extend(
        self, slots: Sequence[int], new_ids: Sequence[Sequence[int]], logits: str | Sequence[int] = "last"
    ) -> Logits:
        """Append tokens to rows and return logits behind the positions that are asked for.

        Args:
            slots: Held slots, each once, in any order.
            new_ids: Token ids per row, ragged; a row may be empty where nothing is asked of it.
            logits: "last" (one position per row), "all", "none", or per row the number of trailing new positions.

        Returns:
            The logits, rows in the order of ``slots``.

        Raises:
            InputError: A slot appears twice, an id is outside the vocabulary, or more positions are asked for than are
                new.
            ContextError: A row would be longer than ``context_length``.
            CacheError: A slot is not held, or the limits leave no room.
        """

    def read_trees(self, slots: Sequence[int], trees: Sequence[Tree]) -> Logits:
        """Read several continuations of each row at once; the rows stay as they are.

        Args:
            slots: Held slots, each once.
            trees: ``trees[r]`` continues the row in ``slots[r]``.

        Returns:
            The logits behind each tree's ``wanted`` nodes, in that order.

        Raises:
            InputError: A tree forks behind its row's end, or the numbers of slots and trees differ.
            ContextError: A node would lie past ``context_length``.
            CacheError: A slot is not held, or the limits leave no room.
        """

    def keep_paths(self, slots: Sequence[int], trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> None:
        """Make one path of each tree part of its row. Valid after ``read_trees``, until a row is extended again.

        Args:
            slots: The slots of the call of ``read_trees``.
            trees: Its trees.
            paths: Per row the nodes of one path, as ``Tree.add`` returned them. The row is cut at the path's fork
                first.
        """

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def bytes_per_token(self) -> int:
        """Bytes of cache that one token of one row takes; 0 where the member cannot say."""

    @property
    def bytes_allocated(self) -> int:
        """Bytes of cache held now, used or not."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of cache held at once since ``watch_peak``, copies while growing included."""

    def watch_peak(self) -> None:
        """Count ``peak_bytes`` anew from here."""

    @property
    def memory(self) -> int | None:
        """Bytes that the cache may have allocated; None: no limit."""

    def limit_memory(self, limit: int | None) -> None:
        """Set ``memory``. A member whose ``bytes_per_token`` is 0 takes no notice."""

    def limit_peak(self, peak: int) -> None:
        """Keep the cache below ``peak`` bytes at any moment, growing included. Never loosens ``memory``.

        A member whose ``bytes_per_token`` is 0 takes no notice.
        """

    @property
    def limited(self) -> bool:
        """Whether memory or a number of slots bounds the rows it can hold."""

    @property
    def held(self) -> int:
        """Slots that rows hold."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""

    def could_hold(self, rows: int, length: int) -> bool:
        """Whether the limits allow ``rows`` rows of ``length`` tokens; a length past the context counts as the
        context."""

    def make_room(self, rows: int, length: int, *, ahead: int, most: int) -> Mapping[int, int]:
        """Shape the cache for what a round may add, so that no forward has to grow it.

        Args:
            rows: Slots that are needed, those that are held included.
            length: Positions that the longest of them needs.
            ahead: Positions that it is expected to need soon; taken where the limits allow.
            most: Rows that may be wanted later; room for as many is made where it is free.

        Returns:
            Slots that moved, old number to new.

        Raises:
            CacheLimitError: The limits do not allow ``rows`` rows of ``length`` tokens; the message has the figures.
        """

    def free_memory(self) -> None:
        """Let go of all cache memory, where no slot is held."""

    def why_not(self, rows: int, length: int) -> str | None:
        """The figures that make ``could_hold`` false, as an end of a sentence; None where it is true. Changes
        nothing."""


NEEDED = {
    "rollback": "take back the last tokens of a row",
    "full_logits": "give the logits of their whole vocabulary",
    "token_trees": "read several continuations of a row at once (token trees)",
}
"""What a member can do for methods, by the name of its capability, in words that follow "models that"."""


def missing(member: Member, needs: Sequence[str]) -> str | None:
    """Say what a member lacks of the capabilities that a method needs.

    Args:
        member: The member.
        needs: Names of ``Capabilities``; see ``NEEDED``.

    Returns:
        The first thing that it lacks, in words; None where it has all.
    """
    for need in needs:
        if not getattr(member.capabilities, need):
            return f"the method needs models that {NEEDED[need]}; {member.name} cannot"
    return None
