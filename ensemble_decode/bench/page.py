"""One self-contained HTML page of a record: the machine, tables, plots inside."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ensemble_decode.bench.plots import draw_all
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.tables import Table, latency_tables, ratio_table
from ensemble_decode.determination.templates import render


def write_html(record: Record, path: Path, extra: Sequence[Table] = ()) -> None:
    """Write the page; it needs no other file and no network.

    Args:
        record: The run.
        path: The file.
        extra: Further tables, after the measured ones.

    Raises:
        InputError: matplotlib or jinja2 is not installed (the extra ``plot``).
    """
    suites = list(dict.fromkeys(cell.suite for cell in record.cells))
    tables = [table for suite in suites for table in latency_tables(record, suite)]
    tables += [table for suite in suites if (table := ratio_table(record, suite)) is not None]
    with tempfile.TemporaryDirectory(dir=path.absolute().parent) as folder:
        images = {
            name: base64.b64encode(file.read_bytes()).decode() for name, file in draw_all(record, Path(folder)).items()
        }
    page = render(
        __package__,
        "page.html.j2",
        "plot",
        run=record.run,
        facts=_facts(record),
        images=images,
        tables=[*tables, *extra],
        skipped=record.skipped,
    )
    path.write_text(page, encoding="utf-8")


def _facts(record: Record) -> list[str]:
    run = record.run
    return [
        *(f"{name}: {value}" for name, value in run["machine"].items() if value),
        *(f"{name} {value}" for name, value in run["versions"].items()),
        f"models: {', '.join(run['models'])}",
        run["dtype"],
        f"{run['threads']} threads",
        f"energy: {run['energy']}",
    ]
