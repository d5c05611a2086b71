"""Records, tables, plots and pages: nothing is lost on the way to paper, and runs are never mixed."""

import base64
import json
import re
import struct

import pytest
from support import bench as support_bench

from ensemble_decode.bench import docs_page, page, plots, tables, whole_run
from ensemble_decode.bench.calibrate import Comparison, compare, settings_of, shapes_of
from ensemble_decode.bench.measure import Cell, Sample
from ensemble_decode.bench.record import Record, join
from ensemble_decode.cost.devices import Device
from ensemble_decode.errors import InputError

MODELS = ["first", "second"]


def sample(per_token, tokens=10, **fields):
    seconds = per_token * tokens
    made = {
        "tokens": tokens, "seconds": seconds, "first": per_token, "latency_mean": per_token, "latency_median": per_token,
        "latency_p90": 2 * per_token, "latency_p99": 3 * per_token, "forward": [0.6 * seconds, 0.2 * seconds], "fusion": 0.1 * seconds,
        "host": 0.09 * seconds, "outside": 0.01 * seconds, "cache_bytes": 2_000_000, "drafted": 0, "accepted": 0, "ensembled": 0,
        "joules": None,
    }  # fmt: skip
    return Sample(**(made | fields))


def cell(subject, per_tokens, *, suite="asked", batch=1, prompt=32, kind="method", models=MODELS, **fields):
    return Cell(
        suite,
        subject,
        f"label of {subject}",
        kind,
        models,
        batch,
        prompt,
        10,
        [sample(p, **fields) for p in per_tokens],
    )


@pytest.fixture
def record():
    made = Record.begin(MODELS, "bfloat16", ["cpu", "cpu"], "not reported: only CUDA devices are read")
    made.cells = [cell("single-0", [0.1, 0.2, 0.4]), cell("unite", [0.2, 0.3, 0.4])]
    for prompt in (32, 128):
        made.cells += [
            cell("unite", [0.2], suite="length", prompt=prompt),
            cell("dictionary", [0.01 * prompt], suite="length", prompt=prompt, kind="baseline"),
        ]
    made.cells += [cell("unite", [0.1 / batch], suite="batch", batch=batch) for batch in (1, 4)]
    for count in (2, 3):
        made.cells.append(
            cell("unite", [0.1 * count], suite="models", models=MODELS + ["third"] * (count - 2), forward=[0.1] * count)
        )
    made.skipped = [{"subject": "segments", "label": "x", "batch": 4, "reason": "only <one> row"}]
    return made


def test_a_record_comes_back_as_it_was(record, tmp_path):
    record.write(tmp_path / "run.json")
    back = Record.read(tmp_path / "run.json")
    assert back == record
    assert join([back, Record.read(tmp_path / "run.json")]) == record  # pieces of one run


def test_runs_are_not_compared(record, tmp_path):
    other = Record.begin(MODELS, "bfloat16", ["cpu", "cpu"], "")
    assert other.run["id"] != record.run["id"]
    with pytest.raises(InputError, match="did not alternate in one process"):
        join([record, other])


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"schema": 1, "run": {}, "cells": [{}], "skipped": [], "parts": {}}', '{"schema": 99}']
)
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=r"x\.json"):
        Record.read(tmp_path / "x.json")


def test_figures_of_a_table(record):
    waits, makeup = tables.latency_tables(record, "asked")
    single, unite = (
        dict(zip([*waits.columns, *makeup.columns], [*a, *b], strict=True))
        for a, b in zip(waits.rows, makeup.rows, strict=True)
    )
    assert single["between tokens ms"] == "200.0 (150.0 to 300.0)"
    assert unite["p99"] == "900.0 (750.0 to 1050.0)"
    assert (unite["forwards %"], unite["fusion %"], unite["host %"]) == ("60 + 20", "10.0", "10.0")
    assert unite["cache MB"] == "2.0"
    assert unite["J/token"] == "not reported"
    assert single["tokens/s"] == "5.0 (3.8 to 7.5)"


