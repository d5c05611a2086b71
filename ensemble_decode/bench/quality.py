"""The quality side: exact match on generated questions, and perplexity of held-out text; every single model beside
every method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ensemble_decode import kernels
from ensemble_decode.bench.stats import bootstrap
from ensemble_decode.bench.tables import Table
from ensemble_decode.determination.questions import Question, arithmetic, correct, short
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.methods import SAFE, GaC, Method, Single, SpecFuse, UniTE

ANSWER_TOKENS = 8


class Share(NamedTuple):
    """Right answers out of all, with the bootstrap interval at 95 %."""

    right: list[bool]

    @property
    def mean(self) -> float:
        """The mean over all items."""
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval, by the bootstrap."""
        return bootstrap([float(r) for r in self.right], lambda v: sum(v) / len(v))


class Text(NamedTuple):
    """Bits per byte of held-out text: of each paragraph the bits and the bytes."""

    bits: list[float]
    sizes: list[int]

    @property
    def mean(self) -> float:
        """The mean over all items."""
        return sum(self.bits) / sum(self.sizes)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval, by the bootstrap."""
        pairs = list(zip(self.bits, self.sizes, strict=True))
        return bootstrap(pairs, lambda v: sum(b for b, _ in v) / sum(n for _, n in v))


def standard_methods(ensemble: Ensemble) -> dict[str, Method]:
    """Every single model, then every method."""
    singles: dict[str, Method] = {f"{model.name} alone": Single(m) for m, model in enumerate(ensemble.vocab.models)}
    return singles | {"UniTE": UniTE(), "GaC": GaC(), "SAFE": SAFE(), "SpecFuse": SpecFuse()}


def answer(ensemble: Ensemble, method: Method, questions: Sequence[Question], batch_size: int = 32) -> list[bool]:
    """Which questions a method answers right, greedily, on the first line of what it writes."""
    done = ensemble.generate(
        [q.prompt for q in questions], method=method, max_new_tokens=ANSWER_TOKENS, stop="\n", batch_size=batch_size
    )
    failed = [row.error for row in done if row.error]
    if failed:
        raise RuntimeError(f"a row of the evaluation failed: {failed[0]}")
    return [correct(question, row.text) for question, row in zip(questions, done, strict=True)]


def bits_of_text(ensemble: Ensemble, paragraphs: Sequence[str]) -> dict[str, Text]:
    """Bits that each model, and the weighted mixture of all, needs for each paragraph, after its first stretch.

    A text is cut at the places where every model's tokenization has an edge. A model's probability of a stretch is the
    product of its tokens' probabilities there; the mixture's is the weighted mean of the models', the arithmetic
    ensemble at the edges that all models share. So models with different tokenizers are measured on the same bytes.
    """
    names = [f"{model.name} alone" for model in ensemble.vocab.models]
    bits: dict[str, list[float]] = {name: [] for name in (*names, "mixture")}
    sizes = []
    for paragraph in paragraphs:
        data = paragraph.encode()
        per_model = [_token_logprobs(ensemble, m, data) for m in range(len(names))]
        edges = sorted(set.intersection(*({end for end, _ in tokens} for tokens in per_model)))
        stretches = [_stretches(tokens, edges) for tokens in per_model]
        for name, logs in zip(names, stretches, strict=True):
            bits[name].append(-sum(logs[1:]) / math.log(2))
        mixed = [_log_mean(values, ensemble.weights) for values in zip(*stretches, strict=True)]
        bits["mixture"].append(-sum(mixed[1:]) / math.log(2))
        sizes.append(len(data) - edges[0])
    return {name: Text(values, sizes) for name, values in bits.items()}


def _token_logprobs(ensemble: Ensemble, m: int, data: bytes) -> list[tuple[int, float]]:
    """Per token of model m: where its bytes end, and its log-probability (the first token of a model without BOS:
    0)."""
    runner, model = ensemble.runners[m], ensemble.vocab.models[m]
    ids = model.encode(data)
    start = [] if model.bos_id is None else [model.bos_id]
    slot = runner.acquire()
    try:
        logits = runner.extend([slot], [[*start, *ids[:-1]]], "all").values
    finally:
        runner.release(slot)
    targets = ids if start else ids[1:]
    told = torch.tensor(targets, dtype=torch.int32, device=logits.device)
    tensors = ensemble.vocab.tensors(logits.device)
    judged = kernels.verify_draft(logits, told, tensors.allowed[m], tensors.eos_ids[m])
    # from the logits themselves: a probability would be 0 where it is below the smallest float32
    chosen = logits.gather(1, told.long().unsqueeze(1)).squeeze(1).float()
    logs = (chosen - judged.logsumexp).tolist()
    ends, place = [], 0
    for index in ids:
        place += len(model.token_bytes[index])
        ends.append(place)
    return list(zip(ends, logs if start else [0.0, *logs], strict=True))


def _stretches(tokens: Sequence[tuple[int, float]], edges: Sequence[int]) -> list[float]:
    """Sums of log-probabilities between shared edges."""
    sums, place = [0.0] * len(edges), 0
    for end, log in tokens:
        sums[place] += log
        if end == edges[place]:
            place += 1
    return sums


def _log_mean(logs: Sequence[float], weights: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(sum(w * math.exp(x - top) for w, x in zip(weights, logs, strict=True)))


def evaluate(
    ensemble: Ensemble, paragraphs: Sequence[str], *, questions: int = 100, seed: int = 0, batch_size: int = 32
) -> dict[str, Any]:
    """Everything, as plain data: per method and kind the right answers, per model and the mixture the bits of the
    text."""
    kinds = {"arithmetic": arithmetic(questions, seed), "short questions": short(questions, seed)}
    answers = {
        name: {kind: answer(ensemble, method, asked, batch_size) for kind, asked in kinds.items()}
        for name, method in standard_methods(ensemble).items()
    }
    texts = bits_of_text(ensemble, paragraphs)
    return {
        "seed": seed,
        "questions": questions,
        "answers": answers,
        "text": {name: {"bits": text.bits, "sizes": text.sizes} for name, text in texts.items()},
    }


def quality_tables(found: Mapping[str, Any]) -> list[Table]:
    """Exact match and bits per byte, each with its 95 % interval, singles first."""
    answers = found["answers"]
    kinds = list(next(iter(answers.values())))
    rows = [[name, *(_share(given[kind]) for kind in kinds)] for name, given in answers.items()]
    title = f"Exact match in %, {found['questions']} questions each, seed {found['seed']} (95 % intervals)"
    texts = []
    for name, values in found["text"].items():
        text = Text(values["bits"], values["sizes"])
        low, high = text.interval
        texts.append([name, f"{text.mean:.3f} ({low:.3f} to {high:.3f})", f"{2**text.mean:.3f}"])
    paragraphs = len(next(iter(found["text"].values()))["sizes"])
    return [
        Table(title, ["who answers", *kinds], rows),
        Table(
            f"Held-out text, {paragraphs} paragraphs (95 % intervals over paragraphs)",
            ["whose probabilities", "bits per byte", "perplexity per byte"],
            texts,
        ),
    ]


def _share(right: list[bool]) -> str:
    share = Share(right)
    low, high = share.interval
    return f"{100 * share.mean:.0f} ({100 * low:.0f} to {100 * high:.0f})"
