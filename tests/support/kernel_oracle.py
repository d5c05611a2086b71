"""The operators again, by brute force: one row at a time, Python and NumPy, float64, no code of the package.

Written from the rules in docs/contracts.md. Rows are lists or 1-D arrays; a vocabulary is a `Vocab` of plain bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

INF = math.inf
BIG = float(np.finfo(np.float32).max)


def clean(row: Sequence[float], allowed: Sequence[bool] | None = None) -> tuple[np.ndarray, bool]:
    """The row with −inf for what is not allowed and for NaN, and whether an allowed entry was NaN."""
    x = np.array(row, dtype=np.float64)
    if allowed is not None:
        x[~np.asarray(allowed, dtype=bool)] = -INF
    nan = np.isnan(x)
    return np.where(nan, -INF, x), bool(nan.any())


def softmax(row: Sequence[float]) -> np.ndarray:
    """float64 softmax; uniform over +inf entries; zeros where all is −inf."""
    x = np.minimum(np.asarray(row, dtype=np.float64), BIG)
    if not len(x) or x.max() == -INF:
        return np.zeros(len(x))
    with np.errstate(under="ignore"):
        e = np.exp(x - x.max())
    return e / e.sum()


def logsumexp(row: Sequence[float]) -> float:
    """float64 log-sum-exp."""
    x = np.asarray(row, dtype=np.float64)
    if not len(x) or x.max() in (INF, -INF):
        return float(x.max()) if len(x) else -INF
    with np.errstate(under="ignore"):
        return float(x.max() + math.log(np.exp(x - x.max()).sum()))


def shannon(p: Sequence[float]) -> float:
    """Entropy in nats."""
    p = np.asarray(p, dtype=np.float64)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def order(row: Sequence[float]) -> list[int]:
    """Indices by (value descending, index ascending), without those at −inf."""
    x = np.asarray(row, dtype=np.float64)
    best = np.lexsort((np.arange(len(x)), -x))
    return best[x[best] > -INF].tolist()


def topk(row: Sequence[float], k: int, allowed: Sequence[bool] | None = None):
    """(values, ids, logsumexp, entropy, flags) of one row."""
    x, nan = clean(row, allowed)
    best = order(x)[:k]
    ids = best + [-1] * (k - len(best))
    values = [float(x[i]) for i in best] + [-INF] * (k - len(best))
    return values, ids, logsumexp(x), shannon(softmax(x)), int(nan) + 2 * (not best)


def probability(value: float, lse: float) -> float:
    """exp(value − lse) by the rule for infinities."""
    if value == -INF or lse == -INF:
        return 0.0
    difference = min(value, BIG) - min(lse, BIG)
    return 1.0 if difference >= 0 else math.exp(difference) if difference > -745 else 0.0


@dataclass
class Vocab:
    """Two or more vocabularies as bytes: `models[m][i]` is the bytes of id i, None where it is not allowed."""

    models: list[list[bytes | None]]
    eos: list[list[int]]
    pieces: list[dict[bytes, int]] = field(default_factory=list)
    """Per model the first piece of byte strings that it has no id for."""
    banned: list[set[int]] = field(default_factory=list)
    """Per model the ids that a grammar bans in this row; none where the list is shorter."""

    def __post_init__(self) -> None:
        spelled = {b for model in self.models for b in model if b}
        self.strings: list[bytes] = sorted(spelled)
        self.end = len(self.strings)
        self.index = {b: i for i, b in enumerate(self.strings)}

    def cid(self, m: int, i: int) -> int:
        """Candidate of id i, −1 where it is not allowed."""
        if i in self.eos[m]:
            return self.end
        data = self.models[m][i]
        return self.index[data] if data else -1

    def exact(self, m: int, cid: int) -> int:
        """The smallest id with the candidate's bytes, −1 without one (and for END)."""
        if cid == self.end:
            return -1
        model = self.models[m]
        return next((i for i, b in enumerate(model) if b == self.strings[cid] and i not in self.eos[m]), -1)

    def piece(self, m: int, cid: int) -> int:
        """The exact id, else the longest id that begins the candidate, −1 without one."""
        exact = self.exact(m, cid)
        if exact >= 0 or cid == self.end:
            return exact
        data = self.strings[cid]
        fits = [i for i, b in enumerate(self.models[m]) if b and i not in self.eos[m] and data.startswith(b)]
        return max(fits, key=lambda i: (len(self.models[m][i] or b""), -i), default=-1)

    def allowed(self, m: int) -> list[bool]:
        """Ids with bytes and EOS ids, without those that a grammar bans."""
        banned = self.banned[m] if m < len(self.banned) else set()
        return [(bool(b) or i in self.eos[m]) and i not in banned for i, b in enumerate(self.models[m])]

    def reachable(self, cid: int) -> bool:
        """Whether model 0 has an id that it may write for the candidate, or no id at all to be banned."""
        writes = self.eos[0] if cid == self.end else [i for i in [self.piece(0, cid)] if i >= 0]
        allowed = self.allowed(0)
        return not writes or any(allowed[i] for i in writes)


