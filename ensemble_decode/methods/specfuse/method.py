"""SpecFuse: every model drafts the next segment, all models score all of them, the best is kept (arXiv 2412.07380)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from ensemble_decode.members.tree import Tree
from ensemble_decode.methods.base import Method, StepContext, StepRow
from ensemble_decode.methods.drafts import Draft, write_drafts
from ensemble_decode.methods.specfuse.exits import Exit, Standing, comparisons_won, feedback_factor
from ensemble_decode.methods.specfuse.scoring import Ballot, Candidate, score
from ensemble_decode.methods.specfuse.trim import trim_word
from ensemble_decode.outputs import SegmentRound, TraceStep
from ensemble_decode.schema.options import INTEGER, NUMBER, Options

Trim = Literal["word", "none"]


def _literals(value: Any) -> tuple[str | bytes, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("not a list")
    for literal in value:
        if not isinstance(literal, (str, bytes)) or not literal:
            raise ValueError("not text")
        if isinstance(literal, str):
            literal.encode()  # UnicodeEncodeError is a ValueError: half a surrogate pair
    return tuple(value)


Literals = Annotated[
    tuple[str | bytes, ...],
    BeforeValidator(_literals),
    WithJsonSchema(
        {
            "title": "a list of strings or bytes, none of them empty or half a surrogate pair",
            "type": "array",
            "items": {"type": "string", "minLength": 1},
        }
    ),
]


@dataclass(frozen=True)
class SpecFuse(Options, Method):
    """Draft, score each other, keep the best segment, let weak models go: one round per row and step (docs/methods.md).

    Drafts are greedy or sampled, as the call's ``Sampling`` says. Scores are probabilities at temperature 1.

    Args:
        segment_length: Tokens per draft, in its model's own tokens.
        exit_threshold: A model leaves a row where its share of the exit softmax falls below this over the number of
            models at the start; 0 keeps all.
        temperature: The temperature of the exit softmax in the first round; divided by the round, not below 0.05.
        feedback: The learning rate of SpecEM's weights; None leaves the weights as they are.
        trim: ``"word"`` cuts drafts before a last word that may be unfinished, ``"none"`` leaves them whole.
        literals: Further candidates of every round.
    """

    source: ClassVar[str] = "arXiv 2412.07380"
    segment_length: Annotated[int, Field(ge=1), INTEGER] = 10
    exit_threshold: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.5
    temperature: Annotated[float, Field(gt=0), NUMBER] = 0.5
    feedback: Annotated[float, Field(gt=0), NUMBER] | None = None
    trim: Trim = "word"
    literals: Literals = ()

    @property
    def retokenize_primary(self) -> bool:
        """True: segments of other models are no tokens of the primary."""
        return True

    @property
    def needs(self) -> Sequence[str]:
        """Token trees, in which a model reads all candidates at once, beside what every method needs."""
        return (*super().needs, "token_trees")

    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """Every active model drafts, every one scores all drafts, each row gets its best one; weak models leave."""
        active = [list(_standing(context, row).active) for row in rows]
        segments = self._write_segments(context, rows, active)
        ballots = []
        for row, models, drafts in zip(rows, active, segments, strict=True):
            if not row.finished:
                ballot = self._ballot(row, models, drafts)
                if ballot is None:
                    row.end_full()
                else:
                    ballots.append(ballot)
        score(context, ballots)
        settled = [(ballot, self._settle(context, ballot)) for ballot in ballots if not ballot.row.finished]
        _keep_winners(context, settled)

    # -- draft -----------------------------------------------------------------------------------------------------

    def _write_segments(
        self, context: StepContext, rows: Sequence[StepRow], active: Sequence[Sequence[int]]
    ) -> list[list[Draft]]:
        """Per row the drafts of its active models, in their order."""
        segments = [[Draft(row, m, row.total(m)) for m in models] for row, models in zip(rows, active, strict=True)]
        drafts = [draft for made in segments for draft in made]
        logits = {
            m: context.next_logits(m, [draft.row for draft in drafts if draft.model == m])
            for m in sorted({draft.model for draft in drafts})
        }
        write_drafts(context, drafts, logits, self._goes_on, fail_begun=True)
        return segments

    def _goes_on(self, draft: Draft) -> bool:
        full = draft.start + len(draft.ids) >= draft.row.context_lengths[draft.model]
        return len(draft.ids) < self.segment_length and not full

    def _ballot(self, row: StepRow, active: list[int], segments: list[Draft]) -> Ballot | None:
        """Trim the drafts and merge equal ones; None where a draft does not fit every context. Literals that do not are
        left out."""
        merged: dict[tuple[bytes, bool], Candidate] = {}
        for segment in segments:
            text = segment.text
            if self.trim == "word" and not segment.ended:
                text = trim_word(text)
            made = merged.setdefault((text, segment.ended), Candidate(text, segment.ended, []))
            made.drafted_by.append(segment.model)
            row.stats.drafted += len(segment.ids)
        if any(row.overfull_with(candidate.text) for candidate in merged.values()):
            return None
        for literal in self.literals:
            data = literal.encode() if isinstance(literal, str) else literal
            if not row.overfull_with(data):
                merged.setdefault((data, False), Candidate(data, False, []))
        return Ballot(row, active, segments, list(merged.values()))

    # -- choose, exit, feedback ------------------------------------------------------------------------------------

    def _settle(self, context: StepContext, ballot: Ballot) -> int:
        """Append the winner to its row, update the models' standing, let weak models leave; the winner's number."""
        row, standing = ballot.row, _standing(context, ballot.row)
        scores, drafts = ballot.scores(), ballot.drafts()
        weights = [standing.weights[m] for m in ballot.active]
        totals = [
            sum(w * given[c] for w, given in zip(weights, scores, strict=True)) for c in range(len(ballot.candidates))
        ]
        winner = max(range(len(totals)), key=totals.__getitem__)  # the first of equals
        test = standing.record([totals[c] for c in drafts], self.temperature, self.exit_threshold)
        if self.feedback is not None:
            for m, won in zip(ballot.active, comparisons_won(scores, drafts), strict=True):
                standing.weights[m] *= feedback_factor(self.feedback, won, standing.models, standing.rounds)
        standing.renormalise()
        _count(ballot, ballot.candidates[winner], standing)
        if standing.rounds == 1:
            row.stats.first_segment_seconds = context.seconds()
        if row.traced:
            row.trace.append(_trace(ballot, scores, totals, winner, test, standing))
        chosen = ballot.candidates[winner]
        for m in test.left:  # before the text grows: a context that it fills ends the row only where its model stays
            context.leave(row, m)
        row.append_segment(chosen.text, ended=chosen.ended, ensembled=len(ballot.active) > 1)
        return winner


def _standing(context: StepContext, row: StepRow) -> Standing:
    if not isinstance(row.state, Standing):
        row.state = Standing.start(context.row_weights([row])[0].tolist())
        row.stats.segments = [0] * row.state.models
    return row.state


def _keep_winners(context: StepContext, settled: Sequence[tuple[Ballot, int]]) -> None:
    """Bring every cache to its row's new text without running it again: what drafting or scoring has left there
    stays."""
    for m in range(len(context.devices)):
        rows: list[StepRow] = []
        trees: list[Tree] = []
        paths: list[list[int]] = []
        for ballot, winner in settled:
            row = ballot.row
            if row.finished or m not in row.models:
                continue
            i = ballot.active.index(m)
            view = ballot.views[i][winner]
            if view.path:
                rows.append(row)
                trees.append(ballot.trees[i])
                paths.append(view.path)
            else:
                context.roll_back(m, row, view.cached)
        if rows:
            context.keep_paths(m, rows, trees, paths)


def _count(ballot: Ballot, chosen: Candidate, standing: Standing) -> None:
    stats = ballot.row.stats
    stats.active.append(len(ballot.active))
    steps = max(len(segment.ids) for segment in ballot.segments)
    stats.forwards_saved += (standing.models - len(ballot.active)) * (steps + 1)
    if chosen.drafted_by:
        stats.segments[chosen.drafted_by[0]] += 1
        segment = ballot.segments[ballot.active.index(chosen.drafted_by[0])]
        stats.accepted += sum(end <= len(chosen.text) for end in accumulate(map(len, segment.pieces)))


def _trace(
    ballot: Ballot, scores: list[list[float]], totals: list[float], winner: int, test: Exit, standing: Standing
) -> TraceStep:
    candidates = ballot.candidates
    return TraceStep(
        candidates=[candidate.text for candidate in candidates],
        probs=totals,
        chosen=candidates[winner].text,
        ended=candidates[winner].ended,
        ensembled=len(ballot.active) > 1,
        sharpened=False,
        max_prob=totals[winner],
        entropy=0.0,
        kl=[],
        js=0.0,
        model_top=[candidates[c].text for c in ballot.drafts()],
        token_id=None,
        written=candidates[winner].text,
        segment=SegmentRound(
            active=ballot.active,
            ended=[candidate.ended for candidate in candidates],
            drafted_by=[candidate.drafted_by for candidate in candidates],
            scores=scores,
            winner=winner,
            quality=test.quality,
            exit_probs=test.probs,
            tau=test.tau,
            left=test.left,
            weights=list(standing.weights),
        ),
    )
