"""Records as tables: rows of strings for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ensemble_decode.bench.measure import Cell, Sample
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.stats import Figure, figure, ratio

SUITES = {
    "latency": "Latency at batch 1",
    "others": "Other ways at batch 1",
    "long": "Longer texts at batch 1",
    "length": "Tokens behind texts of growing length",
    "batch": "Batches",
    "models": "Number of models",
    "vocabulary": "Vocabulary size",
    "asked": "Measured",
}


class Table(NamedTuple):
    """A table of results: title, head and rows, as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def milliseconds(value: Figure) -> str:
    """A median with its quartiles, in milliseconds."""
    if value.rounds == 1:
        return f"{value.median * 1e3:.1f}"
    return f"{value.median * 1e3:.1f} ({value.low * 1e3:.1f} to {value.high * 1e3:.1f})"


def plain_ratio(value: Figure) -> str:
    """A ratio with its quartiles."""
    if value.rounds == 1:
        return f"{value.median:.2f}"
    return f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def sizes(cells: Sequence[Cell]) -> list[tuple[int, int, int, int]]:
    """The sizes measured: models, batch, prompt, tokens; in the order of measuring."""
    return list(dict.fromkeys((len(c.models), c.batch, c.prompt, c.tokens) for c in cells))


def latency_tables(record: Record, suite: str) -> list[Table]:
    """Two tables per size: what a user waits for, and what it is made of."""
    tables = []
    for size in sizes(record.suite(suite)):
        count, batch, prompt, tokens = size
        cells = [c for c in record.suite(suite) if (len(c.models), c.batch, c.prompt, c.tokens) == size]
        title = (
            f"{SUITES.get(suite, suite)}: batch {batch}, prompts of {prompt} tokens, {tokens} tokens, {count} models, "
            f"{len(cells[0].samples)} rounds"
        )
        columns = ["configuration", "first token ms", "between tokens ms", "p90", "p99", "tokens/s"]
        tables.append(Table(title, columns, [_times(cell) for cell in cells]))
        columns = [
            "configuration",
            "forwards %",
            "fusion %",
            "host %",
            "cache MB",
            "accepted %",
            "ensembled %",
            "J/token",
        ]
        tables.append(Table("The same: shares of the time, caches, tokens", columns, [_makeup(cell) for cell in cells]))
    return tables


def _label(cell: Cell) -> str:
    return ("" if cell.kind == "method" else "baseline: ") + cell.label


def _of(cell: Cell, pick: Callable[[Sample], float]) -> Figure:
    return figure(cell.values(pick))


def _times(cell: Cell) -> list[str]:
    rate = _of(cell, lambda s: s.tokens / s.seconds)
    return [
        _label(cell),
        milliseconds(_of(cell, lambda s: s.first)),
        milliseconds(_of(cell, lambda s: s.latency_median)),
        milliseconds(_of(cell, lambda s: s.latency_p90)),
        milliseconds(_of(cell, lambda s: s.latency_p99)),
        f"{rate.median:.1f}" + ("" if rate.rounds == 1 else f" ({rate.low:.1f} to {rate.high:.1f})"),
    ]


def _makeup(cell: Cell) -> list[str]:
    split = [_of(cell, lambda s, p=p: 100 * p(s) / s.seconds).median for p in _parts(cell)]  # type: ignore[misc]
    accepted = _of(cell, _accepted).median
    ensembled = _of(cell, lambda s: 100 * s.ensembled / s.tokens).median
    joules = [s.joules / s.tokens for s in cell.samples if s.joules is not None]
    return [
        _label(cell),
        " + ".join(f"{p:.0f}" for p in split[:-2]),
        f"{split[-2]:.1f}",
        f"{split[-1]:.1f}",
        f"{_of(cell, lambda s: s.cache_bytes / 1e6).median:.1f}",
        f"{accepted:.0f}" if any(s.accepted for s in cell.samples) else "",
        f"{ensembled:.0f}" if any(s.ensembled for s in cell.samples) else "",
        f"{figure(joules).median:.3f}" if joules else "not reported",
    ]


def _parts(cell: Cell) -> list[Any]:
    """What picks each part of the wall time: every model's forwards, fusion, host (what nobody counted is host work
    too)."""
    forwards: list[Any] = [lambda s, m=m: s.forward[m] for m in range(len(cell.models))]
    return [*forwards, lambda s: s.fusion, lambda s: s.host + s.outside]


def _accepted(sample: Sample) -> float:
    return 100 * sample.accepted / sample.drafted if sample.drafted else 0.0


def ratio_table(record: Record, suite: str) -> Table | None:
    """Every configuration's time per token over that of the first model alone (or the first configuration), size by
    size."""
    rows = []
    for count, batch, prompt, tokens in sizes(record.suite(suite)):
        cells = [
            c
            for c in record.suite(suite)
            if (len(c.models), c.batch, c.prompt, c.tokens) == (count, batch, prompt, tokens)
        ]
        base = next((c for c in cells if c.subject == "single-0"), cells[0])
        for cell in cells:
            value = ratio(cell.values(lambda s: s.per_token), base.values(lambda s: s.per_token))
            rows.append([f"batch {batch}, {prompt} + {tokens} tokens", cell.label, plain_ratio(value), base.label])
    return Table("Time per token as ratios", ["size", "configuration", "ratio", "to"], rows) if rows else None


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    lines = [f"**{table.title}**", "", "| " + " | ".join(table.columns) + " |"]
    lines.append("| --- |" + " ---: |" * (len(table.columns) - 1))
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"
