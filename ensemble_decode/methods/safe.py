"""SAFE: the primary drafts, verifiers check, the ensemble acts only where it is safe and needed (arXiv 2510.15346)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from .. import kernels
from ..errors import InputError
from ..sampling import ACCEPT, RESIDUAL, filtered_probs, uniform
from .base import BaseMethod
from .drafting import Draft, verifications, write_drafts
from .gates import GATE_NAMES, Gate
from .lengths import AutoLength
from .sharpen import Sharpen
from .unite import UniTE

if TYPE_CHECKING:
    from ..engine import Engine
    from ..rows import Row

_BLOCK = 16  # positions whose whole distributions are in memory at a time


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
        taken = [0] * len(rows) if after is None else [len(draft.ids) for draft in after]
        lengths = [min(self._length(row, t), row.room - t) for row, t in zip(rows, taken, strict=True)]
        auto = self.draft_length == "auto"
        return write_drafts(engine, rows, lengths, lambda row, prob: not auto or AutoLength.goes_on(prob), after)

    def _length(self, row: Row, stood: int) -> int:
        """The next draft's length; ``stood`` tokens that have not been judged yet are taken to stand."""
        if self.draft_length != "auto":
            return self.draft_length
        auto = State.of(row).auto
        return auto.after(stood, rejected=False).length if stood else auto.length

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
            return _judge_sampled(self, engine, drafts)
        if self.test is not None:
            return _judge_gated(self, engine, drafts)
        return _judge_greedy(engine, drafts)

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
                state.auto = state.auto.after(kept, rejected=rejection is not None)
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
            engine.trace_tokens(row, draft.pieces[:landed], draft.probs[:landed], row.finish_reason == "end")


@dataclass
class State:
    """What SAFE keeps per row between rounds: the rule of ``draft_length="auto"`` and a draft written ahead."""

    auto: AutoLength = field(default_factory=AutoLength)
    ahead: Draft | None = None

    @classmethod
    def of(cls, row: Row) -> State:
        if not isinstance(row.state, cls):
            row.state = cls()
        return row.state


@dataclass
class Rejection:
    """The first safe position of a draft that does not stand. ``failed`` names a verifier whose logits there are unusable.

    ``cid`` is the candidate that takes its place where sampling has already drawn it.
    """

    at: int
    failed: int | None = None
    cid: int | None = None


def _run(jobs: Sequence[Callable[[], None]]) -> list[Draft]:
    for job in jobs:
        job()
    return []


def gather(engine: Engine, places: Sequence[tuple[Draft, int]]) -> list[torch.Tensor]:
    """Every model's logits at one position of each draft: one [R, V_m] per model."""
    out = [torch.stack([draft.logits[j] for draft, j in places])]
    for m in range(1, len(engine.runners)):
        out.append(torch.stack([draft.views[m].logits[j] for draft, j in places]))
    return out


def _places(drafts: Sequence[Draft]) -> list[tuple[Draft, int]]:
    return [(draft, j) for draft in drafts for j in draft.safe]


def _read_views(engine: Engine, places: Sequence[tuple[Draft, int]]) -> None:
    """Each verifier's probability of the token it has at every safe position, and whether that is its argmax."""
    for m in range(1, len(engine.runners)):
        with engine.fusing():
            logits = torch.stack([draft.views[m].logits[j] for draft, j in places])
            targets = [draft.views[m].targets[j] for draft, j in places]
            checked = kernels.verify_draft(
                logits,
                torch.tensor(targets, dtype=torch.int32, device=logits.device),
                engine.tensors.allowed[m],
                engine.tensors.eos_ids[m],
            )
            probs, tops, flags = (t.tolist() for t in (checked.target_prob, checked.is_argmax, checked.flags))
        for (draft, j), prob, top, flag in zip(places, probs, tops, flags, strict=True):
            view = draft.views[m]
            view.prob[j], view.is_argmax[j] = prob, top
            if flag:
                view.failed.add(j)


def _failed(draft: Draft, j: int) -> int | None:
    return next((m for m, view in draft.views.items() if j in view.failed), None)


