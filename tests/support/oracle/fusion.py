"""One step of fusion: from every model's logits to the chosen candidate, in float64 over dictionaries of candidates."""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from .model import Model, candidate_of, end_logit, log_softmax, top_ids
from .vocab import END


@dataclass
class Gate:
    """`kind`: "max_prob", "kl" or "js"."""

    kind: str
    threshold: float


@dataclass
class Sharpening:
    """`kind`: "none", "prefix", "geometric" or "temperature"; `trigger`: "max_prob" or "entropy"."""

    kind: str = "none"
    trigger: str = "max_prob"
    threshold: float = 0.5
    min_prob: float = 0.1
    temperature: float = 0.5


NO_SHARPENING = Sharpening()


@dataclass
class Step:
    """What was chosen, and by how little. `token` is the id that the primary writes for it, or END.

    `margin` is the smallest distance of any decision to its opposite: the score of the choice minus that of the best
    candidate that would have emitted something else, and the distances to the thresholds of gate, trigger and
    `min_prob`. `border` is the smallest gap, in logits, between a model's k-th and (k+1)-th id; `size` the number of
    candidates.
    """

    chosen: bytes | None
    token: int | None
    ensembled: bool
    sharpened: bool = False
    probs: dict = field(default_factory=dict)
    before: dict = field(default_factory=dict)
    kl: list[float] = field(default_factory=list)
    js: float = 0.0
    margin: float = math.inf
    border: float = math.inf
    size: int = 0


def order(candidate) -> tuple:
    """The order of candidates: bytes, lexicographically; END last."""
    return (1, b"") if candidate is END else (0, candidate)


def best(scores: dict):
    """The highest score; ties to the candidate that comes first."""
    return min(scores, key=lambda u: (-scores[u], order(u)))


def normalised(scores: dict) -> dict:
    total = sum(scores.values())
    return {u: score / total for u, score in scores.items()}


def arithmetic(weights: list[float], q: list[dict]) -> dict:
    return {u: sum(w * q_m[u] for w, q_m in zip(weights, q, strict=True)) for u in q[0]}


def geometric(weights: list[float], q: list[dict]) -> dict:
    """exp of the weighted mean of log q, normalised; 0 where a model of positive weight has 0."""
    mean = {}
    for u in q[0]:
        parts = [(w, q_m[u]) for w, q_m in zip(weights, q, strict=True) if w > 0]
        mean[u] = 0.0 if any(p == 0 for _, p in parts) else math.exp(sum(w * math.log(p) for w, p in parts))
    return normalised(mean) if sum(mean.values()) > 0 else arithmetic(weights, q)


def entropy(probs: dict) -> float:
    return -sum(p * math.log(p) for p in probs.values() if p > 0)


def divergences(weights: list[float], p: list[dict]) -> tuple[list[float], float]:
    """KL of every model from the weighted mean, and their weighted mean (JS), over the union and the rest."""
    full = []
    for p_m in p:
        full.append(normalised(p_m | {"rest": max(0.0, 1.0 - sum(p_m.values()))}))
    consensus = arithmetic(weights, full)
    kl = [
        sum(p_m[u] * math.log(p_m[u] / consensus[u]) for u in p_m if p_m[u] > 0) if w > 0 else 0.0
        for w, p_m in zip(weights, full, strict=True)
    ]
    return kl, sum(w * d for w, d in zip(weights, kl, strict=True))


def emission(primary: Model, candidate):
    """What the primary would write for a candidate: END, or its exact id, else its first piece."""
    return END if candidate is END else primary.vocab.first_piece(candidate)


def choice_margin(primary: Model, scores: dict, chosen) -> float:
    written = emission(primary, chosen)
    rivals = heapq.nlargest(100, (u for u in scores if u != chosen), key=lambda u: scores[u])
    rival = next((u for u in rivals if emission(primary, u) != written), None)
    return math.inf if rival is None else scores[chosen] - scores[rival]


