"""Segments: every active model of every row writes a few tokens of its own, in shared forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row


@dataclass
class Segment:
    """What one model wrote for one row in one round.

    ``ids`` with their ``pieces`` (``b""`` for END, which is then the last) and probabilities; ``logits[j]``: those that token j was
    chosen from; ``start``: the model's ids before it, prompt included. All ids but the last have been forwarded.
    """

    row: Row
    model: int
    start: int
    ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False

    @property
    def text(self) -> bytes:
        return b"".join(self.pieces)

    def drop_last(self) -> None:
        for kept in (self.ids, self.pieces, self.probs, self.logits):
            kept.pop()
        self.ended = False


def write_segments(
    engine: Engine, rows: Sequence[Row], active: Sequence[Sequence[int]], length: int
) -> list[list[Segment]]:
    """Let the ``active`` models of every row extend it by up to ``length`` tokens each, greedily or sampled, stopping after END.

    A segment also ends where its model's context is full, and is shortened until the context of every active model can
    hold it or one token is left. A row with logits that cannot be chosen from fails. Per row the segments of its active
    models, in their order.
    """
    segments = [[Segment(row, m, row.total(m)) for m in models] for row, models in zip(rows, active, strict=True)]
    live: dict[int, list[Segment]] = {}
    for made in segments:
        for segment in made:
            live.setdefault(segment.model, []).append(segment)
    logits = {m: engine.next_logits(m, [s.row for s in going]) for m, going in sorted(live.items())}
    while logits:
        # every model's forward is launched before any result is read: models on different devices run side by side
        going = {m: _choose(engine, m, live[m], logits[m], length) for m in logits}
        live = {m: [s for s in left if not s.row.finished] for m, left in going.items()}
        logits = {
            m: engine.extend(m, [s.row for s in left], [s.ids[-1:] for s in left], "last").values
            for m, left in live.items()
            if left
        }
    for made in segments:
        for segment in made:
            while len(segment.ids) > 1 and segment.row.overfull_with(segment.text):
                segment.drop_last()
    return segments


def _choose(engine: Engine, m: int, live: Sequence[Segment], logits: torch.Tensor, length: int) -> list[Segment]:
    """Give every segment of one model its next token; those that go on."""
    # the generator counts the model's own ids, so that it draws alike in whatever company
    ahead = [len(s.row.ids[m]) - s.row.length + len(s.ids) for s in live]
    choices = engine.choose(m, [s.row for s in live], logits, ahead)
    going = []
    for i, (segment, choice) in enumerate(zip(live, choices, strict=True)):
        if segment.row.finished:  # another model has failed it in this very step
            continue
        if choice is None:
            engine.fail(segment.row, m, logits[i])
            continue
        segment.ids.append(choice.id)
        segment.probs.append(choice.prob)
        segment.logits.append(logits[i])
        segment.ended = choice.id in engine.eos[m]
        segment.pieces.append(b"" if segment.ended else engine.vocab.models[m].token_bytes[choice.id])
        full = segment.start + len(segment.ids) >= segment.row.context_lengths[m]
        if len(segment.ids) < length and not segment.ended and not full:
            going.append(segment)
    return going
