"""What ``determine`` found, as one value that can be written and read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ensemble_decode.determination.costs import ExpectedCost
from ensemble_decode.determination.figures import ModelFigures, PairFigures, Response
from ensemble_decode.determination.recommend import Recommendation, Rules


@dataclass(frozen=True)
class Findings:
    """Figures, recommendation and what they rest on.

    Attributes:
        models: One entry per model.
        pairs: One entry per pair of models.
        recommendation: Which to combine, if any.
        rules: By which rules.
        settings: What the figures depend on: data, generation, bootstrap, words.
        cost: What the recommended ensemble would cost; None without the models.
        items: The ids of the items.
        prompts: Their prompts, in the order of ``items``.
        responses: Per model its responses, in the order of ``items``.
    """

    models: list[ModelFigures]
    pairs: list[PairFigures]
    recommendation: Recommendation
    rules: Rules
    settings: dict[str, Any]
    cost: ExpectedCost | None = None
    items: list[str] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    responses: list[list[Response]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The models' names."""
        return [model.name for model in self.models]

    def pair(self, one: int, other: int) -> PairFigures:
        """The figures of two models, in whichever order."""
        return next(pair for pair in self.pairs if {pair.first, pair.second} == {one, other})

    def to_dict(self) -> dict[str, Any]:
        """Figures, recommendation, rules and settings as plain values, without prompts and responses."""
        whole = asdict(self)
        for bulky in ("items", "prompts", "responses"):
            del whole[bulky]
        return whole

    def to_json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
