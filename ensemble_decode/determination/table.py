"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ensemble_decode.determination import words
from ensemble_decode.determination.findings import Findings
from ensemble_decode.determination.words import letter


def show(found: Findings, console: Console) -> None:
    """Print the report: models, pairs, recommendation."""
    parts: list[RenderableType] = [_models(found)]
    if found.pairs:
        parts.append(_pairs(found))
    console.print(Group(*parts))
    console.print(f"[bold]{escape(words.headline(found))}[/]", highlight=False)
    for line in words.reasons(found):
        console.print(Padding(f"• {escape(line)}", (0, 0, 0, 2)), highlight=False)


def _models(found: Findings) -> Table:
    """One column a model, as few are compared and their figures are many."""
    table = Table("", title=f"{found.settings['data']['items']} items", title_justify="left")
    for m in range(len(found.models)):
        table.add_column(letter(m), justify="right", overflow="fold")
    table.add_row("model", *map(escape, found.names))
    for name, values in words.model_figures(found).items():
        table.add_row(name, *values)
    return table


def _pairs(found: Findings) -> Table:
    """One column a pair: there are more figures than pairs that a terminal is wide."""
    table = Table(title="pairs", title_justify="left")
    table.add_column("")
    for pair in found.pairs:
        table.add_column(f"{letter(pair.first)} and {letter(pair.second)}", justify="right")
    for name, values in pair_rows(found):
        table.add_row(name, *values)
    return table


def pair_rows(found: Findings) -> list[tuple[str, list[str]]]:
    """Every figure of the pairs, in words: a name, and a value per pair."""
    pairs = found.pairs
    rows = [
        ("equal answers", [words.percent(pair.equal_answers) for pair in pairs]),
        ("both right", [words.percent(pair.both) for pair in pairs]),
        ("only the first right", [words.percent(pair.only_first) for pair in pairs]),
        ("only the second right", [words.percent(pair.only_second) for pair in pairs]),
        ("oracle choice", [words.percent(pair.oracle.value) for pair in pairs]),
        ("oracle above the better, points", [words.points(pair.room.value) for pair in pairs]),
        ("length ratio, words", [words.times(pair.words_ratio) for pair in pairs]),
        ("length ratio, characters", [words.times(pair.characters_ratio) for pair in pairs]),
    ]
    if any(pair.vocabulary for pair in pairs):
        rows += [
            ("shared tokens", [f"{pair.vocabulary.common:,}" if pair.vocabulary else "–" for pair in pairs]),
            (
                "shared tokens, of the smaller",
                [words.percent(pair.vocabulary.of_smaller if pair.vocabulary else None) for pair in pairs],
            ),
            ("common words cut alike", [words.percent(pair.word_agreement) for pair in pairs]),
            ("unsafe positions, first drafts", [words.percent(pair.unsafe[0]) for pair in pairs]),
            ("unsafe positions, second drafts", [words.percent(pair.unsafe[1]) for pair in pairs]),
        ]
    for mark in pairs[0].js:
        tokens = "first token" if mark == "1" else f"first {mark} tokens"
        rows.append((f"JS, {tokens} (nats)", [words.nats(pair.js.get(mark)) for pair in pairs]))
    if any(pair.same_top is not None for pair in pairs):
        rows.append(("same next token, first tokens", [words.percent(pair.same_top) for pair in pairs]))
    return rows