@dataclass
class Settings:
    """One row of FuseSettings with names instead of codes."""

    weights: Sequence[float]
    top_k: int = 10**6
    aggregate: str = "arithmetic"
    oov: str = "first_piece"
    sharpen: str = "none"
    trigger: str = "max_prob"
    threshold: float = 0.5
    min_prob: float = 0.1
    tau: float = 0.5
    gate: str = "none"
    gate_threshold: float = 0.5


def union(vocab: Vocab, ids: Sequence[Sequence[int]]) -> list[int]:
    """Ascending candidates of every model's ids."""
    return sorted({c for m, row in enumerate(ids) for i in row if i >= 0 and (c := vocab.cid(m, i)) >= 0})


def score(vocab: Vocab, m: int, row: Sequence[float], cid: int, oov: str) -> float:
    """Logit of the id that stands for the candidate; END: log-sum-exp over EOS ids."""
    x, _ = clean(row, vocab.allowed(m))
    if cid == vocab.end:
        return logsumexp([x[i] for i in vocab.eos[m]])
    i = vocab.exact(m, cid) if oov == "exclude" else vocab.piece(m, cid)
    return float(x[i]) if i >= 0 else -INF


def renormalised(weights: Sequence[float], present: Sequence[bool]) -> np.ndarray:
    """Weights of the present models, summing to 1, or all 0."""
    w = np.array([a if b else 0.0 for a, b in zip(weights, present, strict=True)], dtype=np.float64)
    return w / w.sum() if w.sum() > 0 else w


def geometric(q: np.ndarray, w: np.ndarray) -> np.ndarray | None:
    """Normalised weighted geometric mean of distributions [M, U], None where nothing is left."""
    used = w > 0
    if not used.any():
        return None
    with np.errstate(divide="ignore"):
        logs = np.log(q[used])
    total = (w[used, None] * logs).sum(0)
    if total.max() == -INF:
        return None
    g = np.exp(total - total.max())
    return g / g.sum()


def divergences(p: np.ndarray, w: np.ndarray) -> tuple[list[float], float]:
    """KL of each model from the mixture over [M, U] and a bucket for the rest, and their weighted mean."""
    rest = np.maximum(0.0, 1.0 - p.sum(1, keepdims=True))
    full = np.concatenate([p, rest], 1)
    full = full / full.sum(1, keepdims=True)
    mix = (w[:, None] * full).sum(0)
    kl = []
    for m in range(len(p)):
        used = (full[m] > 0) & (mix > 0)
        kl.append(float((full[m][used] * np.log(full[m][used] / mix[used])).sum()) if w[m] > 0 else 0.0)
    return kl, float((w * np.array(kl)).sum())


@dataclass
class Decision:
    """What one row's fusion gives, with the margin by which its choice won."""

    cids: list[int]
    probs: np.ndarray
    cid: int
    max_prob: float
    entropy: float
    kl: list[float]
    js: float
    ensembled: bool
    sharpened: bool
    primary_id: int = -1
    margin: float = INF
    near: bool = False
    """A threshold lies within 1e-5 of what it is compared with, so float32 may fall on the other side."""


