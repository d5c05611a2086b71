"""One self-contained HTML page of a record: the machine, tables, plots inside."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ensemble_decode.bench.plots import draw_all
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.tables import Table, latency_tables, ratio_table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 2rem; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; display: block; margin: 1rem 0; }
"""


def write_html(record: Record, path: Path, extra: Sequence[Table] = ()) -> None:
    """Write the page; it needs no other file and no network. ``extra``: further tables, after the measured ones."""
    suites = list(dict.fromkeys(cell.suite for cell in record.cells))
    tables = [table for suite in suites for table in latency_tables(record, suite)]
    tables += [table for suite in suites if (table := ratio_table(record, suite)) is not None]
    with tempfile.TemporaryDirectory(dir=path.absolute().parent) as folder:
        images = {name: file.read_bytes() for name, file in draw_all(record, Path(folder)).items()}
    parts = ["<!doctype html>", '<html lang="en"><meta charset="utf-8"><title>ensemble-decode bench</title>']
    parts += [f"<style>{_STYLE}</style>", "<h1>ensemble-decode bench</h1>", _facts(record)]
    for name, content in images.items():
        data = base64.b64encode(content).decode()
        parts.append(f'<img alt="{escape(name.replace("_", " "))}" src="data:image/png;base64,{data}">')
    parts += [_html_table(table) for table in (*tables, *extra)]
    parts += [
        f"<p>Not measured at batch {entry['batch']}: {escape(entry['label'])}: {escape(entry['reason'])}.</p>"
        for entry in record.skipped
    ]
    path.write_text("\n".join([*parts, "</html>"]) + "\n", encoding="utf-8")


def _facts(record: Record) -> str:
    run = record.run
    words = [f"{name}: {value}" for name, value in run["machine"].items() if value]
    words += [f"{name} {value}" for name, value in run["versions"].items()]
    words += [
        f"models: {', '.join(run['models'])}",
        run["dtype"],
        f"{run['threads']} threads",
        f"energy: {run['energy']}",
    ]
    return f"<p>Run {escape(run['id'][:8])}. {escape('; '.join(words))}. Compare configurations of this run only.</p>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{rows}</table>"
