"""SAFE by the oracle: draft, verify, ensemble at the first safe position whose token does not stand."""

import math
from functools import partial
from itertools import accumulate

from .decode import Result, Text, equal_weights, finished, record
from .fusion import NO_SHARPENING, Gate, Sharpening, Step, own_choice, unite_step
from .gac import gac_step
from .model import Model, probability, top_ids
from .vocab import END


def safe(
    models: list[Model],
    prompt,
    max_new_tokens: int,
    stop=None,
    weights=None,
    *,
    draft_length: int = 5,
    base: str = "unite",
    sharpening: Sharpening = NO_SHARPENING,
    test: Gate | None = None,
    **settings,
) -> Result:
    """`base` "unite" or "gac", with its `settings`; `test` in place of the paper's: rejected where that gate is
    open."""
    weights = equal_weights(models, weights)
    fuse = partial(
        {"unite": unite_step, "gac": gac_step}[base], models, weights=weights, sharpening=sharpening, **settings
    )
    text = Text(models, prompt, max_new_tokens, stop)
    result = Result(b"", [], "")
    while text.finish is None:
        result.rounds += 1
        draft = make_draft(text, draft_length, result)
        result.drafted += len(draft)
        at, step = verify(text, draft, weights, fuse, result, gate_test(models, weights, test, settings))
        accepted = draft if at is None else draft[:at]
        for token in accepted:
            text.add(token, ensembled=False)
            if text.finish is not None:
                break
        if step is not None and text.finish is None:
            record(result, step)
            text.add(step.token, step.ensembled)
    return finished(result, text)


def make_draft(text: Text, draft_length: int, result: Result) -> list:
    """The primary's greedy continuation, END last where it ended; no longer than any limit allows."""
    primary, start = text.models[0], text.ids_of(0)
    room = min(draft_length, text.max_new_tokens - len(text.ids))
    draft: list = []
    while len(draft) < room and END not in draft and not (draft and text.full(tuple(draft))):
        step = own_choice(primary, primary.logits(start + draft))
        draft.append(step.token)
        record(result, step)
    while len(draft) > 1 and text.full(tuple(draft), over=1):
        draft.pop()
    return draft


def draft_bytes(primary: Model, draft: list) -> bytes:
    return b"".join(primary.vocab.token_bytes[token] for token in draft if token is not END)


def gate_test(models, weights, gate: Gate | None, settings: dict):
    """A function from the logits at a position to the step of a UniTE behind that gate."""
    if gate is None:
        return None
    return lambda logits: unite_step(models, logits, weights, top_k=settings.get("top_k", 10), gate=gate)


def sampled_distribution(
    models: list[Model], prompt, weights: list[float], test: Gate | None, **settings
) -> tuple[dict, bool]:
    """What the first token of sampled SAFE over UniTE follows at temperature 1, and whether the ensemble acts on it.

    Every model has a token edge there, so the draft token is judged: the accepted share of `P_0` and the residual make
    up E. With a gate as the `test` it stands where that gate is closed, which leaves `P_0`.
    """
    logits = [model.logits(model.vocab.prompt_ids(prompt)) for model in models]
    if test is None or gate_test(models, weights, test, settings)(logits).ensembled:
        return unite_step(models, logits, weights, **settings).probs, True
    primary = models[0]
    p = {
        candidate: probability(primary.vocab, logits[0], index) for candidate, index in primary.allowed_bytes().items()
    }
    return p | {END: probability(primary.vocab, logits[0], END)}, False


def verify(text: Text, draft: list, weights: list[float], fuse, result: Result, test) -> tuple[int | None, Step | None]:
    """The first safe position whose token does not stand, and the base step there; (None, None) if all stand."""
    primary = text.models[0]
    lengths = [0 if token is END else len(primary.vocab.token_bytes[token]) for token in draft]
    offsets = [len(text.data) + n for n in accumulate([0, *lengths])]
    views = [View(text, m, draft_bytes(primary, draft), offsets[0]) for m in range(1, len(text.models))]
    for j, token in enumerate(draft):
        if not all(offsets[j] in view.boundaries for view in views):
            result.unsafe += 1
            continue
        context = text.ids_of(0) + draft[:j]
        logits = [primary.logits(context)] + [view.model.logits(view.context(offsets[j])) for view in views]
        if test is not None:
            tested = test(logits)
            result.margins.append(tested.margin)
            if tested.ensembled:
                return j, fuse(logits=logits)
            continue
        votes = [weights[0] * probability(primary.vocab, logits[0], token)]
        unanimous = True
        margins = []
        for view, weight, row in zip(views, weights[1:], logits[1:], strict=True):
            next_token = view.token_at(offsets[j])
            votes.append(weight * probability(view.model.vocab, row, next_token))
            first, *second = top_ids(row, 2)
            is_end = first in view.model.vocab.eos_ids
            agrees = is_end if next_token is END else first == next_token
            unanimous = unanimous and agrees
            margins.append(float(row[first] - row[second[0]]) if second else math.inf)
        half = sum(votes)
        # Both tests must flip for the verdict to flip where neither holds; either one may where one holds.
        distance = abs(half - 0.5)
        close = min(margins, default=math.inf)
        if unanimous or half > 0.5:
            result.margins.append(max(distance if half > 0.5 else 0.0, close if unanimous else 0.0))
        else:
            result.margins.append(min(distance, close))
            return j, fuse(logits=logits)
    return None, None


class View:
    """How one verifier reads the text with the draft behind it."""

    def __init__(self, text: Text, m: int, draft: bytes, start: int):
        self.model = text.models[m]
        self.prompt = text.prompts[m]
        self.ids = self.model.vocab.encode(text.data + draft)
        ends = list(accumulate(len(self.model.vocab.token_bytes[i]) for i in self.ids))
        self.index_at = {offset: index for index, offset in enumerate([0, *ends])}
        self.boundaries = set(self.index_at)
        ids = self.prompt + self.ids
        first = min((i for offset, i in self.index_at.items() if offset >= start), default=len(self.ids))
        self.model.read(ids[: self.model.context_length], min(len(self.prompt) + first, self.model.context_length))

    def context(self, offset: int) -> list[int]:
        return self.prompt + self.ids[: self.index_at[offset]]

    def token_at(self, offset: int):
        index = self.index_at[offset]
        return self.ids[index] if index < len(self.ids) else END
