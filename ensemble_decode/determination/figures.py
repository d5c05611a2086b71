"""Every figure of a report, from graded responses and saved comparisons. Nothing here runs a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ensemble_decode.determination.stats import Bootstrap, Estimate, Spread, mean_or_none, ratio
from ensemble_decode.determination.tokens import SharedVocabulary


@dataclass(frozen=True)
class Response:
    """One model's response to one item. ``score`` in 0..1; ``given``: the answer it gives, None where none can be
    found."""

    id: str
    text: str
    score: float
    given: str | None
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class ModelFigures:
    """One model. ``gap``: the best model's score less its own, paired over items. Lengths in characters and words.

    ``ended``, ``cut``: shares of responses that ended by themselves (END or a stop string) and at the limit of tokens;
    None where that is not known. ``failed``: responses that are errors; they count as wrong and empty.
    """

    name: str
    score: Estimate
    gap: Estimate
    characters: Spread
    words: Spread
    ended: float | None
    cut: float | None
    failed: int


@dataclass(frozen=True)
class PairFigures:
    """Two models, by their places in the list. All shares are of items, unless said otherwise.

    ``equal_answers``: both give the same answer. ``both``, ``only_first``, ``only_second``, ``neither`` have it right
    (a score of at least 1/2). ``oracle``: the score if the better response were chosen for each item, an upper bound
    for choosing between them; ``room``: that less the better model's score. ``characters_ratio``, ``words_ratio``: mean
    lengths, longer over shorter. ``js``: nats, the mean over the first 1, 2, ... positions of the responses, each
    model's responses with equal weight; ``js_at``: the mean at each position; ``same_top``, ``stands``: shares of those
    positions. ``unsafe``: share of positions that are not safe in SAFE, where the first model drafts, and where the
    second does. None: not known without the models, or nothing to average.
    """

    first: int
    second: int
    equal_answers: float
    both: float
    only_first: float
    only_second: float
    neither: float
    oracle: Estimate
    room: Estimate
    characters_ratio: float | None
    words_ratio: float | None
    vocabulary: SharedVocabulary | None = None
    word_agreement: float | None = None
    js: dict[str, float | None] = field(default_factory=dict)
    js_at: list[float | None] = field(default_factory=list)
    same_top: float | None = None
    stands: float | None = None
    unsafe: tuple[float | None, float | None] = (None, None)


def best_model(scores: Sequence[Sequence[float]]) -> int:
    """The model of the highest mean score; of equals the first."""
    means = [sum(one) / len(one) for one in scores]
    return max(range(len(means)), key=means.__getitem__)


def model_figures(name: str, mine: Sequence[Response], best: Sequence[Response], boot: Bootstrap) -> ModelFigures:
    """The figures of one model from its responses; ``best``: those of the best single model."""
    scores = [one.score for one in mine]
    known = [one.finish_reason for one in mine if one.finish_reason is not None]
    return ModelFigures(
        name=name,
        score=boot.mean(scores),
        gap=boot.difference([one.score for one in best], scores),
        characters=Spread.of([len(one.text) for one in mine]),
        words=Spread.of([len(one.text.split()) for one in mine]),
        ended=mean_or_none([float(reason == "stop") for reason in known]),
        cut=mean_or_none([float(reason == "length") for reason in known]),
        failed=sum(one.error is not None for one in mine),
    )


def same_answer(one: Response, other: Response) -> bool:
    """The same answer; where neither gives one, the same text."""
    if one.given is None and other.given is None:
        return one.text.split() == other.text.split()
    return one.given == other.given


def pair_figures(
    places: tuple[int, int], one: Sequence[Response], other: Sequence[Response], boot: Bootstrap
) -> PairFigures:
    """The figures that responses alone give."""
    count = len(one)
    right = [(a.score >= 0.5, b.score >= 0.5) for a, b in zip(one, other, strict=True)]
    scores_a, scores_b = [a.score for a in one], [b.score for b in other]
    choices = [max(a, b) for a, b in zip(scores_a, scores_b, strict=True)]
    better = scores_a if sum(scores_a) >= sum(scores_b) else scores_b
    characters = [sum(len(r.text) for r in side) / count for side in (one, other)]
    words = [sum(len(r.text.split()) for r in side) / count for side in (one, other)]
    return PairFigures(
        first=places[0],
        second=places[1],
        equal_answers=sum(same_answer(a, b) for a, b in zip(one, other, strict=True)) / count,
        both=right.count((True, True)) / count,
        only_first=right.count((True, False)) / count,
        only_second=right.count((False, True)) / count,
        neither=right.count((False, False)) / count,
        oracle=boot.mean(choices),
        room=boot.difference(choices, better),
        characters_ratio=ratio(*characters),
        words_ratio=ratio(*words),
    )


def oracle_choice(responses: Sequence[Sequence[Response]], members: Sequence[int]) -> list[float]:
    """Per item the best score among the members: what choosing between their responses could reach at most."""
    return [max(item) for item in zip(*([r.score for r in responses[m]] for m in members), strict=True)]


def likeness(
    one: Sequence[Mapping], other: Sequence[Mapping], marks: Sequence[int]
) -> tuple[dict[str, float | None], list[float | None], float | None, float | None]:
    """Of the records of both directions: JS over the first 1, 2, ... positions, JS at each, ``same_top`` and
    ``stands``."""

    def over(name: str, positions: range) -> float | None:
        sides = []
        for records in (one, other):
            values = [float(r[name][i]) for r in records for i in positions if i < len(r[name])]
            sides.append(mean_or_none(values))
        return mean_or_none([side for side in sides if side is not None])

    everywhere = range(max(marks))
    return (
        {str(mark): over("js", range(mark)) for mark in marks},
        [over("js", range(i, i + 1)) for i in everywhere],
        over("same_top", everywhere),
        over("stands", everywhere),
    )