def test_shares_and_energy_of_a_table():
    made = Record.begin(MODELS, "float32", ["cuda:0"], "NVML")
    made.cells = [cell("safe", [0.1, 0.1], drafted=8, accepted=6, ensembled=3, joules=5.0)]
    _, table = tables.latency_tables(made, "asked")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["accepted %"], row["ensembled %"], row["J/token"]) == ("75", "30", "0.500")


def test_ratios_are_taken_within_rounds(record):
    """Rounds drift (0.1, 0.2, 0.4); the median of the rounds' ratios (2, 1.5, 1) is not the ratio of the medians."""
    table = tables.ratio_table(record, "asked")
    assert table.rows[0][2] == "1.00 (1.00 to 1.00)"
    assert table.rows[1][2] == "1.50 (1.25 to 1.75)"
    claim = tables.Claim("w", record.cells[1], record.cells[0], 1.6)
    assert claim.value.median == pytest.approx(1.5)
    assert tables.claim_table([claim]).rows[0][-1] == ">= 1.6: no"


def test_every_plot_is_drawn_at_readme_width_with_units(record, tmp_path):
    made = plots.draw_all(record, tmp_path)
    assert set(made) == set(plots.PLOTS)
    for path in made.values():
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert struct.unpack(">I", head[16:20])[0] == 800
        assert path.stat().st_size < 120_000
    for draw in plots.PLOTS.values():
        plot = draw(record)
        (axes,) = plot.axes
        words = f"{axes.get_xlabel()} {axes.get_ylabel()}"
        assert re.search("milliseconds|tokens per second", words)
        assert axes.get_title()
        assert min(label.get_fontsize() for label in (axes.xaxis.label, axes.title)) >= 12
        (legend,) = [found for found in (axes.get_legend(), *plot.legends) if found is not None]
        plot.draw_without_rendering()
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= plot.bbox.width  # nothing of it is cut off


def test_a_plot_shows_the_figures(record):
    (axes,) = plots.latency_against_length(record).axes
    lines = {line.get_label().split("\n")[0]: line for line in axes.get_lines()}
    assert list(lines["label of dictionary"].get_ydata()) == pytest.approx([320, 1280])
    assert list(lines["label of dictionary"].get_xdata()) == [32, 128]
    assert lines["label of dictionary"].get_linestyle() == "--"
    assert lines["label of unite"].get_linestyle() == "-"


def test_without_figures_no_plot(tmp_path):
    made = Record.begin(MODELS, "float32", ["cpu"], "")
    made.cells = [cell("unite", [0.1])]
    assert set(plots.draw_all(made, tmp_path)) == {"time_split"}


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"ensemble-decode\[plot\]"):
        plots.require()


def test_the_page_is_self_contained(record, tmp_path):
    page.write_html(record, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(images) == len(plots.PLOTS) == text.count("<img")
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "only &lt;one&gt; row" in text
    assert "label of dictionary" in text


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
    made = whole_run.measure_all(support_bench.bench(), lambda words: None, quick=True)
    assert {c.suite for c in made.cells} == {"latency", "others", "long", "length", "batch", "throughput", "models"}
    assert made.parts["cost"]
    made.write(tmp_path / "run.json")
    path = docs_page.write_page(made, tmp_path / "docs", tmp_path / "page.html")
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
    again = docs_page.write_page(Record.read(tmp_path / "run.json"), tmp_path / "again")
    assert again.read_text(encoding="utf-8") == text
    assert json.loads((tmp_path / "run.json").read_text())["parts"]["device"]["measured"]


def test_whole_texts_are_sums_over_straight_lines():
    made = Record.begin(MODELS, "float32", ["cpu"], "")
    for prompt in (32, 128, 512):
        made.cells += [
            cell("unite", [0.1], suite="length", prompt=prompt),
            cell("dictionary", [0.001 * prompt], suite="length", prompt=prompt, kind="baseline"),
        ]
    table = docs_page._whole_texts(made)
    assert table.rows[0][1:] == [f"{sum(32 + i for i in range(256)) / 256 / 100:.1f}", "not measured", "not measured"]
    assert table.rows[1][1] == f"{sum(32 + i for i in range(512)) / 512 / 100:.1f}"
