"""Which tokens of a draft stand: the verdicts of SAFE (arXiv 2510.15346, equation 4 and appendix H)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ensemble_decode import kernels
from ensemble_decode.methods.base import BaseMethod, StepContext
from ensemble_decode.methods.safe.reading import Proposal
from ensemble_decode.methods.sharpen import Sharpen
from ensemble_decode.sampling import ACCEPT, draw_residual, filtered_probs, uniform

_BLOCK = 16  # positions whose whole distributions are in memory at a time

Place = tuple[Proposal, int]
"""A draft and one of its safe positions."""


class Verdict(NamedTuple):
    """What becomes of the draft token at one place.

    Attributes:
        stands: Whether it stands.
        cid: The candidate drawn in its place; None where the base method is to choose.
    """

    stands: bool
    cid: int | None = None


@dataclass(frozen=True)
class Rejection:
    """The first safe position of a draft that does not stand.

    Attributes:
        at: The position.
        failed: A verifier whose logits there nothing can be chosen from.
        cid: The candidate drawn in its place; None where the base method is to choose.
    """

    at: int
    failed: int | None = None
    cid: int | None = None


def first_rejections(
    context: StepContext,
    proposals: Sequence[Proposal],
    base: BaseMethod,
    sharpen: Sharpen,
    test: BaseMethod | None,
) -> list[Rejection | None]:
    """Judge drafts that every verifier has read: per draft its first rejection, None where all of it stands.

    Args:
        context: The engine.
        proposals: The drafts.
        base: The method that acts at rejected positions; sampled, its distribution judges.
        sharpen: Of that distribution.
        test: None: the paper's test. Otherwise tokens stand where this gated method would leave the choice to the
            primary.
    """
    places = [(proposal, j) for proposal in proposals for j in proposal.safe]
    if not places:
        return [None] * len(proposals)
    _read(context, places)
    acts = [True] * len(places) if test is None else _acts(context, places, test)
    if not context.sampling.greedy:
        verdicts = speculate(context, places, base, sharpen)
    elif test is None:
        verdicts = agree(context.row_weights([proposal.row for proposal, _ in places]).tolist(), places)
    else:
        verdicts = [Verdict(False)] * len(places)
    known = {place: v if a else Verdict(True) for place, v, a in zip(places, verdicts, acts, strict=True)}
    return [_first(proposal, known) for proposal in proposals]


def _first(proposal: Proposal, verdicts: dict[Place, Verdict]) -> Rejection | None:
    for j in proposal.safe:
        verdict, failed = verdicts[proposal, j], proposal.failed(j)
        if failed is not None or not verdict.stands:
            return Rejection(j, failed, verdict.cid)
    return None


def logits_at(context: StepContext, places: Sequence[Place]) -> list[torch.Tensor]:
    """Every model's logits at the given places: one [R, V_m] per model."""
    own = torch.stack([proposal.logits[j] for proposal, j in places])
    verifiers = range(1, len(context.devices))
    return [own, *(torch.stack([proposal.readings[m].logits[j] for proposal, j in places]) for m in verifiers)]


def _read(context: StepContext, places: Sequence[Place]) -> None:
    """Note each verifier's probability of the token it has at every place, and whether that is its argmax."""
    for m in range(1, len(context.devices)):
        with context.time_fusion():
            logits = torch.stack([proposal.readings[m].logits[j] for proposal, j in places])
            targets = [proposal.readings[m].target(j) for proposal, j in places]
            checked = kernels.verify_draft(
                logits,
                torch.tensor(targets, dtype=torch.int32, device=logits.device),
                context.tensors.allowed[m],
                context.tensors.eos_ids[m],
            )
            probs, tops, flags = (t.tolist() for t in (checked.target_prob, checked.is_argmax, checked.flags))
        for (proposal, j), prob, top, flag in zip(places, probs, tops, flags, strict=True):
            reading = proposal.readings[m]
            reading.prob[j], reading.is_argmax[j] = prob, top
            if flag:
                reading.failed.add(j)


