"""Whole texts by the oracle: `single`, `unite`, `gac`; `safe` and `specfuse` have files of their own."""

import math
from dataclasses import dataclass, field

from .fusion import Step, own_choice, unite_step
from .gac import gac_step
from .model import Model
from .vocab import END


@dataclass
class Result:
    """`ids` are the primary's, without END's; `margins`, one per decision, say how close it was."""

    data: bytes
    ids: list[int]
    finish: str
    ensembled_at: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    borders: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    unsafe: int = 0

    @property
    def margin(self) -> float:
        return min(self.margins, default=math.inf)

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Text:
    """The text so far: the primary's ids as it wrote them, every other model's by tokenizing the bytes."""

    def __init__(self, models: list[Model], prompt, max_new_tokens: int, stop):
        self.models = models
        self.prompts = [model.vocab.prompt_ids(prompt) for model in models]
        self.max_new_tokens = max_new_tokens
        self.stops = [s.encode() if isinstance(s, str) else s for s in stop or ()]
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.data = b""
        self.finish: str | None = None
        self.ensembled_at: list[int] = []

    def ids_of(self, m: int, more: bytes = b"") -> list[int]:
        """Model m's ids of prompt and text; for the others than the primary, of `more` bytes too."""
        return self.prompts[m] + (self.ids if m == 0 else self.models[m].vocab.encode(self.data + more))

    def add(self, token, ensembled: bool) -> None:
        """Append one id of the primary, or END."""
        if ensembled:
            self.ensembled_at.append(len(self.ids))
        if token is END:
            self.finish = "end"
            return
        self.ids.append(token)
        self.data += self.models[0].vocab.token_bytes[token]
        self.ends.append(len(self.data))
        cut = self.stop_at(token)
        if cut is not None:
            self.data = self.data[:cut]
            keep = sum(end <= cut for end in self.ends)
            self.ids, self.ends = self.ids[:keep], self.ends[:keep]
            self.ensembled_at = [i for i in self.ensembled_at if i < keep]
            self.finish = "stop"
        elif len(self.ids) >= self.max_new_tokens or self.full():
            self.finish = "length"

    def stop_at(self, token: int) -> int | None:
        """Where the stop string begins that the last token completed first; of several at one byte, the longest."""
        for length in range(len(self.data) - len(self.models[0].vocab.token_bytes[token]) + 1, len(self.data) + 1):
            ending = [s for s in self.stops if self.data[:length].endswith(s)]
            if ending:
                return length - max(map(len, ending))
        return None

    def full(self, draft: tuple = (), over: int = 0) -> bool:
        """Whether the text, with a draft behind it, fills some model's context (`over` 1: does not fit into it)."""
        ids = [token for token in draft if token is not END]
        more = self.models[0].vocab.bytes_of(ids)
        lengths = [len(self.ids_of(m, more)) + (len(ids) if m == 0 else 0) for m in range(len(self.models))]
        return any(n >= model.context_length + over for n, model in zip(lengths, self.models, strict=True))


def _decode(models, prompt, max_new_tokens, stop, step) -> Result:
    text = Text(models, prompt, max_new_tokens, stop)
    result = Result(b"", [], "")
    while text.finish is None:
        made = step([model.logits(text.ids_of(m)) for m, model in enumerate(models)])
        text.add(made.token, made.ensembled)
        record(result, made)
    return finished(result, text)


def record(result: Result, step: Step) -> None:
    result.steps.append(step)
    result.margins.append(step.margin)
    result.borders.append(step.border)


def finished(result: Result, text: Text) -> Result:
    result.data, result.ids, result.finish = text.data, text.ids, text.finish or ""
    result.ensembled_at = text.ensembled_at
    return result


def equal_weights(models: list[Model], weights) -> list[float]:
    weights = [1.0] * len(models) if weights is None else list(weights)
    return [w / sum(weights) for w in weights]


def recall(models: list[Model], prompt, ids: list[int], data: bytes) -> None:
    """Fill the memos from one pass of each model over a text that somebody guesses the outcome to be.

    It saves time only: what the oracle asks for is keyed by the exact ids, and what is not there is run.
    """
    for m, model in enumerate(models):
        start = model.vocab.prompt_ids(prompt)
        own = [i for i in ids if i not in model.vocab.eos_ids] if m == 0 else model.vocab.encode(data)
        model.read((start + own)[: model.context_length], len(start))


def single(model: Model, prompt, max_new_tokens: int, stop=None) -> Result:
    return _decode([model], prompt, max_new_tokens, stop, lambda logits: own_choice(model, logits[0]))


def unite(models: list[Model], prompt, max_new_tokens: int, stop=None, weights=None, **settings) -> Result:
    weights = equal_weights(models, weights)
    return _decode(models, prompt, max_new_tokens, stop, lambda logits: unite_step(models, logits, weights, **settings))


def gac(models: list[Model], prompt, max_new_tokens: int, stop=None, weights=None, **settings) -> Result:
    weights = equal_weights(models, weights)
    return _decode(models, prompt, max_new_tokens, stop, lambda logits: gac_step(models, logits, weights, **settings))
