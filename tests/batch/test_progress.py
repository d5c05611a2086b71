"""What a job shows while it runs, at the widths that terminals have."""

import io
import random
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


def first_estimate(lengths: list[int], batch: int, second: float = 0.1) -> tuple[float, float]:
    """The first time left that is told, and the true one, where every round takes the same time."""
    waiting, running, clock, rows, most, told = list(lengths), [], 0.0, 0, 0, None
    while waiting or running:
        running += [waiting.pop(0) for _ in range(min(len(waiting), batch - len(running)))]
        clock, most = clock + second, max(most, len(running))
        running = [length - 1 for length in running]
        ended = running.count(0)
        running = [length for length in running if length]
        for _ in range(ended):
            rows += 1
            if told is None:
                rest = left(
                    rows, len(lengths), Counts(rows=rows, running=len(running), most_running=most, seconds=clock)
                )
                told = None if rest is None else (rest, clock)
    assert told is not None
    return told[0], clock - told[1]


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("lengths", ["equal", "mixed", "heavy tail"])
def test_the_first_time_left_is_near_the_truth(batch, lengths):
    draw = random.Random(batch)
    rows = {
        "equal": [64] * 400,
        "mixed": [draw.randint(1, 128) for _ in range(400)],
        "heavy tail": [min(512, int(4 * draw.paretovariate(1.2))) for _ in range(400)],
    }[lengths]
    estimate, truth = first_estimate(rows, batch)
    assert truth / 5 < estimate < truth * 5


def test_rows_in_error_say_nothing_about_the_pace():
    assert left(20, 500, Counts(rows=20, errors={"field": 18}, running=1, seconds=0.1)) is None