def own_choice(primary: Model, logits: np.ndarray) -> Step:
    """The primary alone: the argmax over its ids."""
    first, *rest = top_ids(logits, 2)
    gap = float(logits[first] - logits[rest[0]]) if rest else math.inf
    chosen = candidate_of(primary.vocab, first)
    return Step(chosen, END if chosen is END else first, ensembled=False, margin=gap)


def sharpen(
    sharpening: Sharpening, e: dict, primary_top: set, weights: list[float], q: list[dict]
) -> tuple[dict, bool, float]:
    """E', whether the trigger fired, and the smallest distance to one of its thresholds."""
    if sharpening.kind == "none":
        return e, False, math.inf
    if sharpening.trigger == "max_prob":
        signed = sharpening.threshold - max(e.values())
    else:
        signed = (entropy(e) / math.log(len(e)) if len(e) > 1 else 0.0) - sharpening.threshold
    margin = abs(signed)
    if signed <= 0:
        return e, False, margin
    if sharpening.kind == "geometric":
        return geometric(weights, q), True, margin
    if sharpening.kind == "temperature":
        return normalised({u: p ** (1 / sharpening.temperature) for u, p in e.items()}), True, margin
    sharpened = dict(e)
    for u in primary_top:
        if u in (b" ", END):
            continue
        longer = sum(p for v, p in e.items() if v is not END and v != u and v.startswith(u))
        if longer:
            margin = min(margin, abs(e[u] - sharpening.min_prob))
        if e[u] > sharpening.min_prob:
            sharpened[u] = e[u] + longer
    return sharpened, True, margin


def unite_step(
    models: list[Model],
    logits: list[np.ndarray],
    weights: list[float],
    *,
    top_k: int = 10,
    oov: str = "first_piece",
    aggregate: str = "arithmetic",
    gate: Gate | None = None,
    sharpening: Sharpening = NO_SHARPENING,
) -> Step:
    primary = models[0]
    alone = own_choice(primary, logits[0])
    log_p = [log_softmax(x) for x in logits]
    margin = math.inf
    if gate is not None and gate.kind == "max_prob":
        top = math.exp(log_p[0].max())
        margin = abs(top - gate.threshold)
        if not top < gate.threshold:
            alone.margin = min(alone.margin, margin)
            return alone

    border = math.inf
    tops = []
    for model, x in zip(models, logits, strict=True):
        ids = top_ids(x, top_k + 1)
        if len(ids) > top_k:
            border = min(border, float(x[ids[top_k - 1]] - x[ids[top_k]]))
        tops.append({candidate_of(model.vocab, i) for i in ids[:top_k]})
    union = sorted(set().union(*tops), key=order)

    def score(model: Model, x: np.ndarray, u) -> float:
        if u is END:
            return end_logit(model.vocab, x)
        index = model.vocab.exact(u) if oov == "exclude" else model.vocab.first_piece(u)
        return -math.inf if index is None else float(x[index])

    p, q = [], []
    for model, x in zip(models, log_p, strict=True):
        p_m = {u: math.exp(score(model, x, u)) for u in union}
        p.append(p_m)
        q.append(normalised(p_m) if sum(p_m.values()) > 0 else None)
    present = [w if q_m is not None else 0.0 for w, q_m in zip(weights, q, strict=True)]
    present = [w / sum(present) for w in present]
    q = [dict.fromkeys(union, 0.0) if q_m is None else q_m for q_m in q]

    kl, js = divergences(weights, p)
    if gate is not None and gate.kind in ("kl", "js"):
        disagreement = max(kl) if gate.kind == "kl" else js
        margin = abs(disagreement - gate.threshold)
        if not disagreement > gate.threshold:
            alone.margin = min(alone.margin, margin)
            alone.kl, alone.js = kl, js
            return alone

    e = (arithmetic if aggregate == "arithmetic" else geometric)(present, q)
    scores, fired, distance = sharpen(sharpening, e, tops[0], present, q)
    chosen = best(scores)
    margin = min(margin, distance, choice_margin(primary, scores, chosen))
    return Step(
        chosen, emission(primary, chosen), True, fired, normalised(scores), e, kl, js, margin, border, len(union)
    )
