"""The page of docs/benchmarks/: all of it runs on tiny models, and its computed figures are right."""

import json
import re

import pytest
from latency import figures
from latency.calibrate import Comparison, compare, settings_of, shapes_of
from latency.page import write_page
from latency.run import measure_all
from support import bench as support_bench
from support.bench import MODELS, cell

from ensemble_decode.bench.record import Record
from ensemble_decode.cost.devices import Device


def test_claims_are_taken_within_rounds():
    """Rounds drift (0.1, 0.2, 0.4); the median of the rounds' ratios (2, 1.5, 1) is not the ratio of the medians."""
    one, other = cell("unite", [0.2, 0.3, 0.4]), cell("single-0", [0.1, 0.2, 0.4])
    claim = figures.Claim("w", one, other, 1.6)
    assert claim.value.median == pytest.approx(1.5)
    assert figures.claim_table([claim]).rows[0][-1] == ">= 1.6: no"


def test_the_cost_model_beside_measurements():
    ensemble = support_bench.bench().ensemble
    shapes = shapes_of(ensemble)
    names = list(shapes)
    slow = Device("d", 1e12, 1e6, 1e12, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, measured=True)
    cells = [
        cell("unite", [0.1], models=names),
        cell("single-0", [0.1], models=names),
        cell("assisted", [0.1], models=names),
    ]
    found = compare(cells, shapes, slow)
    assert [one.label for one in found] == ["label of unite", "label of single-0"]
    weights = sum(4 * (shape.body + shape.head) for shape in shapes.values())
    assert found[0].modelled == pytest.approx(weights / 1e6, rel=0.2)
    assert found[0].error == found[0].modelled / 0.1 - 1
    assert Comparison("a", 1, 1, 1, 1, 2.0, 3.0).error == 0.5
    half = settings_of(cell("safe", [0.1], models=names, drafted=10, accepted=5)).stands
    assert sum(half**i for i in range(1, 6)) / 5 == pytest.approx(0.5)


def test_everything_runs_and_becomes_a_page(tmp_path):
    """The whole page on tiny models at the smallest sizes: measured, written, read back and drawn again alike."""
    made = measure_all(support_bench.bench(), lambda words: None, quick=True)
    assert {c.suite for c in made.cells} == {"latency", "others", "long", "length", "batch", "throughput", "models"}
    assert made.parts["cost"]
    made.write(tmp_path / "run.json")
    path = write_page(made, tmp_path / "docs", tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (tmp_path / "docs" / name).is_file()
    for words in (
        "UniTE over 256 tokens",
        "PREDICTED, not measured",
        "bits per byte",
        "transformers assisted generation",
        "no GPU",
    ):
        assert words in text
    assert "PREDICTED" in (tmp_path / "page.html").read_text(encoding="utf-8")
    again = write_page(Record.read(tmp_path / "run.json"), tmp_path / "again")
    assert again.read_text(encoding="utf-8") == text
    assert json.loads((tmp_path / "run.json").read_text())["parts"]["device"]["measured"]


def test_whole_texts_are_sums_over_straight_lines():
    made = Record.begin(MODELS, "float32", ["cpu"], "")
    for prompt in (32, 128, 512):
        made.cells += [
            cell("unite", [0.1], suite="length", prompt=prompt),
            cell("dictionary", [0.001 * prompt], suite="length", prompt=prompt, kind="baseline"),
        ]
    table = figures.whole_texts(made)
    assert table.rows[0][1:] == [f"{sum(32 + i for i in range(256)) / 256 / 100:.1f}", "not measured", "not measured"]
    assert table.rows[1][1] == f"{sum(32 + i for i in range(512)) / 512 / 100:.1f}"
