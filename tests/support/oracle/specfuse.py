"""SpecFuse by the oracle: every model drafts a segment, all score all segments, the best is appended, weak models
leave."""

import math
from dataclasses import dataclass, field

import numpy as np

from .decode import Result, equal_weights
from .fusion import own_choice
from .model import Model, probability
from .vocab import END


@dataclass
class Segment:
    """A candidate: its bytes, whether END follows, and the models that drafted it (the first one owns it)."""

    data: bytes
    ended: bool
    by: list[int] = field(default_factory=list)


@dataclass
class Round:
    """What one round saw: candidates, their scores, the winner's place, who was active after it, the weights after
    it."""

    candidates: list[Segment]
    scores: list[float]
    winner: int
    active: list[int]
    weights: dict[int, float]
    quality: dict[int, float]
    margin: float


def specfuse(
    models: list[Model],
    prompt,
    max_new_tokens: int,
    stop=None,
    weights=None,
    *,
    segment_length: int = 10,
    exit_threshold: float = 0.5,
    temperature: float = 0.5,
    rate: float | None = None,
    words: bool = True,
    literals: tuple[bytes, ...] = (),
) -> tuple[Result, list[Round]]:
    """`rate`: of the feedback (None: no feedback). `words`: trim drafts. `literals`: further candidates of every
    round."""
    weight = dict(enumerate(equal_weights(models, weights)))
    prompts = [model.vocab.prompt_ids(prompt) for model in models]
    stops = [s.encode() if isinstance(s, str) else s for s in stop or ()]
    active = list(range(len(models)))
    scored: dict[int, list[float]] = {m: [] for m in active}
    data, ids, finish, rounds = b"", [], None, []
    while finish is None:
        candidates = []
        for m in active:
            piece, ended = draft(models, prompts, active, m, data, segment_length)
            merge(candidates, trim(piece) if words and not ended else piece, ended, m)
        for literal in literals:
            merge(candidates, literal, False, None)
        if not all(fits(models, prompts, active, data + c.data) for c in candidates):
            finish = "length"
            break
        s = {v: [segment_score(models[v], prompts[v], data, c) for c in candidates] for v in active}
        total = sum(weight[v] for v in active)
        scores = [sum(weight[v] * s[v][c] for v in active) / total for c in range(len(candidates))]
        winner = max(range(len(candidates)), key=lambda c: (scores[c], -c))
        margin = min((scores[winner] - x for c, x in enumerate(scores) if c != winner), default=math.inf)
        for c, candidate in enumerate(candidates):
            for m in candidate.by:
                scored[m].append(scores[c])
        number = len(rounds) + 1
        active, distance, quality = leave(active, scored, max(temperature / number, 0.05), exit_threshold / len(models))
        if rate is not None and len(s) > 1:
            weight = feedback(weight, s, candidates, rate * math.sqrt(1 / len(models)) / (len(rounds) + 1))
        rounds.append(Round(candidates, scores, winner, active, dict(weight), quality, min(margin, distance)))

        chosen = candidates[winner]
        stood = data
        data, stopped = append(data, chosen, stops)
        ids = models[0].vocab.encode(data)
        if len(ids) > max_new_tokens:
            ids, finish = ids[:max_new_tokens], "length"
            if len(models[0].vocab.bytes_of(ids)) < len(stood):  # what stood has been shown
                ids = models[0].vocab.encode(stood)
            data = models[0].vocab.bytes_of(ids)
        elif stopped:
            finish = "stop"
        elif len(ids) == max_new_tokens:
            finish = "length"
        elif chosen.ended:
            finish = "end"
        elif not fits(models, prompts, active, data, room=1):
            finish = "length"
    result = Result(data, ids, finish, margins=[r.margin for r in rounds], rounds=len(rounds))
    return result, rounds


def fits(models: list[Model], prompts: list[list[int]], active: list[int], data: bytes, room: int = 0) -> bool:
    """Whether the text fits the context of every active model, with `room` left."""
    lengths = {m: len(prompts[m]) + len(models[m].vocab.encode(data)) + room for m in active}
    return all(n <= models[m].context_length for m, n in lengths.items())


