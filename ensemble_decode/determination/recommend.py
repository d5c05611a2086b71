"""Which models to combine, if any: the rules of "Determine-then-ensemble" (arXiv 2410.03777), each a parameter.

The paper combines models whose scores lie within 10 % of the best and whose responses are of comparable length. That 10
% means points of accuracy, and every other number, is this package's default and not the paper's. The choice of the
method follows what the three methods were made for: UniTE (2410.03777) answers of a few tokens, SAFE (2510.15346) long
ones and tokenizers that disagree, SpecFuse (2412.07380) open-ended text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ensemble_decode.determination.figures import ModelFigures, PairFigures, Response, oracle_choice
from ensemble_decode.determination.stats import Bootstrap, Estimate
from ensemble_decode.schema.options import FLAG, INTEGER, NUMBER, Options


@dataclass(frozen=True)
class Rules(Options):
    """What makes a set of models worth combining, and which method suits it.

    Args:
        max_gap: How far a member's score may lie below the best one.
        gap: Whether that distance is in ``"points"`` (0.1 is ten points of accuracy) or ``"relative"`` to the best
            score.
        max_length_ratio: Mean words of a response, longer over shorter, between any two members.
        min_room: How much a further model must raise the score of choosing the best response for each item.
        short_words: Responses of up to so many words, on average, are short.
        near_equal: Word agreement from which two tokenizers are nearly equal.
        open_ended: Whether the task has no right answers. None: where most items have none.
        max_models: The largest set.
    """

    max_gap: Annotated[float, Field(ge=0), NUMBER] = 0.10
    gap: Literal["points", "relative"] = "points"
    max_length_ratio: Annotated[float, Field(ge=1), NUMBER] = 2.0
    min_room: Annotated[float, Field(ge=0), NUMBER] = 0.01
    short_words: Annotated[float, Field(ge=0), NUMBER] = 32.0
    near_equal: Annotated[float, Field(ge=0), NUMBER] = 0.9
    open_ended: Annotated[bool, FLAG] | None = None
    max_models: Annotated[int, Field(ge=2), INTEGER] = 3


@dataclass(frozen=True)
class Recommendation:
    """``models``: places of the members, the primary first; of one alone where ``ensemble`` is False.

    ``reasons`` say why, ``left_out`` why not, by model. ``oracle``: the score of choosing the best of the members'
    responses for each item. ``method``: "unite", "safe", "specfuse", or "single".
    """

    ensemble: bool
    models: list[int]
    method: str
    reasons: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    oracle: Estimate | None = None

    @property
    def primary(self) -> int:
        """The number of the model that becomes the primary."""
        return self.models[0]


def recommend(
    models: Sequence[ModelFigures],
    pairs: Sequence[PairFigures],
    responses: Sequence[Sequence[Response]],
    boot: Bootstrap,
    rules: Rules,
    open_ended: bool,
) -> Recommendation:
    """Apply the rules. ``open_ended``: whether most items have no right answer; ``rules.open_ended`` goes before it."""
    # sorted() keeps the order given among equal scores
    ranked = sorted(range(len(models)), key=lambda m: -models[m].score.value)
    best, chosen, left_out = ranked[0], [ranked[0]], {}
    if models[best].score.value == 0:
        reason = "no model has anything right, so there is nothing to combine"
        return Recommendation(False, [best], "single", [f"Do not ensemble: {reason}."], {}, None)
    for m in ranked[1:]:
        why_not = _refusal(m, chosen, best, models, pairs, responses, rules)
        if why_not is None:
            chosen.append(m)
        else:
            left_out[models[m].name] = why_not
    if len(chosen) == 1:
        name = models[best].name
        alone = "it is the only model" if len(models) == 1 else "no other model passes the rules"
        reasons = [f"Do not ensemble: use {name} alone; {alone}."]
        return Recommendation(False, [best], "single", reasons, left_out, None)
    members = _primary_first(chosen, models, pairs)
    method, why = _method(members, models, pairs, rules, open_ended if rules.open_ended is None else rules.open_ended)
    oracle = boot.mean(oracle_choice(responses, members))
    return Recommendation(
        True, members, method, [*_reasons(members, best, models, pairs, oracle, rules), why], left_out, oracle
    )


def pair_of(pairs: Sequence[PairFigures], a: int, b: int) -> PairFigures:
    """The figures of two models, in whichever order."""
    return next(pair for pair in pairs if {pair.first, pair.second} == {a, b})


def allowed_gap(best: float, rules: Rules) -> float:
    """The largest gap to the best score, in points of the score."""
    return rules.max_gap * (best if rules.gap == "relative" else 1.0)


def _refusal(
    m: int,
    chosen: Sequence[int],
    best: int,
    models: Sequence[ModelFigures],
    pairs: Sequence[PairFigures],
    responses: Sequence[Sequence[Response]],
    rules: Rules,
) -> str | None:
    """Why model m is not taken into the set, or None."""
    gap, limit = models[m].gap, allowed_gap(models[best].score.value, rules)
    if gap.value > limit + 1e-12:
        unsure = (
            f"; the interval reaches down to {_points(gap.low)}, so more items may change this"
            if gap.low <= limit
            else ""
        )
        return f"its score is {_points(gap.value)} below the best, more than {_points(limit)}{unsure}"
    for other in chosen:
        length = pair_of(pairs, m, other).words_ratio
        if length is None or length > rules.max_length_ratio + 1e-12:
            times = "is empty beside" if length is None else f"differs {length:.1f} times from"
            return (
                f"its response length {times} that of {models[other].name}, more than {rules.max_length_ratio:g} times"
            )
    if len(chosen) >= rules.max_models:
        return f"{rules.max_models} better models are in already"
    before, after = (oracle_choice(responses, members) for members in (chosen, [*chosen, m]))
    room = (sum(after) - sum(before)) / len(after)
    if room < rules.min_room - 1e-12:
        return (
            f"it adds {_points(room)} to what choosing the best response could reach, less than "
            f"{_points(rules.min_room)}: "
            "it is right where the others are"
        )
    return None


def _primary_first(chosen: Sequence[int], models: Sequence[ModelFigures], pairs: Sequence[PairFigures]) -> list[int]:
    """The best score writes; of equal scores the one whose positions are safest for the others, then the first
    given."""

    def unsafe(m: int) -> float:
        shares = []
        for other in chosen:
            if other != m:
                pair = pair_of(pairs, m, other)
                share = pair.unsafe[0 if pair.first == m else 1]
                shares.append(0.0 if share is None else share)
        return sum(shares)

    primary = min(chosen, key=lambda m: (-models[m].score.value, unsafe(m)))
    return [primary, *(m for m in chosen if m != primary)]


def _method(
    members: Sequence[int],
    models: Sequence[ModelFigures],
    pairs: Sequence[PairFigures],
    rules: Rules,
    open_ended: bool,
) -> tuple[str, str]:
    inside = [pair_of(pairs, a, b) for i, a in enumerate(members) for b in members[i + 1 :]]
    words = max(models[m].words.mean for m in members)
    agreements = [pair.word_agreement for pair in inside if pair.word_agreement is not None]
    if open_ended:
        return (
            "specfuse",
            "Method SpecFuse: the task is open-ended; whole segments compete and tokenizers need not agree.",
        )
    if words > rules.short_words:
        return "safe", f"Method SAFE: answers are long ({words:.1f} words on average, above {rules.short_words:g})."
    length = f"answers are short ({words:.1f} words on average)"
    if not agreements:
        return "safe", f"Method SAFE: {length}, but how far the tokenizers agree is not known; SAFE needs no agreement."
    least = min(agreements)
    if least >= rules.near_equal:
        return (
            "unite",
            f"Method UniTE: {length} and the tokenizers nearly equal (they cut {least:.0%} of common words alike).",
        )
    return (
        "safe",
        f"Method SAFE: {length}, but the tokenizers cut only {least:.0%} of common words alike (near-equal is "
        f"{rules.near_equal:.0%}).",
    )


def _reasons(
    members: Sequence[int],
    best: int,
    models: Sequence[ModelFigures],
    pairs: Sequence[PairFigures],
    oracle: Estimate,
    rules: Rules,
) -> list[str]:
    limit = allowed_gap(models[best].score.value, rules)
    reasons = []
    for m in members:
        if m == best:
            continue
        gap, name = models[m].gap, models[m].name
        unsure = (
            f"; its interval reaches {_points(gap.high)}, so more items could decide otherwise"
            if gap.high > limit
            else ""
        )
        reasons.append(
            f"{name} scores {_points(gap.value)} below {models[best].name}, within {_points(limit)}{unsure}."
        )
    inside = [pair_of(pairs, a, b) for i, a in enumerate(members) for b in members[i + 1 :]]
    longest = max(pair.words_ratio or 1.0 for pair in inside)
    reasons.append(f"Response lengths are comparable: {longest:.2f} times at most, within {rules.max_length_ratio:g}.")
    room = oracle.value - models[best].score.value
    reasons.append(
        f"There is room: choosing the best response for each item would score {oracle.value:.1%}, "
        f"{_points(room)} above the best "
        "model. It is an upper bound for choosing, not a forecast."
    )
    return reasons


def _points(value: float) -> str:
    """A difference of scores: 0.034 is 3.4 points."""
    return f"{100 * value:.1f} points"
