"""The report as one self-contained page: styles and plots inside it, nothing fetched."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ensemble_decode.determination import words
from ensemble_decode.determination.figures import same_answer
from ensemble_decode.determination.plots import COLOURS, draw
from ensemble_decode.determination.table import pair_rows
from ensemble_decode.determination.words import letter

if TYPE_CHECKING:
    from ensemble_decode.determination.report import Report

_EXAMPLES = 6
_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #5a5a5a; --line: #ddd; --card: #fff; --ground: #f6f6f4; --yes: #00704f; --no: #a33c00 }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 72rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.15rem; font-weight: 600; color: var(--soft); margin: .5rem 0 }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem }
.verdict, figure, .examples > div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem }
.verdict { border-left: 6px solid var(--yes) }
.verdict.no { border-left-color: var(--no) }
.verdict strong { display: block; font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere }
.verdict ul { margin: .75rem 0; padding-left: 1.2rem }
li, dd { overflow-wrap: anywhere }
pre { background: #efefec; padding: .6rem .8rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; margin: .5rem 0 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; align-items: start }
figure { margin: 0 }
figure img { width: 100%; max-width: 30rem; height: auto; display: block; margin: 0 auto }
figcaption { font-size: .9rem; color: var(--soft) }
figcaption b { color: var(--ink) }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
tr:last-child > * { border-bottom: 0 }
th:first-child { text-align: left }
tbody th { font-weight: 400; white-space: normal; min-width: 7rem }
.name { display: inline-block; white-space: normal; overflow-wrap: break-word; max-width: 16rem }
.key { display: inline-block; min-width: 1.5em; text-align: center; color: #fff; border-radius: 4px; font-weight: 600; padding: 0 .3em }
.examples { display: grid; gap: 1rem }
.examples p { margin: 0 }
dl { margin: 0 } dt { font-weight: 600; margin-top: .6rem } dd { margin: 0 }
.soft { color: var(--soft); font-size: .9rem }
@media (max-width: 40rem) { main { padding: .6rem } .verdict strong { font-size: 1.2rem } th, td { padding: .35rem .5rem; white-space: normal } }
"""

_CAPTIONS = {
    "scores": (
        "Scores",
        "The mean score of each model and its interval. The shaded band is where a score must lie for its model to be combined with the best.",
    ),
    "lengths": (
        "Response lengths",
        "Box: the middle half of the responses; line: median; diamond: mean; whiskers: shortest and longest.",
    ),
    "room": (
        "Who is right",
        "Questions that both models answer rightly, only one, or neither. The parts that only one has right are the room that an ensemble has.",
    ),
    "words": (
        "Tokenizers: common words cut alike",
        "Share of common words whose token boundaries fall on the same bytes. Near 100%, models can vote on every token.",
    ),
    "js": (
        "Response style: distance of the first tokens",
        "Jensen-Shannon divergence of the next-token distributions at the start of the responses: 0 is the same, 0.69 has nothing in common.",
    ),
}

_TERMS = {
    "score": "Share of questions answered rightly, or the mean grade where answers are graded.",
    "interval": "Where the score would lie if other questions of the same kind had been asked (bootstrap over the questions).",
    "oracle choice": "The score if someone who knows the answers chose the better response to each question. No ensemble of choices does better; "
    "real ones do worse.",
    "shared tokens": "Tokens that are the same bytes in both vocabularies.",
    "unsafe positions": "Places where one model starts a token in the middle of a token of the other. SAFE does not ensemble there; UniTE would, and errs there.",
    "JS": "Jensen-Shannon divergence in nats between the models' distributions of the next token, over both models' most likely candidates and one bucket for the rest; "
    "measured on the responses of each model in turn.",
}


