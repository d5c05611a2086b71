"""Steps of a trace, read from what an operator returned."""

from __future__ import annotations

import torch

from ensemble_decode import kernels
from ensemble_decode.methods.base import Distribution
from ensemble_decode.outputs import TraceStep
from ensemble_decode.vocab.aligned import AlignedVocab
from ensemble_decode.vocab.model import ModelVocab


def fused_step(
    vocab: AlignedVocab, fused: kernels.FuseStep, i: int, cid: int, token: int, whole: Distribution | None
) -> TraceStep:
    """A step that the ensemble decided.

    Args:
        vocab: The aligned vocabulary.
        fused: What the operator returned.
        i: The row in ``fused``.
        cid: The candidate that was chosen.
        token: The primary's id for it, −1 where it has none.
        whole: All candidates' probabilities; needed where ``cid`` is not among ``fused.cids``.
    """
    count = int(fused.count[i])
    cids, probs = fused.cids[i, :count].tolist(), fused.probs[i, :count].tolist()
    if cid not in cids and whole is not None:
        cids.append(cid)
        probs.append(float(whole.probs[i, whole.cids[i] == cid].sum()))
    return TraceStep(
        candidates=[vocab.bytes_of(c) for c in cids],
        probs=probs,
        chosen=vocab.bytes_of(cid),
        ended=cid == vocab.size - 1,
        ensembled=True,
        sharpened=bool(fused.sharpened[i]),
        max_prob=float(fused.max_prob[i]),
        entropy=float(fused.entropy[i]),
        kl=fused.kl[:, i].tolist(),
        js=float(fused.js[i]),
        model_top=_model_tops(vocab, fused, i),
        token_id=token if token >= 0 else None,
        written=b"" if token < 0 else vocab.models[0].token_bytes[token],
    )


def gated_step(
    vocab: AlignedVocab, fused: kernels.FuseStep, tops: kernels.TopkStats, logits: torch.Tensor, i: int, token: int
) -> TraceStep:
    """A step whose gate stayed closed: the primary's own candidates and choice, and how far the models were apart.

    Args:
        vocab: The aligned vocabulary.
        fused: What the operator returned.
        tops: The primary's own candidates in this row.
        logits: The primary's logits [V_0] in this row.
        i: The row in ``fused``.
        token: The primary's choice.
    """
    alone = alone_step(vocab.models[0], tops, logits, 0, token)
    return alone._replace(kl=fused.kl[:, i].tolist(), js=float(fused.js[i]), model_top=_model_tops(vocab, fused, i))


def alone_step(model: ModelVocab, tops: kernels.TopkStats, logits: torch.Tensor, i: int, token: int) -> TraceStep:
    """A step that one model decided alone.

    Args:
        model: Its vocabulary.
        tops: Its own candidates.
        logits: Its logits [V] in this row.
        i: The row in ``tops``.
        token: The id that it chose, which is shown too where it is not among them.
    """
    ids = [t for t in tops.ids[i].tolist() if t >= 0]
    probs = (tops.values[i] - tops.logsumexp[i]).exp().tolist()[: len(ids)]
    best = ids[0]
    if token not in ids:
        ids.append(token)
        probs.append(float((logits[token].float() - tops.logsumexp[i]).exp()))
    return TraceStep(
        candidates=[model.token_bytes[t] for t in ids],
        probs=probs,
        chosen=model.token_bytes[token],
        ended=token in model.eos_ids,
        ensembled=False,
        sharpened=False,
        max_prob=probs[0],
        entropy=float(tops.entropy[i]),
        kl=[],
        js=0.0,
        model_top=[model.token_bytes[best]],
        token_id=token,
        written=model.token_bytes[token],
    )


def _model_tops(vocab: AlignedVocab, fused: kernels.FuseStep, i: int) -> list[bytes]:
    return [vocab.bytes_of(c) if c >= 0 else b"" for c in fused.top_cid[:, i].tolist()]
