"""Steps of a trace, read from what an operator returned."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode import kernels
from ensemble_decode.outputs import TraceStep
from ensemble_decode.vocab.aligned import AlignedVocab
from ensemble_decode.vocab.model import ModelVocab


def fused_step(vocab: AlignedVocab, fused: kernels.FuseStep, i: int, cid: int) -> TraceStep:
    """The fusion of row ``i``, which chose candidate ``cid``."""
    count = int(fused.count[i])
    return TraceStep(
        candidates=[vocab.bytes_of(c) for c in fused.cids[i, :count].tolist()],
        probs=fused.probs[i, :count].tolist(),
        chosen=vocab.bytes_of(cid),
        ended=cid == vocab.size - 1,
        ensembled=bool(fused.ensembled[i]),
        sharpened=bool(fused.sharpened[i]),
        max_prob=float(fused.max_prob[i]),
        entropy=float(fused.entropy[i]),
        kl=fused.kl[:, i].tolist(),
        js=float(fused.js[i]),
        model_top=[vocab.bytes_of(c) if c >= 0 else b"" for c in fused.top_cid[:, i].tolist()],
    )


def alone_step(model: ModelVocab, tops: kernels.TopkStats, i: int, token: int) -> TraceStep:
    """Row ``i`` of one model that chose ``token`` alone, with its own top candidates."""
    ids = [t for t in tops.ids[i].tolist() if t >= 0]
    probs = (tops.values[i] - tops.logsumexp[i]).exp().tolist()[: len(ids)]
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
        model_top=[model.token_bytes[ids[0]]],
    )


def drafted_steps(pieces: Sequence[bytes], probs: Sequence[float], ended: bool) -> list[TraceStep]:
    """Tokens that the primary drafted and that stood; the last one is END where ``ended``."""
    last = len(pieces) - 1
    return [
        TraceStep([piece], [prob], piece, ended and i == last, False, False, prob, 0.0, [], 0.0, [piece])
        for i, (piece, prob) in enumerate(zip(pieces, probs, strict=True))
    ]
