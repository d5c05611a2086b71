"""Reference of `fuse_full`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels.reference.fuse_candidates import decide
from ensemble_decode.kernels.reference.fuse_step import out_of_reach, primary_ids, top_candidate
from ensemble_decode.kernels.reference.numerics import NEG_INF, bounded, log_softmax, masked, probability, select_top
from ensemble_decode.kernels.reference.topk_stats import topk_stats
from ensemble_decode.kernels.reference.union_topk import candidates
from ensemble_decode.kernels.types import Fused, FuseSettings, FuseStep, TopkStats, VocabTensors
from torch import Tensor

BLOCK = 1 << 22
"""Entries of one model's [rows, N] table worked on at a time; bounds memory whatever the batch."""


def fuse_full(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, *, dtype: torch.dtype = torch.float32
) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_full`."""
    rows = logits[0].shape[0]
    widest = max(vocab.size, *(x.shape[1] for x in logits))
    step = max(1, BLOCK // widest)
    blocks = [
        _block(
            [x[at : at + step] for x in logits], _rows(vocab, at, step), settings.rows(slice(at, at + step)), k, dtype
        )
        for at in range(0, max(rows, 1), step)
    ]
    axis = dict.fromkeys(("kl", "top_cid", "top_prob", "logsumexp", "model_entropy"), 1)
    return FuseStep(*(torch.cat([getattr(b, name) for b in blocks], axis.get(name, 0)) for name in FuseStep._fields))


def _rows(vocab: VocabTensors, at: int, step: int) -> VocabTensors:
    return vocab._replace(allowed=[a if a.shape[0] == 1 else a[at : at + step] for a in vocab.allowed])


def full_distribution(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int
) -> tuple[Tensor, Tensor]:
    """See `ensemble_decode.kernels.full_distribution`."""
    fused = _decided(
        logits, vocab, settings._replace(temperature=torch.zeros_like(settings.temperature)), k, torch.float32
    )[0]
    return fused.probs, fused.ensembled


def _block(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, dtype: torch.dtype
) -> FuseStep:
    fused, stats, logsumexp, top_cid, top_prob = _decided(logits, vocab, settings, k, dtype)
    best, cids = select_top(torch.where(fused.probs > 0, fused.probs, NEG_INF), k)
    flags = fused.flags
    for s in stats:
        flags = flags | s.flags
    return FuseStep(
        cid=fused.choice,
        primary_id=primary_ids(fused.choice, fused.ensembled, stats[0].ids[:, 0], logits[0], vocab, dtype),
        cids=cids.to(torch.int32),
        probs=torch.where(cids >= 0, best, 0.0),
        count=(cids >= 0).sum(1).to(torch.int32),
        max_prob=fused.max_prob,
        entropy=fused.entropy,
        kl=fused.kl,
        js=fused.js,
        ensembled=fused.ensembled,
        sharpened=fused.sharpened,
        top_cid=top_cid,
        top_prob=top_prob,
        logsumexp=logsumexp,
        model_entropy=torch.stack([s.entropy for s in stats]),
        flags=flags,
    )


def _decided(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, dtype: torch.dtype
) -> tuple[Fused, list[TopkStats], Tensor, Tensor, Tensor]:
    stats = [topk_stats(x, k, allowed, dtype=dtype) for x, allowed in zip(logits, vocab.allowed, strict=True)]
    logsumexp = torch.stack([s.logsumexp for s in stats])
    top_cid = torch.stack([top_candidate(m, s, vocab) for m, s in enumerate(stats)])
    top_prob = torch.stack([probability(s.values[:, 0].to(dtype), s.logsumexp) for s in stats])
    log_p = torch.stack([_log_probs(m, x, vocab, dtype) for m, x in enumerate(logits)])
    cids = torch.arange(vocab.size, device=log_p.device, dtype=torch.int32).unsqueeze(0)
    log_p = torch.where(out_of_reach(cids, vocab), NEG_INF, log_p)
    known = torch.stack([ids >= 0 for ids in vocab.exact_id]).any(0)
    known = torch.cat([known[:-1], known.new_full((1,), any(e.shape[0] for e in vocab.eos_ids))]).unsqueeze(0)

    fused = decide(
        log_q=log_p,
        p=log_p.exp(),
        consulted=logsumexp > NEG_INF,
        inside=known,
        cids=cids,
        tops=candidates(stats[0].ids, vocab.to_cid[0]),
        primary_prob=top_prob[0],
        primary_cid=top_cid[0],
        prefix_end=vocab.prefix_end,
        space_cid=vocab.space_cid,
        settings=settings,
    )
    return fused, stats, logsumexp, top_cid, top_prob


def _log_probs(m: int, logits: Tensor, vocab: VocabTensors, dtype: torch.dtype) -> Tensor:
    """log P_m of every candidate [B, N]: its exact id's, −inf without one; END: the sum over the EOS ids."""
    log_p = log_softmax(bounded(masked(logits, vocab.allowed[m], dtype)[0]))
    ids = vocab.exact_id[m]
    table = torch.where(ids >= 0, log_p[:, torch.where(ids >= 0, ids, 0)], NEG_INF)
    end = log_p[:, vocab.eos_ids[m]]
    end = torch.logsumexp(end, -1, keepdim=True) if end.shape[1] else log_p.new_full((log_p.shape[0], 1), NEG_INF)
    return torch.cat([table[:, :-1], end], 1)
