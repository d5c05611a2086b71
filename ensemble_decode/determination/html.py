"""The report as one self-contained page: what the template ``report.html.j2`` shows."""

from __future__ import annotations

import base64
import re
from typing import Any

from ensemble_decode.determination import words
from ensemble_decode.determination.figures import same_answer
from ensemble_decode.determination.findings import Findings
from ensemble_decode.determination.plots import COLOURS, draw
from ensemble_decode.determination.table import pair_rows
from ensemble_decode.determination.templates import render
from ensemble_decode.determination.words import letter

_EXAMPLES = 6

_CAPTIONS = {
    "scores": (
        "Scores",
        "The mean score of each model and its interval. The shaded band is where a score must lie for its model to be "
        "combined with the best.",
    ),
    "lengths": (
        "Response lengths",
        "Box: the middle half of the responses; line: median; diamond: mean; whiskers: shortest and longest.",
    ),
    "room": (
        "Who is right",
        "Questions that both models answer rightly, only one, or neither. The parts that only one has right "
        "are the room "
        "that an ensemble has.",
    ),
    "words": (
        "Tokenizers: common words cut alike",
        "Share of common words whose token boundaries fall on the same bytes. Near 100%, models can vote on "
        "every token.",
    ),
    "js": (
        "Response style: distance of the first tokens",
        "Jensen-Shannon divergence of the next-token distributions at the start of the responses: 0 is the "
        "same, 0.69 has "
        "nothing in common.",
    ),
}


def page(found: Findings) -> str:
    """The whole page. Everything that comes from data or models is escaped.

    Raises:
        InputError: jinja2 or matplotlib is not installed.
    """
    return render(
        __package__,
        "report.html.j2",
        "determine",
        colours=COLOURS,
        letter=letter,
        headline=words.headline(found),
        reasons=words.reasons(found),
        command=words.command(found),
        ensemble=found.recommendation.ensemble,
        names=[re.split(r"(?<=[/:_-])", name) for name in found.names],  # may go on in the next line behind a mark
        models=words.model_figures(found).items(),
        plots=_plots(found),
        pair_models=[(pair.first, pair.second) for pair in found.pairs],
        pairs=pair_rows(found) if found.pairs else [],
        basis=_basis(found),
        **_examples(found),
    )


def _plots(found: Findings) -> list[dict[str, str]]:
    made = []
    for name, svg in draw(found).items():
        title, caption = _CAPTIONS[name]
        made.append({"title": title, "caption": caption, "data": base64.b64encode(svg.encode()).decode()})
    return made


def _examples(found: Findings) -> dict[str, Any]:
    """Questions on which two models part: the recommended ones, else the first two."""
    if not found.pairs:
        return {"parting": (), "parted": 0, "examples": []}
    members = found.recommendation.models
    a, b = (members[0], members[1]) if len(members) > 1 else (found.pairs[0].first, found.pairs[0].second)
    parted = []
    for i, prompt in enumerate(found.prompts):
        one, other = found.responses[a][i], found.responses[b][i]
        if (one.score >= 0.5) != (other.score >= 0.5) and not same_answer(one, other):
            parted.append({"id": found.items[i], "prompt": prompt_end(prompt), "one": one, "other": other})
    shown = parted[:: max(1, -(-len(parted) // _EXAMPLES))]
    return {"parting": (a, b), "parted": len(parted), "examples": shown}


def prompt_end(prompt: Any) -> str:
    """The end of a prompt, where the question stands.

    Args:
        prompt: A text, of which the last paragraphs are shown; or chat messages, of which the last one is.
    """
    text = (prompt if isinstance(prompt, str) else prompt[-1]["content"]).strip()
    *before, tail = text.split("\n\n")
    while before and len(tail) < 60:
        tail = f"{before.pop()}\n\n{tail}"
    if len(tail) > 300:
        return "… " + tail[-300:]
    return f"…\n{tail}" if before else tail


def _basis(found: Findings) -> list[tuple[str, str]]:
    """What the figures rest on, by name."""
    s, rules = found.settings, found.rules
    data, generation, boot, tokens = s["data"], s["generation"], s["bootstrap"], s["tokens"]
    gap = f"{100 * rules.max_gap:g} points" if rules.gap == "points" else f"{rules.max_gap:.0%} of the best score"
    graders = ", ".join(f"{name} ({count})" for name, count in data["graders"].items())
    stops = f", up to {', '.join(map(repr, generation['stop']))}" if generation["stop"] else ""
    tokenizers = (
        f"{tokens['words']:,} most frequent words ({tokens['language']}); unions of the {tokens['top_k']} "
        "likeliest tokens; "
        f"drafts of {tokens['draft_length']} tokens"
    )
    return [
        ("Data", f"{data['items']} items of {data['source']}, graded by {graders}"),
        ("Generation", f"greedy, at most {generation['max_new_tokens']} tokens{stops}"),
        (
            "Bootstrap",
            f"{boot['resamples']} resamples, {boot['confidence']:.0%} intervals, paired over models, seed "
            f"{boot['seed']}",
        ),
        ("Tokenizers", "not compared: only texts were given" if s["texts_only"] else tokenizers),
        (
            "Rules",
            f"score within {gap}, mean words within {rules.max_length_ratio:g} times, at least "
            f"{100 * rules.min_room:g} "
            f"points of room; answers of up to {rules.short_words:g} words are short, {rules.near_equal:.0%} "
            "of words cut "
            "alike is near-equal",
        ),
    ]
