"""The tables that only the page has: ratios to the published ways, batches, more models, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ensemble_decode.bench.measure import Cell
from ensemble_decode.bench.predict import prediction_table
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.stats import Figure, figure, ratio
from ensemble_decode.bench.tables import Table, plain_ratio
from ensemble_decode.cost.model import DEVICES, KNOWN
from ensemble_decode.cost.shapes import ModelShape

_AGAINST = {
    ("unite", "dictionary"): "dictionary / UniTE",
    ("specfuse-all", "dictionary"): "dictionary / SpecFuse",
    ("specfuse-all", "segments"): "segments / SpecFuse",
}
_PAIRS = {"7B pair": ("qwen2.5-7b", "llama3.1-8b"), "70B pair": ("llama3.1-70b", "qwen2.5-72b")}


class Claim(NamedTuple):
    """A ratio: ``above`` over ``below``, each in seconds per token, and the least that it should be."""

    words: str
    above: Cell
    below: Cell
    least: float | None = None

    @property
    def value(self) -> Figure:
        """The ratio, taken within each round."""
        return ratio(self.above.values(lambda s: s.per_token), self.below.values(lambda s: s.per_token))


def claim_table(claims: Sequence[Claim], title: str = "Ratios of time per token") -> Table:
    """One row per claim: its ratio, and whether it reaches its target."""
    rows = []
    for claim in claims:
        value = claim.value
        target = "" if claim.least is None else f">= {claim.least:g}: {'yes' if value.median >= claim.least else 'no'}"
        rows.append([claim.words, plain_ratio(value), str(value.rounds), target])
    return Table(title, ["ratio", "median (quartiles)", "rounds", "target"], rows)


def claims(record: Record) -> list[Table]:
    """The ratios that matter: each way against the published way of the same method."""
    pairs = [
        ("latency", "unite", "dictionary", "UniTE over 64 tokens", 1.5),
        ("long", "unite", "dictionary", "UniTE over 256 tokens", 2.4),
        ("latency", "specfuse-all", "dictionary", "SpecFuse over 64 tokens", None),
        ("others", "specfuse-all", "segments", "SpecFuse over 16 tokens", None),
    ]
    made = []
    for suite, ours, theirs, words, least in pairs:
        cells = {cell.subject: cell for cell in record.suite(suite)}
        if ours in cells and theirs in cells:
            made.append(
                Claim(f"{words}: {cells[theirs].label} / {cells[ours].label}", cells[theirs], cells[ours], least)
            )
    tables = [claim_table(made, "Time of the published way over time of this package, batch 1, prompts included")]
    steps = step_ratios(record)
    return [*tables, *(table for table in (steps, whole_texts(record)) if table is not None)]


def step_ratios(record: Record) -> Table | None:
    """Time between tokens of the published ways over ours, behind texts of each length."""
    cells = {(cell.subject, cell.prompt): cell for cell in record.suite("length")}
    rows = []
    for length in dict.fromkeys(cell.prompt for cell in record.suite("length")):
        row = [f"text of {length} tokens"]
        for ours, theirs in _AGAINST:
            if (ours, length) in cells and (theirs, length) in cells:
                a, b = (figure(cells[name, length].values(lambda s: s.latency_mean)).median for name in (theirs, ours))
                row.append(f"{a / b:.1f}")
            else:
                row.append("not measured")
        rows.append(row)
    columns = ["next token behind", *_AGAINST.values()]
    return Table("Time between tokens, the published way over ours", columns, rows) if rows else None


def whole_texts(record: Record) -> Table | None:
    """Ratios over whole texts of 256 and 512 tokens, summed over the steps measured and straight lines between them."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for cell in record.suite("length"):
        curves.setdefault(cell.subject, []).append((cell.prompt, figure(cell.values(lambda s: s.latency_mean)).median))
    rows = []
    for tokens in (256, 512):
        row = [f"{tokens} tokens behind 32"]
        for ours, theirs in _AGAINST:
            both = [sorted(curves.get(name, [])) for name in (theirs, ours)]
            if any(len(curve) < 2 or curve[-1][0] < tokens for curve in both):
                row.append("not measured")
                continue
            a, b = (sum(_between(curve, 32 + i) for i in range(tokens)) for curve in both)
            row.append(f"{a / b:.1f}")
        rows.append(row)
    columns = ["whole text", *_AGAINST.values()]
    return Table("Computed from the table above, without the prompt", columns, rows) if curves else None


