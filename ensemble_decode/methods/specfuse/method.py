"""SpecFuse: every model drafts the next segment, all models score all of them, the best is kept (arXiv 2412.07380)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, get_args

from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import check_choice
from ensemble_decode.methods.specfuse.drafts import Segment, write_segments
from ensemble_decode.methods.specfuse.exit import Exit, Standing, comparisons_won, feedback_factor
from ensemble_decode.methods.specfuse.scoring import Ballot, Candidate, score
from ensemble_decode.methods.specfuse.trim import trim_word
from ensemble_decode.outputs import SegmentRound, TraceStep

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row
    from ensemble_decode.members.tree import Tree

Trim = Literal["word", "none"]


@dataclass(frozen=True)
class SpecFuse:
    """Draft, score each other, keep the best segment, let weak models go: one round per row and step (docs/methods.md).

    ``segment_length``: tokens per draft. ``exit_threshold``: a model leaves a row where its share of the exit softmax falls below
    this over the number of models at the start; 0 keeps all. ``temperature``: of that softmax in the first round, divided by the
    round (not below 0.05). ``feedback``: None, or the learning rate of SpecEM's weights. ``trim``: ``"word"`` cuts drafts before an
    unfinished last word, ``"none"`` nowhere. ``literals``: further candidates of every round, strings or bytes.

    Drafts are greedy or sampled, as the call's ``Sampling`` says; scores are probabilities at temperature 1.
    """

    segment_length: int = 10
    exit_threshold: float = 0.5
    temperature: float = 0.5
    feedback: float | None = None
    trim: Trim = "word"
    literals: tuple[str | bytes, ...] = ()

    def __post_init__(self) -> None:
        n = self.segment_length
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"SpecFuse: segment_length must be a positive integer, got {n!r}")
        if not 0 <= self.exit_threshold <= 1:
            raise InputError(f"SpecFuse: exit_threshold must lie between 0 and 1, got {self.exit_threshold!r}")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(f"SpecFuse: temperature must be a number above 0, got {self.temperature!r}")
        if self.feedback is not None and not (self.feedback > 0 and math.isfinite(self.feedback)):
            raise InputError(f"SpecFuse: feedback must be None or a rate above 0, got {self.feedback!r}")
        check_choice("SpecFuse", "trim", self.trim, get_args(Trim))
        if isinstance(self.literals, (str, bytes)):
            raise InputError(f"SpecFuse: literals must be a tuple of strings or bytes, got {self.literals!r}")
        for literal in self.literals:
            if not isinstance(literal, (str, bytes)) or not literal:
                raise InputError(f"SpecFuse: a literal must be a string or bytes, not empty; got {literal!r}")
        object.__setattr__(self, "literals", tuple(self.literals))  # a list would not hash

    @property
    def primary(self) -> int:
        return 0

    @property
    def retokenize_primary(self) -> bool:
        return True

    def models(self, count: int) -> Sequence[int]:
        return range(count)

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        active = [list(_standing(engine, row).active) for row in rows]
        segments = write_segments(engine, rows, active, self.segment_length)
        ballots = []
        for row, models, drafts in zip(rows, active, segments, strict=True):
            if not row.finished:
                ballot = self._ballot(row, models, drafts)
                if ballot is None:
                    row.finish_reason = "length"
                else:
                    ballots.append(ballot)
        score(engine, ballots)
        settled = [(ballot, self._settle(engine, ballot)) for ballot in ballots if not ballot.row.finished]
        _keep_winners(engine, settled)

    # -- draft -----------------------------------------------------------------------------------------------------

    def _ballot(self, row: Row, active: list[int], segments: list[Segment]) -> Ballot | None:
        """Trim the drafts and merge equal ones; None where a draft does not fit every context. Literals that do not are left out."""
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

    def _settle(self, engine: Engine, ballot: Ballot) -> int:
        """Append the winner to its row, update the models' standing, let those go that leave; the winner's number."""
        row, standing = ballot.row, _standing(engine, ballot.row)
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
            row.stats.first_segment_seconds = time.perf_counter() - engine.clock.started
        if row.request.trace:
            row.trace.append(_trace(ballot, scores, totals, winner, test, standing))
        chosen = ballot.candidates[winner]
        for m in test.left:  # before the text grows: a context that it fills ends the row only where its model stays
            engine.leave(row, m)
        row.append_segment(chosen.text, ended=chosen.ended, ensembled=len(ballot.active) > 1)
        return winner


def _standing(engine: Engine, row: Row) -> Standing:
    if not isinstance(row.state, Standing):
        row.state = Standing.start(engine.weights.tolist())
        row.stats.segments = [0] * row.state.models
    return row.state


def _keep_winners(engine: Engine, settled: Sequence[tuple[Ballot, int]]) -> None:
    """Bring every cache to its row's new text without running it again: what drafting or scoring has left there stays."""
    for m in range(len(engine.runners)):
        rows: list[Row] = []
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
                row.cached[m] = view.cached
        if rows:
            engine.keep_paths(m, rows, trees, paths)


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