def close(a: float, b: float) -> bool:
    """Within 1e-5, or relatively."""
    return abs(a - b) <= 1e-5 * max(1.0, abs(a), abs(b))


def decide(
    vocab: Vocab,
    cids: list[int],
    q: np.ndarray,
    p: np.ndarray,
    consulted: Sequence[bool],
    primary: tuple[int, float],
    tops: Sequence[int],
    settings: Settings,
) -> Decision:
    """Fuse q [M, U] (to average) and p [M, U] (the models' own probabilities of the same candidates), greedily."""
    s = settings
    w = renormalised(s.weights, [bool((row > 0).any()) for row in q])
    arithmetic = (w[:, None] * q).sum(0) if len(cids) else np.zeros(0)
    g = geometric(q, w) if len(cids) else None
    g = arithmetic if g is None else g
    mean = g if s.aggregate == "geometric" else arithmetic
    kl, js = divergences(p, renormalised(s.weights, consulted))
    top, spread = float(mean.max(initial=0.0)), shannon(mean)
    primary_cid, primary_prob = primary

    values = {"none": (1, 0), "max_prob": (s.gate_threshold, primary_prob), "kl": (max(kl), s.gate_threshold)}
    left, right = (values | {"js": (js, s.gate_threshold)})[s.gate]
    is_open = left > right
    near = s.gate != "none" and close(left, right)
    if not is_open or top <= 0:
        probs = mean / mean.sum() if mean.sum() > 0 else mean
        choice = -1 if is_open else primary_cid
        return Decision(cids, probs, choice, top, spread, kl, js, False, False, near=near)

    if s.trigger == "max_prob":
        fires, near = top < s.threshold, near or (s.sharpen != "none" and close(top, s.threshold))
    else:
        bound = s.threshold * math.log(len(cids))
        fires = len(cids) > 1 and spread > bound
        near = near or (s.sharpen != "none" and close(spread, bound))
    sharpened = fires and s.sharpen != "none"
    sharp, soft = mean.copy(), None
    if sharpened and s.sharpen == "prefix":
        strings = [vocab.strings[c] if c != vocab.end else None for c in cids]
        for u in set(tops):
            if u < 0 or u == vocab.end or u not in cids or vocab.strings[u] == b" ":
                continue
            at = cids.index(u)
            near = near or close(mean[at], s.min_prob)
            if mean[at] > s.min_prob:
                longer = [i for i, v in enumerate(strings) if v is not None and i != at and v.startswith(strings[at])]
                sharp[at] = mean[at] + mean[longer].sum()
    elif sharpened and s.sharpen == "geometric":
        sharp = g
    elif sharpened and s.sharpen == "temperature":
        with np.errstate(divide="ignore"):
            soft = np.exp((np.log(mean) - np.log(mean.max())) / s.tau)
    best = max(range(len(cids)), key=lambda i: (sharp[i], -cids[i]))
    others = np.delete(sharp, best)
    margin = float(sharp[best] - others.max()) if len(others) else INF
    soft = sharp if soft is None else soft
    return Decision(
        cids, soft / soft.sum(), cids[best], top, spread, kl, js, True, sharpened, margin=margin, near=near
    )  # fmt: skip


def own_top(vocab: Vocab, m: int, row: Sequence[float]) -> tuple[int, int, float]:
    """A model's own first choice: id, candidate, probability."""
    x, _ = clean(row, vocab.allowed(m))
    best = order(x)
    if not best:
        return -1, -1, 0.0
    return best[0], vocab.cid(m, best[0]), probability(float(x[best[0]]), logsumexp(x))


def primary_id(vocab: Vocab, rows: Sequence[Sequence[float]], decision: Decision) -> int:
    """The id that model 0 emits."""
    x, _ = clean(rows[0], vocab.allowed(0))
    if decision.cid < 0:
        return -1
    if not decision.ensembled:
        return own_top(vocab, 0, rows[0])[0]
    if decision.cid == vocab.end:
        writable = [i for i in vocab.eos[0] if vocab.allowed(0)[i]]
        return max(writable, key=lambda i: (x[i], -i), default=-1)
    return vocab.piece(0, decision.cid)