def _between(curve: Sequence[tuple[int, float]], place: float) -> float:
    """The value at ``place`` by linear interpolation; beyond the last measured place, on the last line."""
    at = next((i for i in range(1, len(curve)) if curve[i][0] >= place), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[at - 1], curve[at]
    return y0 + (place - x0) * (y1 - y0) / (x1 - x0)


def throughput(record: Record) -> Table:
    """Tokens per second of each batch, prompts included, over its own at batch 1 and over the dictionary way's."""
    latency = {cell.subject: cell for cell in record.suite("latency")}
    base = _rate(latency["dictionary"])
    rows: list[tuple[str, float, float]] = []
    for cell in record.suite("batch"):
        one = next(c for c in record.suite("batch") if c.subject == cell.subject)
        rows.append((_sized(cell), _rate(cell) / _rate(one), _rate(cell) / base))
    for cell in record.suite("throughput"):
        rows.append((_sized(cell), _rate(cell) / _rate(latency[cell.subject]), _rate(cell) / base))
    columns = ["configuration", "tokens/s over its own at batch 1", "over UniTE by dictionaries"]
    return Table("What a batch brings", columns, [[name, f"{own:.1f}", f"{other:.1f}"] for name, own, other in rows])


def _sized(cell: Cell) -> str:
    return f"{cell.label}, {cell.tokens} tokens, batch {cell.batch}"


def _rate(cell: Cell) -> float:
    return figure(cell.values(lambda s: s.tokens / s.seconds)).median


def by_models(record: Record) -> Table | None:
    """The time between tokens with more models, over the first model alone."""
    rows = []
    for cell in record.suite("models"):
        one = next(c for c in record.suite("models") if c.subject == "single-0" and len(c.models) == len(cell.models))
        a, b = (figure(c.values(lambda s: s.latency_mean)).median for c in (cell, one))
        rows.append([f"{cell.label}, {len(cell.models)} models", f"{a / b:.2f}"])
    return Table("Time between tokens over the first model alone", ["configuration", "ratio"], rows) if rows else None


def by_vocabulary(record: Record) -> Table | None:
    """The time per token and the share of fusion as vocabularies grow."""
    cells = record.suite("vocabulary")
    rows = []
    for cell in cells:
        a, b = (figure(c.values(lambda s: s.latency_mean)).median for c in (cell, cells[0]))
        share = figure(cell.values(lambda s: 100 * s.fusion / s.seconds)).median
        rows.append([cell.label, f"{a / b:.2f}", f"{share:.1f} %"])
    columns = ["configuration", "time over the smallest", "fusion's share"]
    return Table("Vocabularies of two models with random weights", columns, rows) if rows else None


def _pair(name: str, bits: int) -> list[ModelShape]:
    """The two models of a pair with weights of ``bits`` bits."""
    return [replace(KNOWN[model], weight_bytes=bits / 8) for model in _PAIRS[name]]


def standard_tables() -> list[Table]:
    """The 7B pair in bfloat16 and the 70B pair at 4 bits, at batch 1 and 32, on every known card."""
    devices = list(DEVICES.values())
    return [
        prediction_table(name, _pair(name, bits), devices, batch=batch)
        for name, bits in (("7B pair", 16), ("70B pair", 16), ("70B pair", 4))
        for batch in (1, 32)
        if not (bits == 16 and name == "70B pair" and batch > 1)
    ]
