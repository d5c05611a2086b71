"""The report: figures, recommendation and what they rest on, as one value that can be written and read again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ensemble_decode.determination.costs import ExpectedCost
from ensemble_decode.determination.figures import ModelFigures, PairFigures, Response
from ensemble_decode.determination.recommend import Recommendation, Rules


@dataclass(frozen=True)
class Report:
    """What ``determine`` found.

    ``responses[m]`` are those of model m, in the order of ``items`` (ids); ``prompts`` in the same order. ``settings`` say what the
    figures depend on: data, generation, bootstrap, words. ``cost`` is None without the models.
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
        return [model.name for model in self.models]

    def pair(self, one: int, other: int) -> PairFigures:
        """The figures of two models, in whichever order."""
        return next(pair for pair in self.pairs if {pair.first, pair.second} == {one, other})

    def to_dict(self) -> dict[str, Any]:
        """Figures, recommendation, rules and settings as plain values; without prompts and responses, which are saved beside it."""
        whole = asdict(self)
        for bulky in ("items", "prompts", "responses"):
            del whole[bulky]
        return whole

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """One page with everything in it: no file beside it, nothing fetched. Needs matplotlib (the extra ``determine``)."""
        from ensemble_decode.determination.html import page

        return page(self)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """``report.json`` and ``report.html`` in a folder; their paths."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        files = [home / "report.json", home / "report.html"]
        for file, text in zip(files, (self.to_json(), self.to_html()), strict=True):
            file.write_text(text, encoding="utf-8")
        return files
