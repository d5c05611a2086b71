"""SAFE: the primary drafts, verifiers check, the ensemble acts only where it is safe and needed (arXiv 2510.15346)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from ensemble_decode.methods.base import BaseMethod, Method, StepContext, StepRow
from ensemble_decode.methods.drafts import write_drafts
from ensemble_decode.methods.gac import GaC
from ensemble_decode.methods.gates import GATES, Gate
from ensemble_decode.methods.safe.draft_lengths import LONGEST, AutoLength
from ensemble_decode.methods.safe.reading import Proposal, readings, roll_back
from ensemble_decode.methods.safe.verdicts import Rejection, first_rejections, logits_at
from ensemble_decode.methods.sharpen import SHARPENINGS, Sharpen
from ensemble_decode.methods.unite import UniTE
from ensemble_decode.outputs import TraceStep
from ensemble_decode.schema.options import FLAG, INTEGER, Choice, Options

BASES = Choice("a base method", {"unite": UniTE, "gac": GaC}, others=BaseMethod)


@dataclass(frozen=True)
class SAFE(Options, Method):
    """Draft, verify, ensemble: one round per row and step (paper, algorithm 1).

    Sampled (paper, appendix H), a draft token stands with probability min(1, E / P_0), and a rejected position draws
    from the residual max(E - P_0, 0).

    Args:
        base: The step taken at a rejected position: ``UniTE``, ``GaC`` or another ``BaseMethod``.
        draft_length: Tokens per draft, or ``"auto"``: lengths that follow each row's acceptance and the primary's
            confidence.
        sharpen: The sharpening of the ensemble's distribution at that position.
        test: None for the paper's test: unanimity, or weighted probability above 1/2. Or a gate: the ensemble then acts
            at the first safe position where the gate is open (``MaxProb``: the primary is unsure; ``KL``, ``JS``: the
            models disagree).
        overlap: Whether the primary writes the next draft while the verifiers read this one; the next draft is dropped
            where something is rejected. None: where a verifier sits on another device than the primary. The tokens are
            the same.
    """

    source: ClassVar[str] = "arXiv 2510.15346"
    base: Annotated[BaseMethod, BASES] = field(default_factory=UniTE)
    draft_length: Annotated[int, Field(ge=1), INTEGER] | Literal["auto"] = 5
    sharpen: Annotated[Sharpen, SHARPENINGS] = field(default_factory=Sharpen)
    test: Annotated[Gate | None, GATES] = None
    overlap: Annotated[bool, FLAG] | None = None

    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """Algorithm 1, for every row at its own pace."""
        # Generate: the primary writes up to n tokens alone, or has done so ahead.
        proposals = self._generate(context, rows)

        # Verify: each verifier reads text + draft in one forward. A position is safe where every verifier has a token
        # edge; the first safe position whose token does not stand is rejected.
        self._read(context, proposals)
        rejections = self._first_rejections(context, proposals)

        # Ensemble: what stands is appended, the rest of the draft goes, and the base method acts at the rejected
        # position on the logits that are there.
        for proposal, rejection in zip(proposals, rejections, strict=True):
            self._append_standing(context, proposal, rejection)
        self._act(context, [(p, r) for p, r in zip(proposals, rejections, strict=True) if r and not p.row.finished])

        for proposal in proposals:
            if not proposal.row.finished:
                roll_back(context, proposal)

    # -- generate --------------------------------------------------------------------------------------------------

    def _generate(self, context: StepContext, rows: Sequence[StepRow]) -> list[Proposal]:
        """A draft per row. A row whose first logits nothing can be chosen from fails and has none."""
        states = [State.of(row) for row in rows]
        fresh = [Proposal(row, 0, row.total(0)) for row, state in zip(rows, states, strict=True) if state.ahead is None]
        if fresh:
            self._write(context, fresh, context.next_logits(0, [draft.row for draft in fresh]))
        written = iter(fresh)
        proposals = [next(written) if state.ahead is None else state.ahead for state in states]
        for state in states:
            state.ahead = None
        return [proposal for proposal in proposals if proposal.ids]

    def _write(self, context: StepContext, drafts: Sequence[Proposal], logits: torch.Tensor) -> None:
        write_drafts(context, drafts, {0: logits}, self._goes_on, fail_begun=False)

    def _goes_on(self, draft: Proposal) -> bool:
        row, before = draft.row, draft.before
        written = len(draft.ids) + (0 if before is None else len(before.ids))
        longest = LONGEST if self.draft_length == "auto" else self.draft_length
        if len(draft.ids) >= longest or written >= row.room:
            return False
        if self.draft_length == "auto":
            rule = State.of(row).auto
            if before is not None:
                rule = rule.after(before.probs, len(before.probs))
            if not rule.goes_on(draft.probs):
                return False
        return not row.full_with(draft.start + len(draft.ids), draft.text_from_row)

    # -- verify ----------------------------------------------------------------------------------------------------

    def _read(self, context: StepContext, proposals: Sequence[Proposal]) -> None:
        """Run the verifiers; overlapped, the primary writes the drafts that follow these meanwhile."""
        forwards = readings(context, proposals)
        overlap = self.overlap
        if overlap is None:
            overlap = any(device != context.device for device in context.devices)
        if not overlap:
            for forward in forwards:
                forward()
            return
        with ThreadPoolExecutor(max_workers=max(1, len(forwards))) as pool:
            running = [pool.submit(forward) for forward in forwards]
            self._write_ahead(context, [proposal for proposal in proposals if _may_continue(proposal)])
            for job in running:
                job.result()

    def _write_ahead(self, context: StepContext, proposals: Sequence[Proposal]) -> None:
        """Write a draft behind each of these, as if all of it stood."""
        if not proposals:
            return
        for p in proposals:
            p.following = Proposal(p.row, 0, p.start + len(p.ids), before=p)
        rows, last = [p.row for p in proposals], [p.ids[-1:] for p in proposals]
        following = [p.following for p in proposals if p.following is not None]
        self._write(context, following, context.extend(0, rows, last, "last").values)

    def _first_rejections(self, context: StepContext, proposals: Sequence[Proposal]) -> list[Rejection | None]:
        if len(context.devices) == 1:
            return [None] * len(proposals)
        test = None if self.test is None else UniTE(getattr(self.base, "top_k", UniTE().top_k), gate=self.test)
        return first_rejections(context, proposals, self.base, self.sharpen, test)

    # -- ensemble --------------------------------------------------------------------------------------------------

    def _append_standing(self, context: StepContext, proposal: Proposal, rejection: Rejection | None) -> None:
        """Append the tokens before the rejection, or all of them, and count what became of the draft."""
        row, state = proposal.row, State.of(proposal.row)
        kept = len(proposal.ids) if rejection is None else rejection.at
        ended = proposal.ended and kept == len(proposal.ids)
        landed = row.append_tokens(proposal.ids[: kept - ended], proposal.pieces[: kept - ended])
        if ended and not row.finished:
            row.end(proposal.ids[-1])
            landed += 1
        row.stats.drafted += len(proposal.ids)
        row.stats.unsafe += len(proposal.ids) - len(proposal.safe)
        row.stats.accepted += landed
        row.stats.agreed[0] += landed
        for m, reading in proposal.readings.items():
            row.stats.agreed[m] += sum(reading.is_argmax.get(j, False) for j in proposal.safe if j < landed)
        if row.traced:
            row.trace += _steps(proposal, landed)
        if self.draft_length == "auto":
            state.auto = state.auto.after(proposal.probs, kept)
        if rejection is None and proposal.following is not None and proposal.following.ids:
            proposal.following.before = None
            state.ahead = proposal.following
        else:
            proposal.following = None
        if rejection is not None and rejection.failed is not None and not row.finished:
            context.fail(row, rejection.failed, proposal.readings[rejection.failed].logits[rejection.at])

    def _act(self, context: StepContext, rejected: Sequence[tuple[Proposal, Rejection]]) -> None:
        """One step of the base method at the rejected positions. Sampled, the residual's draw is the choice."""
        if not rejected:
            return
        rows = [proposal.row for proposal, _ in rejected]
        logits = logits_at(context, [(proposal, rejection.at) for proposal, rejection in rejected])
        drawn = [rejection.cid for _, rejection in rejected if rejection.cid is not None]
        with context.time_fusion():
            fused = self.base.fuse(context, rows, logits, self.sharpen, draw=False)
        context.commit(
            rows,
            logits,
            fused,
            chosen=drawn or None,
            whole=lambda: self.base.distribution(context, rows, logits, self.sharpen),
        )