def step(vocab: Vocab, rows: Sequence[Sequence[float]], settings: Settings, k: int) -> Decision:
    """One row of `fuse_step`: rows[m] are model m's logits."""
    cleaned = [clean(row, vocab.allowed(m))[0] for m, row in enumerate(rows)]
    ids = [order(x)[: min(k, settings.top_k)] for x in cleaned]
    cids = union(vocab, ids)
    scores = [
        [score(vocab, m, row, c, settings.oov) if vocab.reachable(c) else -INF for c in cids]
        for m, row in enumerate(rows)
    ]
    lse = [logsumexp(x) for x in cleaned]
    q = np.stack([softmax(s) for s in scores])
    p = np.array([[probability(v, z) for v in s] for s, z in zip(scores, lse, strict=True)]).reshape(len(rows), -1)
    _, top_cid, top_prob = own_top(vocab, 0, rows[0])
    tops = [vocab.cid(0, i) for i in ids[0]]
    decision = decide(vocab, cids, q, p, [z > -INF for z in lse], (top_cid, top_prob), tops, settings)
    decision.primary_id = primary_id(vocab, rows, decision)
    return decision


def full(vocab: Vocab, rows: Sequence[Sequence[float]], settings: Settings, k: int) -> Decision:
    """One row of `fuse_full`."""
    cleaned = [clean(row, vocab.allowed(m))[0] for m, row in enumerate(rows)]
    own = [softmax(x) for x in cleaned]
    cids = list(range(vocab.end)) + ([vocab.end] if any(vocab.eos) else [])
    q = np.zeros((len(rows), len(cids)))
    for m in range(len(rows)):
        for at, c in enumerate(cids):
            if not vocab.reachable(c):
                continue
            i = vocab.exact(m, c)
            q[m, at] = sum(own[m][e] for e in vocab.eos[m]) if c == vocab.end else own[m][i] if i >= 0 else 0.0
    _, top_cid, top_prob = own_top(vocab, 0, rows[0])
    tops = [vocab.cid(0, i) for i in order(cleaned[0])[: min(k, settings.top_k)]]
    consulted = [max(x) > -INF for x in cleaned]
    decision = decide(vocab, cids, q, q, consulted, (top_cid, top_prob), tops, settings)
    decision.primary_id = primary_id(vocab, rows, decision)
    return decision


@dataclass
class Kept:
    """What the filters keep of one row: log probabilities relative to the largest, and by how little top-p decided."""

    ids: set[int]
    log: np.ndarray
    margin: float


def kept(row: Sequence[float], allowed: Sequence[bool] | None, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> Kept:
    """Temperature, top-k, top-p and min-p by sorting the whole row, in float64."""
    x = np.minimum(clean(row, allowed)[0], BIG)
    if x.max() == -INF:
        return Kept(set(), x, INF)
    log = (x - x.max()) / temperature
    ids, margin = order(log), INF
    if top_k:
        ids = [i for i in ids if log[i] >= log[ids[min(top_k, len(ids)) - 1]]]
    if top_p < 1:
        p = np.exp(log[ids])
        share = (np.cumsum(p) - p) / p.sum()
        margin = float(np.abs(share[1:] - top_p).min(initial=INF))
        ids = [i for n, i in enumerate(ids) if n == 0 or share[n] < top_p]
    return Kept({i for i in ids if log[i] >= (math.log(min_p) if min_p else -INF)}, log, margin)


def drawn(row: Kept, noise: Sequence[float]) -> tuple[int, float]:
    """The argmax of log probability + noise among what is kept (-1 without any), and its lead over the next."""
    scores = sorted(((row.log[i] + noise[i], -i) for i in row.ids), reverse=True)
    lead = scores[0][0] - scores[1][0] if len(scores) > 1 else INF
    return (-scores[0][1], lead) if scores else (-1, INF)


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def noise_by_hand(cid: int, seed: int, row: int, step: int) -> float:
    """The Gumbel noise of one candidate."""
    low = 0xFFFFFFFF
    word = philox_by_hand([cid, row & low, step & low, (row >> 32) & low], [seed & low, (seed >> 32) & low])[0]
    return -math.log(-math.log(((word >> 8) + 0.5) / 2**24))