def agree(weights: Sequence[Sequence[float]], places: Sequence[Place]) -> list[Verdict]:
    """The paper's test (equation 4): unanimity, or a weighted probability above 1/2. ``weights``: of each place's
    row."""
    verdicts = []
    for (proposal, j), w in zip(places, weights, strict=True):
        readings = proposal.readings.items()
        unanimous = all(reading.is_argmax[j] for _, reading in readings)
        # w_0 P_0(t_j) + sum_v w_v P_v(x_v)
        mass = w[0] * proposal.probs[j] + sum(w[m] * reading.prob[j] for m, reading in readings)
        verdicts.append(Verdict(unanimous or mass > 0.5))
    return verdicts


def _acts(context: StepContext, places: Sequence[Place], test: BaseMethod) -> list[bool]:
    """Whether a gated method would let the ensemble act at each place."""
    with context.time_fusion():
        rows = [proposal.row for proposal, _ in places]
        tested: list[bool] = test.fuse(context, rows, logits_at(context, places), draw=False).ensembled.tolist()
    return tested


def speculate(context: StepContext, places: Sequence[Place], base: BaseMethod, sharpen: Sharpen) -> list[Verdict]:
    """Speculative sampling (appendix H): accept with min(1, E / P_0), else draw from the residual max(E - P_0, 0)."""
    with context.time_fusion():
        blocks = [places[at : at + _BLOCK] for at in range(0, len(places), _BLOCK)]
        return [verdict for block in blocks for verdict in _speculate(context, block, base, sharpen)]


def _speculate(context: StepContext, places: Sequence[Place], base: BaseMethod, sharpen: Sharpen) -> list[Verdict]:
    tables, sampling = context.tensors, context.sampling
    rows, logits = [proposal.row for proposal, _ in places], logits_at(context, places)
    e = base.distribution(context, rows, logits, sharpen)
    present, cids = e.cids >= 0, e.cids.clamp_min(0)

    # E(c) and P_0(c) of every candidate, after temperature and filters; P_0(END) is the mass of all EOS ids.
    keys = context.sampling_keys(rows, [j for _, j in places])
    ensemble = filtered_probs(e.probs.log(), None, sampling, keys)
    by_id = filtered_probs(logits[0], tables.allowed[0], sampling, keys)
    ids = tables.exact_id[0].long()[cids]
    primary = by_id.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, 0.0)
    end = by_id[:, tables.eos_ids[0].long()].sum(-1, keepdim=True)
    primary = torch.where(cids == tables.size - 1, end, primary).masked_fill(~present, 0.0)

    # E(t) and P_0(t) of the draft token t. Where t is no candidate, E(t) = 0.
    tokens = torch.tensor([proposal.ids[j] for proposal, j in places], device=by_id.device)
    is_t = present & (cids == tables.to_cid[0].long()[tokens].unsqueeze(1))
    e_t = torch.where(is_t, ensemble, 0.0).sum(-1)
    p_t = torch.where(is_t, primary, 0.0).sum(-1)
    p_t = torch.where(is_t.any(-1), p_t, by_id.gather(1, tokens.unsqueeze(1)).squeeze(1))

    # t stands where u < E(t) / P_0(t), u uniform on (0, 1); else c is drawn from max(E - P_0, 0), normalised.
    u, place = uniform(keys, ACCEPT), draw_residual((ensemble - primary).clamp_min(0), cids, keys)
    drawn = cids.gather(1, place.clamp_min(0).unsqueeze(1)).squeeze(1)
    stands = (u * p_t < e_t) | (place < 0) | ~e.ensembled  # behind a closed gate P_0 itself is right
    return [Verdict(*verdict) for verdict in zip(stands.tolist(), drawn.tolist(), strict=True)]