def _judge_greedy(engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
    """Unanimity, or weighted probability above 1/2 (paper, equation 4)."""
    places = _places(drafts)
    if places:
        _read_views(engine, places)
    weights = engine.weights.tolist()
    rejected: list[Rejection | None] = []
    for draft in drafts:
        first = None
        for j in draft.safe:
            failed = _failed(draft, j)
            views = draft.views.items()
            mass = weights[0] * draft.probs[j] + sum(weights[m] * view.prob[j] for m, view in views)
            if failed is not None or not (all(view.is_argmax[j] for _, view in views) or mass > 0.5):
                first = Rejection(j, failed)
                break
        rejected.append(first)
    return rejected


def _judge_gated(method: SAFE, engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
    """A gate as the test of disagreement: rejected where it is open."""
    assert method.test is not None
    places = _places(drafts)
    opened: dict[tuple[int, int], bool] = {}
    if places:
        _read_views(engine, places)
        with engine.fusing():
            rows = [draft.row for draft, _ in places]
            settings = engine.settings(rows, gate=GATE_NAMES[type(method.test)], gate_threshold=method.test.threshold)
            k = getattr(method.base, "top_k", UniTE().top_k)
            tested = kernels.fuse_step(gather(engine, places), engine.tensors, settings, k).ensembled.tolist()
        opened = {(id(draft), j): is_open for (draft, j), is_open in zip(places, tested, strict=True)}
    out: list[Rejection | None] = []
    for draft in drafts:
        at = next((j for j in draft.safe if opened[id(draft), j] or _failed(draft, j) is not None), None)
        out.append(None if at is None else Rejection(at, _failed(draft, at)))
    return out


def _judge_sampled(method: SAFE, engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
    """Speculative sampling (paper, appendix H): accept with min(1, E / P_0), else draw from the residual."""
    places = _places(drafts)
    verdicts: dict[tuple[int, int], tuple[bool, int]] = {}
    if places:
        _read_views(engine, places)
        with engine.fusing():
            for at in range(0, len(places), _BLOCK):
                block = places[at : at + _BLOCK]
                for (draft, j), verdict in zip(block, _speculate(method, engine, block), strict=True):
                    verdicts[id(draft), j] = verdict
    out: list[Rejection | None] = []
    for draft in drafts:
        rejection = None
        for j in draft.safe:
            failed = _failed(draft, j)
            stands, cid = verdicts[id(draft), j]
            if failed is not None or not stands:
                rejection = Rejection(j, failed, cid)
                break
        out.append(rejection)
    return out


def _speculate(method: SAFE, engine: Engine, places: Sequence[tuple[Draft, int]]) -> list[tuple[bool, int]]:
    """For each draft token whether it stands, and the candidate drawn from the residual otherwise."""
    t, sampling = engine.tensors, engine.sampling
    rows, logits = [draft.row for draft, _ in places], gather(engine, places)
    e = method.base.distribution(engine, rows, logits, method.sharpen)
    present, cids = e.cids >= 0, e.cids.clamp_min(0)
    wanted = filtered_probs(e.probs.log(), present & (e.probs > 0), sampling)
    drafted = filtered_probs(logits[0], engine.allowed[0], sampling)
    ids = t.exact_id[0].long()[cids]
    own = drafted.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, 0.0)
    eos = drafted[:, t.eos_ids[0].long()].sum(-1, keepdim=True)
    own = torch.where(cids == t.size - 1, eos, own).masked_fill(~present, 0.0)
    tokens = torch.tensor([draft.ids[j] for draft, j in places], device=drafted.device)
    mine = present & (cids == t.to_cid[0].long()[tokens].unsqueeze(1))
    ours, theirs = (torch.where(mine, x, 0.0).sum(-1) for x in (wanted, own))
    theirs = torch.where(mine.any(-1), theirs, drafted.gather(1, tokens.unsqueeze(1)).squeeze(1))
    keys = engine.sampling_keys(rows, [j for _, j in places])
    accept, place = (uniform(sampling.seed or 0, *keys, word) for word in (ACCEPT, RESIDUAL))
    residual = (wanted - own).clamp_min(0).double().cumsum(-1)
    at = torch.searchsorted(residual, place.unsqueeze(1) * residual[:, -1:], right=True).clamp_max(cids.shape[1] - 1)
    stands = (accept * theirs < ours) | (residual[:, -1] <= 0) | ~e.ensembled
    return list(zip(stands.tolist(), cids.gather(1, at).squeeze(1).tolist(), strict=True))


def _overridden(engine: Engine, fused: kernels.FuseStep, rejections: Sequence[Rejection]) -> kernels.FuseStep:
    """Put the candidates that sampling has drawn in place of the fused step's own choice."""
    if all(r.cid is None for r in rejections):
        return fused
    cid = torch.tensor([r.cid for r in rejections], dtype=fused.cid.dtype, device=fused.cid.device)
    return fused._replace(cid=cid, primary_id=engine.tensors.piece_id[0][cid.long()])