def draft(models, prompts, active, m: int, data: bytes, length: int) -> tuple[bytes, bool]:
    """Up to `length` greedy tokens of model m, as far as contexts allow: their bytes, and whether END came."""
    model = models[m]
    ids = prompts[m] + model.vocab.encode(data)
    own: list = []
    while len(own) < length and END not in own and (not own or len(ids) + len(own) < model.context_length):
        own.append(own_choice(model, model.logits(ids + own)).token)

    def piece() -> bytes:
        return model.vocab.bytes_of(token for token in own if token is not END)

    while len(own) > 1 and not fits(models, prompts, active, data + piece()):
        own.pop()
    return piece(), END in own


def trim(piece: bytes) -> bytes:
    """Without an incomplete character at the end, and without a last word that may go on."""
    whole = piece
    for tail in range(1, 4):
        try:
            piece[-tail:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.end == tail and "unexpected end" in error.reason:
                whole = piece[:-tail]
        else:
            break
    text = whole.decode("utf-8", "surrogateescape")
    if text and text[-1].isalnum():
        at = len(text)
        while at and not text[at - 1].isspace():
            at -= 1
        while at and text[at - 1].isspace():
            at -= 1
        if at:
            text = text[:at]
    return text.encode("utf-8", "surrogateescape") or piece  # a round must add something


def merge(candidates: list[Segment], data: bytes, ended: bool, m: int | None) -> None:
    by = [] if m is None else [m]
    for candidate in candidates:
        if (candidate.data, candidate.ended) == (data, ended):
            candidate.by += by
            return
    candidates.append(Segment(data, ended, by))


def segment_score(model: Model, prompt: list[int], data: bytes, candidate: Segment) -> float:
    """Mean probability of the model's ids of the candidate, after what its ids with and without it have in common."""
    before, ids = model.vocab.encode(data), model.vocab.encode(data + candidate.data)
    kept = 0
    while kept < min(len(before), len(ids)) and before[kept] == ids[kept]:
        kept += 1
    tokens: list = [*ids[kept:], *([END] if candidate.ended else [])]
    model.read(prompt + ids, len(prompt) + kept)
    return float(
        np.mean([probability(model.vocab, model.logits(prompt + ids[: kept + i]), t) for i, t in enumerate(tokens)])
    )


def leave(active: list[int], scored: dict, temperature: float, threshold: float) -> tuple[list[int], float, dict]:
    """Who stays after this round, how close it was, and the mean scores."""
    quality = {m: float(np.mean(scored[m])) for m in active}
    exps = {m: math.exp((quality[m] - max(quality.values())) / temperature) for m in active}
    share = {m: x / sum(exps.values()) for m, x in exps.items()}
    best = max(active, key=lambda m: (quality[m], -m))
    stay = [m for m in active if m == best or not share[m] < threshold]
    return stay, min((abs(share[m] - threshold) for m in active if m != best), default=math.inf), quality


def feedback(weight: dict, s: dict, candidates: list[Segment], eta: float) -> dict:
    """Weights after SpecEM's feedback: r_i is the share of comparisons that model i's candidate wins or ties.

    Candidate i against that of every other model k, judged by every model j other than i.
    """
    place = {m: c for c, candidate in enumerate(candidates) for m in candidate.by}
    new = dict(weight)
    for i in s:
        verdicts = [s[j][place[i]] >= s[j][place[k]] for k in s if k != i for j in s if j != i]
        new[i] = weight[i] * math.exp(eta * sum(verdicts) / len(verdicts))
    total = sum(new.values())
    return {m: w / total for m, w in new.items()}


def append(data: bytes, chosen: Segment, stops: list[bytes]) -> tuple[bytes, bool]:
    """The text with the winner behind it, cut before a stop string, and whether there was one."""
    for length in range(len(data) + 1, len(data) + len(chosen.data) + 1):
        text = (data + chosen.data)[:length]
        ending = [s for s in stops if text.endswith(s)]
        if ending:
            return text[: -max(map(len, ending))], True
    return data + chosen.data, False
