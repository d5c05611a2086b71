"""SAFE: the primary drafts, verifiers check, the ensemble acts only where it is safe and needed (arXiv 2510.15346)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from ensemble_decode import kernels
from ensemble_decode.decode.tracing import drafted_steps
from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import BaseMethod
from ensemble_decode.methods.gates import GATE_NAMES, Gate
from ensemble_decode.methods.safe.drafting import Draft, verifications, write_drafts
from ensemble_decode.methods.safe.judging import Rejection, gather, judge_gated, judge_greedy, judge_sampled
from ensemble_decode.methods.safe.lengths import LONGEST, AutoLength
from ensemble_decode.methods.sharpen import Sharpen
from ensemble_decode.methods.unite import UniTE

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row


@dataclass(frozen=True)
class SAFE:
    """Draft, verify, ensemble: one round per row and step (paper, algorithm 1).

    ``base``: the step taken at a rejected position (``UniTE`` or ``GaC``). ``draft_length``: tokens per draft, or ``"auto"``: lengths that
    follow each row's acceptance and the primary's confidence. ``sharpen``: of the ensemble distribution at that position.
    ``test``: None for the paper's test (unanimity, or weighted probability above 1/2), or a gate: a safe position is then
    rejected where the gate is open (``MaxProb``: the primary unsure; ``KL``, ``JS``: the models disagree). ``overlap``: while the
    verifiers read a draft the primary writes the next one, which is dropped where something is rejected; None does so
    where a verifier sits on another device than the primary. The tokens are the same.

    Sampled (paper, appendix H): a draft token stands with probability min(1, E / P_0), a rejected position draws from the
    residual max(E - P_0, 0).
    """

    base: BaseMethod = field(default_factory=UniTE)
    draft_length: int | Literal["auto"] = 5
    sharpen: Sharpen = field(default_factory=Sharpen)
    test: Gate | None = None
    overlap: bool | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.base, "fuse"):
            raise InputError(f"SAFE: base must be UniTE(...) or GaC(...), got {self.base!r}")
        n = self.draft_length
        if n != "auto" and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InputError(f"SAFE: draft_length must be a positive integer or 'auto', got {n!r}")
        if not isinstance(self.sharpen, Sharpen):
            raise InputError(f"SAFE: sharpen must be a Sharpen(...), got {self.sharpen!r}")
        if self.test is not None and type(self.test) not in GATE_NAMES:
            raise InputError(f"SAFE: test must be None, MaxProb, KL or JS, got {self.test!r}")

    @property
    def primary(self) -> int:
        return 0

    @property
    def retokenize_primary(self) -> bool:
        return False

    def models(self, count: int) -> Sequence[int]:
        return range(count)

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        drafts = self._generate(engine, rows)
        jobs = verifications(engine, drafts)
        ahead = self._ahead(engine, drafts, jobs) if self._overlaps(engine) else _run(jobs)
        rejected = self._judge(engine, drafts)
        self._commit(engine, drafts, rejected, {id(draft.before): draft for draft in ahead})

    # -- generate --------------------------------------------------------------------------------------------------

    def _generate(self, engine: Engine, rows: Sequence[Row]) -> list[Draft]:
        """One draft per row: the one written ahead, where it still holds, else a new one."""
        ready = {id(row): State.of(row).ahead for row in rows}
        new = [row for row in rows if ready[id(row)] is None]
        for row in rows:
            State.of(row).ahead = None
        written = {id(draft.row): draft for draft in self._write(engine, new, None)} if new else {}
        drafts = [ready[id(row)] or written.get(id(row)) for row in rows]
        return [draft for draft in drafts if draft is not None]

    def _write(self, engine: Engine, rows: Sequence[Row], after: Sequence[Draft] | None) -> list[Draft]:
        """New drafts; ``after`` drafts that have not been judged yet, these being taken to stand whole."""
        taken = [0] * len(rows) if after is None else [len(draft.ids) for draft in after]
        longest = LONGEST if self.draft_length == "auto" else self.draft_length
        lengths = [min(longest, row.room - t) for row, t in zip(rows, taken, strict=True)]
        return write_drafts(engine, rows, lengths, self._goes_on, after)

    def _goes_on(self, draft: Draft) -> bool:
        if self.draft_length != "auto":
            return True
        rule = State.of(draft.row).auto
        if draft.before is not None:
            rule = rule.after(draft.before.probs, len(draft.before.probs))
        return rule.goes_on(draft.probs)

    def _overlaps(self, engine: Engine) -> bool:
        if self.overlap is not None:
            return self.overlap
        return any(runner.device != engine.device for runner in engine.runners[1:])

    def _ahead(self, engine: Engine, drafts: Sequence[Draft], jobs: Sequence[Callable[[], None]]) -> list[Draft]:
        """Run the verifiers in threads of their own, and write the next drafts meanwhile."""
        with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
            running = [pool.submit(job) for job in jobs]
            able = [draft for draft in drafts if self._continues(draft)]
            ahead = self._write(engine, [draft.row for draft in able], able) if able else []
            for job in running:
                job.result()
        return ahead

    @staticmethod
    def _continues(draft: Draft) -> bool:
        row = draft.row
        return (
            not draft.ended
            and len(draft.ids) < row.room
            and not row.full_with(draft.start + len(draft.ids), draft.text)
        )

    # -- verify ----------------------------------------------------------------------------------------------------

    def _judge(self, engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
        if len(engine.runners) == 1:
            return [None] * len(drafts)
        if not engine.sampling.greedy:
            return judge_sampled(self.base, self.sharpen, engine, drafts)
        if self.test is not None:
            return judge_gated(self.test, getattr(self.base, "top_k", UniTE().top_k), engine, drafts)
        return judge_greedy(engine, drafts)

    # -- ensemble --------------------------------------------------------------------------------------------------

    def _commit(
        self,
        engine: Engine,
        drafts: Sequence[Draft],
        rejected: Sequence[Rejection | None],
        ahead: Mapping[int, Draft],
    ) -> None:
        """Append what stands, then one fused token where something was rejected; drop the rest of the draft."""
        open_: list[tuple[Draft, Rejection]] = []
        for draft, rejection in zip(drafts, rejected, strict=True):
            row, kept = draft.row, len(draft.ids) if rejection is None else rejection.at
            row.stats.drafted += len(draft.ids)
            row.stats.unsafe += len(draft.ids) - len(draft.safe)
            if self.draft_length == "auto":
                state = State.of(row)
                state.auto = state.auto.after(draft.probs, kept)
            held = row.cached[0]
            self._keep(engine, draft, kept)
            if rejection is None and not row.finished and id(draft) in ahead:
                row.cached[0] = held
                State.of(row).ahead = replace(ahead[id(draft)], before=None)
            if rejection is not None and not row.finished:
                if rejection.failed is not None:
                    engine.fail(row, rejection.failed, draft.views[rejection.failed].logits[rejection.at])
                else:
                    open_.append((draft, rejection))
        if open_:
            rows = [draft.row for draft, _ in open_]
            logits = gather(engine, [(draft, rejection.at) for draft, rejection in open_])
            with engine.fusing():
                fused = self.base.fuse(engine, rows, logits, self.sharpen)
                fused = _overridden(engine, fused, [rejection for _, rejection in open_])
            engine.commit(rows, logits, fused)

    def _keep(self, engine: Engine, draft: Draft, kept: int) -> None:
        row, before = draft.row, draft.row.length
        row.cached[0] = min(row.cached[0], draft.start + kept)
        ended = draft.ended and kept == len(draft.ids)
        tokens = kept - ended
        row.commit(draft.ids[:tokens], draft.pieces[:tokens])
        if ended and not row.finished:
            row.end(draft.ids[-1])
        landed = row.length - before
        row.stats.accepted += landed
        row.stats.agreed[0] += landed
        for m, view in draft.views.items():
            row.stats.agreed[m] += sum(view.is_argmax.get(j, False) for j in draft.safe if j < landed)
        if row.request.trace:
            row.trace += drafted_steps(draft.pieces[:landed], draft.probs[:landed], row.ended)


@dataclass
class State:
    """What SAFE keeps per row between rounds: the rule of ``draft_length="auto"`` and a draft written ahead."""

    auto: AutoLength = field(default_factory=AutoLength)
    ahead: Draft | None = None

    def forget_caches(self) -> None:
        """A draft written ahead rests on the caches; without it the same tokens are drafted again."""
        self.ahead = None

    @classmethod
    def of(cls, row: Row) -> State:
        if not isinstance(row.state, cls):
            row.state = cls()
        return row.state


def _run(jobs: Sequence[Callable[[], None]]) -> list[Draft]:
    for job in jobs:
        job()
    return []


def _overridden(engine: Engine, fused: kernels.FuseStep, rejections: Sequence[Rejection]) -> kernels.FuseStep:
    """Put the candidates that sampling has drawn in place of the fused step's own choice."""
    if all(r.cid is None for r in rejections):
        return fused
    cid = torch.tensor([r.cid for r in rejections], dtype=fused.cid.dtype, device=fused.cid.device)
    return fused._replace(cid=cid, primary_id=engine.tensors.piece_id[0][cid.long()])
