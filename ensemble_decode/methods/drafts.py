"""Drafts: a few tokens that one model writes behind a row's text before anybody has judged them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from ensemble_decode.methods.base import StepContext, StepRow


@dataclass(eq=False)
class Draft:
    """What one model wrote for one row in one round.

    Attributes:
        row: The row.
        model: The model's number.
        start: The model's ids before the draft, prompt included.
        ids: The draft's ids. All but the last have been forwarded.
        pieces: Their bytes; ``b""`` for END, which is then the last.
        probs: Their probabilities.
        logits: ``logits[j]`` [V_m]: those that token j was chosen from.
        ended: Whether the last token is END.
    """

    row: StepRow
    model: int
    start: int
    ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False

    @property
    def text(self) -> bytes:
        """The draft's bytes."""
        return b"".join(self.pieces)

    @property
    def text_from_row(self) -> bytes:
        """The bytes from the row's end to the draft's."""
        return self.text

    def drop_last(self) -> None:
        """Take the last token back."""
        for kept in (self.ids, self.pieces, self.probs, self.logits):
            kept.pop()
        self.ended = False


AnyDraft = TypeVar("AnyDraft", bound=Draft)


def write_drafts(
    context: StepContext,
    drafts: Sequence[AnyDraft],
    logits: Mapping[int, torch.Tensor],
    goes_on: Callable[[AnyDraft], bool],
    *,
    fail_begun: bool,
) -> None:
    """Let every draft grow, greedily or sampled, until its model writes END or ``goes_on(draft)`` is False.

    Each step launches the forwards of all models before it reads any result, so models on different devices run side by
    side. A draft that the context of some model cannot hold loses its last tokens until it fits or one is left.

    Args:
        context: The engine.
        drafts: Empty drafts, at most one per row and model.
        logits: Per model that drafts, those [B, V_m] that its drafts' first tokens are chosen from, in the order of
            ``drafts``.
        goes_on: Whether a draft is to get another token.
        fail_begun: Whether logits that nothing can be chosen from fail the row of a draft that has tokens already;
            otherwise the draft ends there. A row whose first logits are so fails in any case.
    """
    live: dict[int, list[AnyDraft]] = {}
    for draft in drafts:
        live.setdefault(draft.model, []).append(draft)
    while logits:
        going = {m: _choose(context, m, live[m], logits[m], goes_on, fail_begun) for m in logits}
        live = {m: [draft for draft in left if not draft.row.finished] for m, left in going.items()}
        logits = {
            m: context.extend(m, [d.row for d in left], [d.ids[-1:] for d in left], "last").values
            for m, left in live.items()
            if left
        }
    for draft in drafts:
        while len(draft.ids) > 1 and draft.row.overfull_with(draft.text_from_row):
            draft.drop_last()


def _choose(
    context: StepContext,
    m: int,
    live: Sequence[AnyDraft],
    logits: torch.Tensor,
    goes_on: Callable[[AnyDraft], bool],
    fail_begun: bool,
) -> list[AnyDraft]:
    """Give every draft of one model its next token; those that go on."""
    # The generator counts the model's own ids, so that it draws alike in whatever company.
    ahead = [d.start - len(d.row.prompt(m)) - d.row.length + len(d.ids) for d in live]
    choices = context.choose(m, [d.row for d in live], logits, ahead)
    going = []
    for i, (draft, choice) in enumerate(zip(live, choices, strict=True)):
        if draft.row.finished:  # another model has failed it in this very step
            continue
        if choice is None:
            if fail_begun or not draft.text_from_row:
                context.fail(draft.row, m, logits[i])
            continue
        draft.ids.append(choice.id)
        draft.probs.append(choice.prob)
        draft.logits.append(logits[i])
        draft.ended = choice.id in context.eos[m]
        draft.pieces.append(b"" if draft.ended else context.vocab.models[m].token_bytes[choice.id])
        if not draft.ended and goes_on(draft):
            going.append(draft)
    return going
