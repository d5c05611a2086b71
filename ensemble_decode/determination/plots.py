"""The plots of the report, as SVG text. Models are named by letters, which the page's table explains."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ensemble_decode.determination.findings import Findings
from ensemble_decode.determination.recommend import allowed_gap
from ensemble_decode.determination.words import letter
from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Okabe and Ito's colours, told apart by colour-blind readers too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933")
_INK, _FAINT = "#222222", "#B8B8B8"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected and scales with the page
    "svg.hashsalt": "ensemble-decode",  # the same report gives the same bytes
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def _new(height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def draw(found: Findings) -> dict[str, str]:
    """All plots by name, as SVG: scores, lengths, and with two models or more words, js, room. Raises ``InputError``
    without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("the HTML report needs matplotlib: pip install 'ensemble-decode[determine]'") from error
    with matplotlib.rc_context(_STYLE):
        made = {"scores": _scores(found), "lengths": _lengths(found)}
        if found.pairs:
            made["room"] = _room(found)
        if any(pair.word_agreement is not None for pair in found.pairs):
            made["words"] = _matrix(found, [pair.word_agreement for pair in found.pairs], 1.0, 1.0, "{:.0%}", "Blues")
        js = [next(reversed(pair.js.values()), None) for pair in found.pairs]
        if any(value is not None for value in js):
            made["js"] = _matrix(found, js, 0.0, 0.6931, "{:.2f}", "Oranges")
    return made


def _rows(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.tick_params(length=0)
    axis.grid(axis="x", color=_FAINT, linewidth=0.5)
    axis.set_axisbelow(True)


def _scores(found: Findings) -> str:
    figure, axis = _new(1.0 + 0.45 * len(found.models))
    best = max(model.score.value for model in found.models)
    floor = max(0.0, best - allowed_gap(best, found.rules))
    axis.axvspan(floor, best, color=COLOURS[0], alpha=0.10, linewidth=0)
    for m, model in enumerate(found.models):
        score, colour = model.score, COLOURS[m % len(COLOURS)]
        axis.plot([score.low, score.high], [m, m], color=colour, linewidth=2, solid_capstyle="butt")
        axis.plot([score.value], [m], "o", color=colour, markersize=8)
        axis.annotate(
            f"{score.value:.1%}", (score.value, m), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=10
        )
    _rows(axis, [letter(m) for m in range(len(found.models))])
    axis.set_ylim(len(found.models) - 0.5, -0.75)
    axis.set_xlim(0, 1.02)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axis.set_xlabel("score")
    return _svg(figure)


def _lengths(found: Findings) -> str:
    figure, axis = _new(1.0 + 0.45 * len(found.models))
    lengths = [[len(one.text.split()) for one in side] for side in found.responses]
    for m, values in enumerate(lengths):
        colour = COLOURS[m % len(COLOURS)]
        axis.boxplot(
            [values],
            positions=[m],
            orientation="horizontal",
            widths=0.5,
            whis=(0, 100),
            patch_artist=True,
            showmeans=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
            medianprops={"color": colour, "linewidth": 2},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": colour, "markersize": 6},
        )
    _rows(axis, [letter(m) for m in range(len(found.models))])
    axis.set_xlim(left=0)
    axis.set_xlabel("words in a response")
    return _svg(figure)


def _matrix(
    found: Findings, values: Sequence[float | None], self_value: float, top: float, form: str, colours: str
) -> str:
    """A symmetric matrix of pair figures; ``self_value`` on its diagonal."""
    count = len(found.models)
    figure, axis = _new(1.0 + 0.75 * count)
    table: list[list[float | None]] = [[self_value if a == b else None for b in range(count)] for a in range(count)]
    for pair, value in zip(found.pairs, values, strict=True):
        table[pair.first][pair.second] = table[pair.second][pair.first] = value
    shown = [[float("nan") if cell is None else cell for cell in row] for row in table]
    axis.imshow(shown, cmap=colours, vmin=0, vmax=top, aspect="auto", alpha=0.85)
    for a in range(count):
        for b in range(count):
            cell = table[a][b]
            dark = cell is not None and cell > 0.6 * top
            axis.text(
                b, a, "?" if cell is None else form.format(cell), ha="center", va="center",
                color="white" if dark else _INK,
            )  # fmt: skip
    names = [letter(m) for m in range(count)]
    axis.set_xticks(range(count), names)
    axis.set_yticks(range(count), names)
    axis.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.spines[:].set_visible(False)
    return _svg(figure)


def _room(found: Findings) -> str:
    figure, axis = _new(1.3 + 0.45 * len(found.pairs))
    for row, pair in enumerate(found.pairs):
        parts = [
            (pair.both, "#4D4D4D"),
            (pair.only_first, COLOURS[pair.first % len(COLOURS)]),
            (pair.only_second, COLOURS[pair.second % len(COLOURS)]),
            (pair.neither, "#E4E4E4"),
        ]
        at = 0.0
        for share, colour in parts:
            axis.barh(row, share, left=at, height=0.6, color=colour)
            if share >= 0.08:
                ink = _INK if colour == "#E4E4E4" else "white"
                axis.text(at + share / 2, row, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=10)
            at += share
    _rows(axis, [f"{letter(pair.first)} and {letter(pair.second)}" for pair in found.pairs])
    axis.set_xlim(0, 1)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axis.set_xlabel("both right (dark), only one (its colour), neither (light)")
    return _svg(figure)
