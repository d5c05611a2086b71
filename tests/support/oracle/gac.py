"""GaC: the weighted mean over the union of whole vocabularies, in float64.

Over hundreds of thousands of candidates dictionaries take seconds, so here they are one sorted list and an array per
model.
"""

import bisect
import math
from functools import lru_cache

import numpy as np

from .fusion import NO_SHARPENING, Sharpening, Step, emission, own_choice
from .model import Model, candidate_of, end_logit, log_softmax, top_ids
from .vocab import END

PRIMARY_TOP = 10  # prefix sharpening looks at so many of the primary's ids


@lru_cache(maxsize=8)
def candidates(models: tuple[Model, ...]) -> tuple[list[bytes], list[np.ndarray]]:
    """Every byte string that is a token of some model, sorted, and each model's exact id of it (-1: none)."""
    allowed = [model.allowed_bytes() for model in models]
    union = sorted(set().union(*allowed))
    return union, [np.array([ids.get(data, -1) for data in union]) for ids in allowed]


def gac_step(
    models: list[Model],
    logits: list[np.ndarray],
    weights: list[float],
    *,
    threshold: float = 0.5,
    sharpening: Sharpening = NO_SHARPENING,
) -> Step:
    primary = models[0]
    margin = math.inf
    if threshold < 1:
        top = float(np.exp(log_softmax(logits[0]).max()))
        margin = abs(top - threshold)
        if top >= threshold:
            alone = own_choice(primary, logits[0])
            alone.margin = min(alone.margin, margin)
            return alone
    union, exact = candidates(tuple(models))
    p = []  # P_m of every candidate, END last
    for model, x, ids in zip(models, logits, exact, strict=True):
        log_p = log_softmax(x)
        p.append(np.append(np.where(ids >= 0, np.exp(log_p[ids]), 0.0), math.exp(end_logit(model.vocab, log_p))))
    e = sum(w * p_m for w, p_m in zip(weights, p, strict=True))
    scores, fired, distance = _sharpen(sharpening, e, p, weights, union, primary, logits[0])

    # np.argmax takes the first of equals: the smaller candidate.
    best = int(np.argmax(scores))
    chosen = union[best] if best < len(union) else END
    written = emission(primary, chosen)
    gap = math.inf
    for i in np.argsort(-scores, kind="stable")[:200]:
        u = union[i] if i < len(union) else END
        if emission(primary, u) != written:
            gap = float(scores[best] - scores[i])
            break
    margin = min(margin, distance, gap)
    return Step(chosen, written, True, fired, margin=margin, size=len(union) + any(m.vocab.eos_ids for m in models))


def _sharpen(sharpening: Sharpening, e, p, weights, union, primary, logits):
    if sharpening.kind == "none":
        return e, False, math.inf
    if sharpening.trigger == "max_prob":
        signed = sharpening.threshold - float(e.max())
    else:
        positive = e[e > 0]
        signed = float(-(positive * np.log(positive)).sum()) / math.log(len(e)) - sharpening.threshold
    margin = abs(signed)
    if signed <= 0 or sharpening.kind == "temperature":  # E^(1/tau) keeps the order of E
        return e, signed > 0, margin
    if sharpening.kind == "geometric":
        with np.errstate(divide="ignore"):
            mean = np.exp(sum(w * np.log(p_m) for w, p_m in zip(weights, p, strict=True) if w > 0))
        return (mean / mean.sum() if mean.sum() > 0 else e), True, margin
    scores = e.copy()
    for u in {candidate_of(primary.vocab, i) for i in top_ids(logits, PRIMARY_TOP)} - {b" ", END}:
        at = bisect.bisect_left(union, u)
        stop = at + 1
        while stop < len(union) and union[stop].startswith(u):
            stop += 1
        longer = float(e[at + 1 : stop].sum())
        if longer:
            margin = min(margin, abs(float(e[at]) - sharpening.min_prob))
        if e[at] > sharpening.min_prob:
            scores[at] = e[at] + longer
    return scores, True, margin
