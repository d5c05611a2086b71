"""The plots of a record, as PNG: latency against length, the time split, batch scaling, cost against the number of
models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble_decode.bench.measure import Cell, Sample
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.stats import figure
from ensemble_decode.errors import InputError

_COLOURS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#444444",
    "#8C564B",
]  # Okabe and Ito's, and two more
_SIZE = (8.0, 4.6)
_DPI = 100  # 800 pixels wide


def require() -> Any:
    """matplotlib's pyplot without a display; ``InputError`` names the extra where it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'ensemble-decode[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_all(record: Record, folder: Path) -> dict[str, Path]:
    """Every plot that the record has figures for, as ``NAME.png`` in ``folder``; the paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, draw in PLOTS.items():
        plot = draw(record)
        if plot is not None:
            path = folder / f"{name}.png"
            plot.savefig(path, dpi=_DPI, metadata={"Software": None})
            require().close(plot)
            made[name] = path
    return made


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    plot, axes = require().subplots(figsize=_SIZE, layout="constrained")
    axes.set_title(title, fontsize=13)
    axes.set_xlabel(x, fontsize=12)
    axes.set_ylabel(y, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return plot, axes


def _lines(axes: Any, cells: Sequence[Cell], place: Callable[[Cell], float], value: Callable[[Any], float]) -> None:
    """One line per configuration with its quartiles as a band; baselines dashed. A label stands in the legend beside
    the plot."""
    for i, subject in enumerate(dict.fromkeys(cell.subject for cell in cells)):
        own = sorted((cell for cell in cells if cell.subject == subject), key=place)
        x = [place(cell) for cell in own]
        y = [figure(cell.values(value)) for cell in own]
        style = "--" if own[0].kind == "baseline" else "-"
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(x, [f.median for f in y], style, marker="o", markersize=4, color=colour, label=_short(own[0]))
        axes.fill_between(x, [f.low for f in y], [f.high for f in y], color=colour, alpha=0.15, linewidth=0)
    axes.legend(fontsize=10, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _short(cell: Cell) -> str:
    label = cell.label.replace("transformers assisted generation: ", "assisted: ")
    words = label.replace("transformers generate, ", "generate, ")
    return (words if len(words) <= 34 else words[:33] + "…") + ("\n(baseline)" if cell.kind == "baseline" else "")


def _ticks(axes: Any, axis: str, values: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    which = getattr(axes, f"{axis}axis")
    which.set_major_locator(FixedLocator(sorted(set(values))))
    which.set_minor_locator(NullLocator())
    which.set_major_formatter(lambda value, _: f"{value:g}")


def latency_against_length(record: Record) -> Any:
    """Milliseconds between two tokens behind texts of several lengths."""
    cells = record.suite("length")
    if len({cell.prompt for cell in cells}) < 2:
        return None
    plot, axes = _axes("Time per token, batch 1", "tokens of text so far", "milliseconds per token")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _lines(axes, cells, lambda cell: cell.prompt, lambda s: 1e3 * s.latency_mean)
    _ticks(axes, "x", [cell.prompt for cell in cells])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return plot


def time_split(record: Record) -> Any:
    """Shares of the wall time: every model's forwards, fusion, host."""
    cells = next((record.suite(name) for name in ("latency", "asked") if record.suite(name)), [])
    sizes = [(cell.batch, cell.prompt, cell.tokens) for cell in cells]
    cells = [cell for cell in cells if (cell.batch, cell.prompt, cell.tokens) == sizes[0]]
    if not cells:
        return None
    first = cells[0]
    title = f"Where the time goes: batch {first.batch}, {first.tokens} tokens"
    plot, axes = _axes(title, "milliseconds per token", "")
    names = [f"forwards of {model.removeprefix('demo:')}" for model in first.models] + ["fusion", "host"]
    left = [0.0] * len(cells)
    for i, name in enumerate(names):
        widths = [1e3 * figure([_part(s, i) / s.tokens for s in cell.samples]).median for cell in cells]
        axes.barh(range(len(cells)), widths, left=left, color=_COLOURS[i], label=name, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(cells)), [_short(cell) for cell in cells])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    plot.legend(fontsize=10, frameon=False, loc="outside lower center", ncols=4 if len(names) == 4 else 3)
    return plot


def _part(sample: Sample, i: int) -> float:
    parts = [*sample.forward, sample.fusion, sample.host + sample.outside]
    return parts[i]


def batch_scaling(record: Record) -> Any:
    """Tokens per second of the whole batch."""
    cells = record.suite("batch")
    if len({cell.batch for cell in cells}) < 2:
        return None
    plot, axes = _axes("Throughput", "rows in the batch", "tokens per second, all rows")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _lines(axes, cells, lambda cell: cell.batch, lambda s: s.tokens / s.seconds)
    _ticks(axes, "x", [cell.batch for cell in cells])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return plot


def cost_against_models(record: Record) -> Any:
    """Milliseconds per token with two models and more."""
    cells = record.suite("models")
    if len({len(cell.models) for cell in cells}) < 2:
        return None
    plot, axes = _axes("Cost of one more model, batch 1", "models", "milliseconds per token")
    _lines(axes, cells, lambda cell: len(cell.models), lambda s: 1e3 * s.latency_mean)
    _ticks(axes, "x", [len(cell.models) for cell in cells])
    axes.set_ylim(bottom=0)
    return plot


PLOTS: dict[str, Callable[[Record], Any]] = {
    "latency_length": latency_against_length,
    "time_split": time_split,
    "batch_scaling": batch_scaling,
    "models_cost": cost_against_models,
}
