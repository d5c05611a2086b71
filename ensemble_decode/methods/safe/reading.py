"""How the verifiers read a draft: their own tokens of text + draft, the positions they can judge, one forward each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch

from ensemble_decode.kernels import TARGET_END
from ensemble_decode.methods.base import StepContext
from ensemble_decode.methods.drafts import Draft
from ensemble_decode.vocab.common_prefix import common_prefix


@dataclass
class Reading:
    """One verifier's reading of text + draft.

    Attributes:
        ids: Its ids of text + draft.
        at: The index in ``ids`` of the token that starts at each safe position; the end of the ids where the draft
            ended there.
        cached: So many leading ``ids`` are in its cache since the forward; None: no forward was needed.
        logits: Its logits [V_m] before each safe position.
        prob: Its probability of the token that it has at each safe position.
        is_argmax: Whether that token is its own first choice.
        failed: Safe positions with logits that nothing can be chosen from.
    """

    ids: list[int]
    at: dict[int, int]
    cached: int | None = None
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    prob: dict[int, float] = field(default_factory=dict)
    is_argmax: dict[int, bool] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def target(self, j: int) -> int:
        """The verifier's token at safe position j, ``kernels.TARGET_END`` where the draft ended there."""
        return self.ids[self.at[j]] if self.at[j] < len(self.ids) else TARGET_END


@dataclass(eq=False)
class Proposal(Draft):
    """A draft of the primary and what the verifiers make of it.

    Attributes:
        before: The draft that this one continues, where it was written ahead of that one's verdict.
        following: The draft that continues this one, written ahead of this one's verdict.
        safe: Positions where every verifier has a token edge.
        readings: Per verifier.
    """

    before: Proposal | None = None
    following: Proposal | None = None
    safe: list[int] = field(default_factory=list)
    readings: dict[int, Reading] = field(default_factory=dict)

    @property
    def text_from_row(self) -> bytes:
        """The bytes from the row's end to the draft's."""
        return self.text if self.before is None else self.before.text + self.text

    def failed(self, j: int) -> int | None:
        """A verifier whose logits at safe position j nothing can be chosen from."""
        return next((m for m, reading in self.readings.items() if j in reading.failed), None)


def readings(context: StepContext, proposals: Sequence[Proposal]) -> list[Callable[[], None]]:
    """Spell text + draft for every verifier, find the safe positions, and return the verifiers' forwards.

    Each forward reads what is new to one verifier, in one pass over all rows, and keeps the logits at safe positions.
    Tokens behind the last safe position wait for a later round, for nobody reads what follows them. The forwards touch
    different models, so they may run at the same time.
    """
    for proposal in proposals:
        _spell(context, proposal)
    verifiers = range(1, len(context.devices))
    todo = [proposal for proposal in proposals if proposal.safe]
    return [partial(_forward, context, m, todo) for m in verifiers] if todo else []


def _spell(context: StepContext, proposal: Proposal) -> None:
    row, text = proposal.row, proposal.text
    data = bytes(row.data) + text
    offsets = list(accumulate(map(len, proposal.pieces[:-1]), initial=len(row.data)))
    edges = {}
    for m in range(1, len(context.devices)):
        ids = row.spell(m, data)
        proposal.readings[m] = Reading(ids, {})
        edges[m] = _edges(context.vocab.models[m].token_bytes, ids, len(row.data), len(data))
    proposal.safe = [j for j, at in enumerate(offsets) if all(at in known for known in edges.values())]
    for m, reading in proposal.readings.items():
        reading.at = {j: edges[m][offsets[j]] for j in proposal.safe}


def _edges(token_bytes: Sequence[bytes], ids: Sequence[int], first: int, end: int) -> dict[int, int]:
    """Token edges of a tokenization at or after byte ``first``: offset -> index of the token that starts there."""
    at, edges = end, {end: len(ids)}
    for index in range(len(ids) - 1, -1, -1):
        at -= len(token_bytes[ids[index]])
        if at < first:
            break
        edges[at] = index
    return edges


def _forward(context: StepContext, m: int, todo: Sequence[Proposal]) -> None:
    rows, news, counts = [], [], []
    for proposal in todo:
        row, reading, prompt = proposal.row, proposal.readings[m], proposal.row.prompt(m)
        first, last = reading.at[proposal.safe[0]], reading.at[proposal.safe[-1]]
        agreed = len(prompt) + common_prefix(row.ids[m], reading.ids)
        start = min(row.held[m], agreed, len(prompt) + first - 1)  # the logits before ``first`` are read, too
        context.roll_back(m, row, start)
        ids = reading.ids
        news.append(prompt[start:] + ids[:last] if start < len(prompt) else ids[start - len(prompt) : last])
        counts.append(last - first + 1)
        rows.append(row)
        reading.cached = last
    out = context.extend(m, rows, news, counts)
    for i, proposal in enumerate(todo):
        reading = proposal.readings[m]
        origin = out.starts[i] - reading.at[proposal.safe[0]]
        reading.logits = {j: out.values[origin + at] for j, at in reading.at.items()}


def roll_back(context: StepContext, proposal: Proposal) -> None:
    """Bring every cache of a judged draft's row back to where it agrees with the row's text."""
    row = proposal.row
    if proposal.following is None:
        kept = common_prefix(proposal.ids, row.ids[0][proposal.start - len(row.prompt(0)) :])
        context.roll_back(0, row, proposal.start + kept)
    for m, reading in proposal.readings.items():
        if reading.cached is not None:
            held = common_prefix(reading.ids[: reading.cached], row.ids[m])
            context.roll_back(m, row, len(row.prompt(m)) + held)
