"""What a job shows while it runs, at the widths that terminals have."""

import io
import re

import pytest
from rich.console import Console

from ensemble_decode.batch.progress import BarWatcher, left
from ensemble_decode.decode.batch_run import Counts

COUNTS = Counts(rows=16, running=8, tokens=360, drafted=100, accepted=61, ensembled=20, seconds=30.0, cache_bytes=2**29)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bar_has_rows_and_time_left_in_one_line_and_every_figure_below(width):
    out = io.StringIO()
    with BarWatcher(Console(file=out, width=width, force_terminal=True)) as watcher:
        watcher.note("going on: 400 of 500 lines")
        watcher.progress(416, 500, COUNTS)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).replace("\r", "\n")
    assert "going on: 400 of 500 lines\n" in shown
    assert re.search(r"^━.* 416/500 rows 0:02:38 left *$", shown, re.MULTILINE)  # 84 rows at 16 in 30 s
    figures = " ".join(shown.split())
    assert "12.0 tokens/s, 61% accepted, 6% ensembled, 8 running, caches 512 MiB" in figures


def test_time_left_is_that_of_this_run_alone():
    assert left(416, 500, COUNTS) == 84 * 30 / 16
    assert left(400, 500, Counts()) is None