@dataclass
class State:
    """What SAFE keeps per row between rounds.

    Attributes:
        auto: The rule of ``draft_length="auto"``.
        ahead: A draft written ahead, whose predecessor stood whole.
    """

    auto: AutoLength = field(default_factory=AutoLength)
    ahead: Proposal | None = None

    def forget_caches(self) -> None:
        """A draft written ahead rests on the caches; without it the same tokens are drafted again."""
        self.ahead = None

    @classmethod
    def of(cls, row: StepRow) -> State:
        """The row's state, a new one in its first round."""
        if not isinstance(row.state, cls):
            row.state = cls()
        return row.state


def _may_continue(proposal: Proposal) -> bool:
    row = proposal.row
    if proposal.ended or len(proposal.ids) >= row.room:
        return False
    return not row.full_with(proposal.start + len(proposal.ids), proposal.text)


def _steps(proposal: Proposal, landed: int) -> list[TraceStep]:
    """The trace of the draft's first ``landed`` tokens, each with the primary's probability."""
    steps = []
    for j in range(landed):
        piece, ended = proposal.pieces[j], proposal.ended and j == len(proposal.ids) - 1
        steps.append(
            TraceStep(
                candidates=[piece],
                probs=[proposal.probs[j]],
                chosen=piece,
                ended=ended,
                ensembled=False,
                sharpened=False,
                max_prob=proposal.probs[j],
                entropy=0.0,
                kl=[],
                js=0.0,
                model_top=[piece],
                token_id=proposal.ids[j],
                written=piece,
            )
        )
    return steps
