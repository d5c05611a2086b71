"""Which tokens of a draft stand: the verdicts of SAFE (arXiv 2510.15346, equation 4 and appendix H)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ensemble_decode import kernels
from ensemble_decode.methods.base import BaseMethod
from ensemble_decode.methods.gates import GATE_NAMES, Gate
from ensemble_decode.methods.safe.drafting import Draft
from ensemble_decode.methods.sharpen import Sharpen
from ensemble_decode.sampling import ACCEPT, RESIDUAL, filtered_probs, uniform

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine

_BLOCK = 16  # positions whose whole distributions are in memory at a time


@dataclass
class Rejection:
    """The first safe position of a draft that does not stand. ``failed`` names a verifier whose logits there are unusable.

    ``cid`` is the candidate that takes its place where sampling has already drawn it.
    """

    at: int
    failed: int | None = None
    cid: int | None = None


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


def judge_greedy(engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
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


def judge_gated(test: Gate, top_k: int, engine: Engine, drafts: Sequence[Draft]) -> list[Rejection | None]:
    """A gate as the test of disagreement: rejected where it is open."""
    places = _places(drafts)
    opened: dict[tuple[int, int], bool] = {}
    if places:
        _read_views(engine, places)
        with engine.fusing():
            rows = [draft.row for draft, _ in places]
            settings = engine.settings(rows, gate=GATE_NAMES[type(test)], gate_threshold=test.threshold)
            tested = kernels.fuse_step(gather(engine, places), engine.tensors, settings, top_k).ensembled.tolist()
        opened = {(id(draft), j): is_open for (draft, j), is_open in zip(places, tested, strict=True)}
    out: list[Rejection | None] = []
    for draft in drafts:
        at = next((j for j in draft.safe if opened[id(draft), j] or _failed(draft, j) is not None), None)
        out.append(None if at is None else Rejection(at, _failed(draft, at)))
    return out


def judge_sampled(
    base: BaseMethod, sharpen: Sharpen, engine: Engine, drafts: Sequence[Draft]
) -> list[Rejection | None]:
    """Speculative sampling (paper, appendix H): accept with min(1, E / P_0), else draw from the residual."""
    places = _places(drafts)
    verdicts: dict[tuple[int, int], tuple[bool, int]] = {}
    if places:
        _read_views(engine, places)
        with engine.fusing():
            for at in range(0, len(places), _BLOCK):
                block = places[at : at + _BLOCK]
                for (draft, j), verdict in zip(block, _speculate(base, sharpen, engine, block), strict=True):
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


def _speculate(
    base: BaseMethod, sharpen: Sharpen, engine: Engine, places: Sequence[tuple[Draft, int]]
) -> list[tuple[bool, int]]:
    """For each draft token whether it stands, and the candidate drawn from the residual otherwise."""
    t, sampling = engine.tensors, engine.sampling
    rows, logits = [draft.row for draft, _ in places], gather(engine, places)
    e = base.distribution(engine, rows, logits, sharpen)
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
    accept, place = (uniform(keys, word) for word in (ACCEPT, RESIDUAL))
    residual = (wanted - own).clamp_min(0).double().cumsum(-1)
    at = torch.searchsorted(residual, place.unsqueeze(1) * residual[:, -1:], right=True).clamp_max(cids.shape[1] - 1)
    stands = (accept * theirs < ours) | (residual[:, -1] <= 0) | ~e.ensembled
    return list(zip(stands.tolist(), cids.gather(1, at).squeeze(1).tolist(), strict=True))
