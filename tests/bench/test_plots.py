"""Plots show the record's figures, whole and with units."""

import re
import struct

import pytest
from support.bench import MODELS, cell

from ensemble_decode.bench import plots
from ensemble_decode.bench.record import Record
from ensemble_decode.errors import InputError


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
