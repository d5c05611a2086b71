"""Reference of `fuse_step`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels.reference.fuse_candidates import fuse_candidates
from ensemble_decode.kernels.reference.gather_candidates import gather_ids, read
from ensemble_decode.kernels.reference.numerics import NEG_INF, allowed_bits, first_where, probability, row_max
from ensemble_decode.kernels.reference.topk_stats import topk_stats
from ensemble_decode.kernels.reference.union_topk import candidates, union_topk
from ensemble_decode.kernels.types import FuseSettings, FuseStep, TopkStats, VocabTensors
from torch import Tensor


def fuse_step(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, *, dtype: torch.dtype = torch.float32
) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_step`."""
    stats = [topk_stats(x, k, allowed, dtype=dtype) for x, allowed in zip(logits, vocab.allowed, strict=True)]
    used = torch.arange(k, device=logits[0].device) < settings.top_k.unsqueeze(-1)
    ids = [torch.where(used, s.ids, -1) for s in stats]
    cids, count = union_topk(ids, vocab.to_cid)
    scores = torch.stack([_scores(m, x, cids, vocab, settings, dtype) for m, x in enumerate(logits)])
    scores = torch.where(out_of_reach(cids, vocab), NEG_INF, scores)

    logsumexp = torch.stack([s.logsumexp for s in stats])
    top_cid = torch.stack([top_candidate(m, s, vocab) for m, s in enumerate(stats)])
    fused = fuse_candidates(
        scores, cids, logsumexp, candidates(ids[0], vocab.to_cid[0]), stats[0].values[:, 0], top_cid[0],
        vocab.prefix_end, vocab.space_cid, settings, dtype=dtype,
    )  # fmt: skip
    flags = fused.flags
    for s in stats:
        flags = flags | s.flags
    return FuseStep(
        cid=fused.choice,
        primary_id=primary_ids(fused.choice, fused.ensembled, stats[0].ids[:, 0], logits[0], vocab, dtype),
        cids=cids,
        probs=fused.probs,
        count=count,
        max_prob=fused.max_prob,
        entropy=fused.entropy,
        kl=fused.kl,
        js=fused.js,
        ensembled=fused.ensembled,
        sharpened=fused.sharpened,
        top_cid=top_cid,
        top_prob=torch.stack([probability(s.values[:, 0].to(dtype), s.logsumexp) for s in stats]),
        logsumexp=logsumexp,
        model_entropy=torch.stack([s.entropy for s in stats]),
        flags=flags,
    )


def _scores(
    m: int, logits: Tensor, cids: Tensor, vocab: VocabTensors, settings: FuseSettings, dtype: torch.dtype
) -> Tensor:
    valid = cids >= 0
    at = torch.where(valid, cids, 0)
    exact = (settings.oov == 1).unsqueeze(-1)
    ids = torch.where(valid, torch.where(exact, vocab.exact_id[m][at], vocab.piece_id[m][at]), -1)
    return gather_ids(logits, ids, cids == vocab.size - 1, vocab.eos_ids[m], vocab.allowed[m], dtype)


def top_candidate(m: int, stats: TopkStats, vocab: VocabTensors) -> Tensor:
    """Candidate [B] of model m's own top id: END for any EOS id, −1 where it has none."""
    top = stats.ids[:, 0]
    is_eos = (top.unsqueeze(-1) == vocab.eos_ids[m]).any(-1)
    return torch.where(is_eos, vocab.size - 1, candidates(top, vocab.to_cid[m])).to(torch.int32)


def out_of_reach(cids: Tensor, vocab: VocabTensors) -> Tensor:
    """Which candidates model 0 could emit only by an id that its mask bans: bool [B, U] for `cids` [B or 1, U]."""
    allowed, eos_ids = vocab.allowed[0], vocab.eos_ids[0]
    ids = emitted_ids(cids, vocab).expand(allowed.shape[0] if cids.shape[0] == 1 else cids.shape[0], -1)
    banned = (ids >= 0) & ~allowed_bits(allowed, ids.clamp_min(0).to(torch.int64))
    if eos_ids.shape[0]:
        every = eos_ids.to(torch.int64).expand(ids.shape[0], -1)
        banned = torch.where(cids == vocab.size - 1, ~allowed_bits(allowed, every).any(-1, keepdim=True), banned)
    return banned & (cids >= 0)


def emitted_ids(cids: Tensor, vocab: VocabTensors) -> Tensor:
    """The id that model 0 emits for each candidate but END: its exact id, else its first piece; −1 without either."""
    at = torch.where(cids >= 0, cids, 0)
    exact, piece = vocab.exact_id[0][at], vocab.piece_id[0][at]
    return torch.where(cids >= 0, torch.where(exact >= 0, exact, piece), -1)


def primary_ids(
    choice: Tensor, ensembled: Tensor, top_id: Tensor, logits: Tensor, vocab: VocabTensors, dtype: torch.dtype
) -> Tensor:
    """The id [B] that model 0 emits for `choice`: its own top id where it chose alone, else the id of the candidate."""
    ids = emitted_ids(choice, vocab)
    eos_ids = vocab.eos_ids[0]
    if eos_ids.shape[0]:
        every = eos_ids.to(torch.int64).expand(logits.shape[0], -1)
        scores = read(logits, every, vocab.allowed[0], dtype)
        best = first_where(allowed_bits(vocab.allowed[0], every) & (scores == row_max(scores).unsqueeze(-1)))
        best = best.clamp_max(eos_ids.shape[0] - 1)
        ids = torch.where(choice == vocab.size - 1, eos_ids[best], ids)
    ids = torch.where(ensembled, ids, top_id)
    return torch.where(choice >= 0, ids, -1).to(torch.int32)