def page(report: Report) -> str:
    """The whole page. Everything that comes from data or models is escaped."""
    advice = report.recommendation
    title = words.headline(report)
    body = [
        "<h1>Which models to ensemble</h1>",
        _verdict(report),
        "<h2>Models</h2>",
        _models(report),
        "<h2>Figures</h2>",
        _plots(report),
    ]
    if report.pairs:
        body += ["<h2>Pairs</h2>", _pairs(report)]
        body += _examples(report)
    body += ["<h2>How to read this</h2>", _terms(), "<h2>What it rests on</h2>", _basis(report)]
    if advice.ensemble:
        body.append(
            f'<p class="soft">{escape("The recommendation follows from these figures by fixed rules. Whether the ensemble is better is known when it has been run on the same questions.")}</p>'
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _verdict(report: Report) -> str:
    advice = report.recommendation
    items = "".join(f"<li>{escape(line)}</li>" for line in words.reasons(report))
    kind = "verdict" if advice.ensemble else "verdict no"
    return (
        f'<section class="{kind}"><strong>{escape(words.headline(report))}</strong><ul>{items}</ul>'
        f"<pre>{escape(words.command(report))}</pre></section>"
    )


def _models(report: Report) -> str:
    """A column a model, so that a phone shows two or three of them whole."""
    heads = ["", *(_key(m) for m in range(len(report.models)))]
    names = [f'<span class="name">{_breakable(name)}</span>' for name in report.names]
    return _table(heads, [["model", *names], *([name, *cells] for name, cells in words.model_figures(report).items())])


def _pairs(report: Report) -> str:
    heads = ["", *(f"{_key(pair.first)} {_key(pair.second)}" for pair in report.pairs)]
    return _table(heads, [[name, *values] for name, values in pair_rows(report)])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; the first of a row is its head."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{name}</th>" + "".join(f"<td>{text}</td>" for text in cells) + "</tr>" for name, *cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _breakable(name: str) -> str:
    """A name that may go on in the next line behind its marks."""
    return re.sub(r"([/:_-])", r"\1<wbr>", escape(name))


def _key(m: int) -> str:
    return f'<span class="key" style="background:{COLOURS[m % len(COLOURS)]}">{letter(m)}</span>'


def _plots(report: Report) -> str:
    parts = []
    for name, svg in draw(report).items():
        title, text = _CAPTIONS[name]
        data = base64.b64encode(svg.encode()).decode()
        parts.append(
            f'<figure><figcaption><b>{escape(title)}.</b> {escape(text)}</figcaption><img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"></figure>'
        )
    return f'<div class="plots">{"".join(parts)}</div>'


def _examples(report: Report) -> list[str]:
    """Questions on which two models part: the recommended ones, else the first two."""
    members = report.recommendation.models
    a, b = (members[0], members[1]) if len(members) > 1 else (report.pairs[0].first, report.pairs[0].second)
    found = []
    for i, prompt in enumerate(report.prompts):
        one, other = report.responses[a][i], report.responses[b][i]
        if (one.score >= 0.5) != (other.score >= 0.5) and not same_answer(one, other):
            found.append(
                f"<div><p class=soft>{escape(report.items[i])}</p><pre>{escape(_tail(prompt))}</pre>"
                f"<dl>{_answer(a, one)}{_answer(b, other)}</dl></div>"
            )
    if not found:
        return []
    shown = found[:: max(1, -(-len(found) // _EXAMPLES))]
    return [
        f"<h2>Where {_key(a)} and {_key(b)} part</h2><p class=soft>{len(shown)} of {len(found)} such questions.</p>",
        f'<div class="examples">{"".join(shown)}</div>',
    ]


def _answer(m: int, one: Any) -> str:
    verdict = "right" if one.score >= 0.5 else "wrong"
    text = one.text if len(one.text) <= 400 else one.text[:400] + " …"
    return f"<dt>{_key(m)} {verdict}</dt><dd>{escape(text.strip()) or '(nothing)'}</dd>"


def _tail(prompt: Any) -> str:
    """The end of a prompt, where the question stands: of chat messages the last one's, of several paragraphs the last ones."""
    text = (prompt if isinstance(prompt, str) else prompt[-1]["content"]).strip()
    *before, tail = text.split("\n\n")
    while before and len(tail) < 60:
        tail = f"{before.pop()}\n\n{tail}"
    if len(tail) > 300:
        return "… " + tail[-300:]
    return f"…\n{tail}" if before else tail


def _terms() -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _TERMS.items()) + "</dl>"


def _basis(report: Report) -> str:
    s, rules = report.settings, report.rules
    data, generation, boot, tokens = s["data"], s["generation"], s["bootstrap"], s["tokens"]
    gap = f"{100 * rules.max_gap:g} points" if rules.gap == "points" else f"{rules.max_gap:.0%} of the best score"
    lines = {
        "Data": f"{data['items']} items of {data['source']}, graded by "
        + ", ".join(f"{name} ({count})" for name, count in data["graders"].items()),
        "Generation": f"greedy, at most {generation['max_new_tokens']} tokens"
        + (f", up to {', '.join(map(repr, generation['stop']))}" if generation["stop"] else ""),
        "Bootstrap": f"{boot['resamples']} resamples, {boot['confidence']:.0%} intervals, paired over models, seed {boot['seed']}",
        "Tokenizers": "not compared: only texts were given"
        if s["texts_only"]
        else f"{tokens['words']:,} most frequent words ({tokens['language']}); unions of the {tokens['top_k']} likeliest tokens; drafts of {tokens['draft_length']} tokens",
        "Rules": f"score within {gap}, mean words within {rules.max_length_ratio:g} times, at least {100 * rules.min_room:g} points of room; "
        f"answers of up to {rules.short_words:g} words are short, {rules.near_equal:.0%} of words cut alike is near-equal",
    }
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in lines.items()) + "</dl>"
