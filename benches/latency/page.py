"""The page of docs/benchmarks/: everything measured in one run, as Markdown with plots, and what it means for a
user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ensemble_decode.bench.page import write_html
from ensemble_decode.bench.plots import draw_all
from ensemble_decode.bench.quality import quality_tables
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.stats import figure, quantile
from ensemble_decode.bench.tables import latency_tables, markdown
from latency.calibrate import error_table
from latency.figures import by_models, by_vocabulary, claims, standard_tables, throughput
from latency.run import PLANS


def write_page(record: Record, folder: Path, html: Path | None = None) -> Path:
    """``latency.md`` and its plots in ``folder``; everything on one page at ``html``, where it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = draw_all(record, folder)
    path = folder / "latency.md"
    path.write_text(_page(record, plots), encoding="utf-8")
    if html is not None:
        quality = quality_tables(record.parts["quality"]) if "quality" in record.parts else []
        write_html(record, html, [*claims(record), *quality, error_table(record.parts["cost"]), *standard_tables()])
    return path


def _image(plots: dict[str, Path], name: str, words: str) -> str:
    return f"![{words}]({plots[name].name})\n" if name in plots else ""


def _page(record: Record, plots: dict[str, Path]) -> str:
    run, machine = record.run, record.run["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
    device, errors = record.parts["device"], [abs(e["modelled"] / e["measured"] - 1) for e in record.parts["cost"]]
    facts = (
        f"{machine['processor']} with {machine['cores']} cores ({machine['instruction set']}), {machine['memory GiB']} GiB"
        f"{', ' + ', '.join(machine['cuda']) if machine['cuda'] else ', no GPU'}; {run['threads']} threads, {run['dtype']}; "
        f"{' and '.join(run['models'])}; {versions}. Energy: {run['energy']}."
    )
    parts = [
        "# What ensembling costs per token",
        "",
        "Written by `make bench` (`benches/bench_latency.py`). All configurations ran in turn in one process, slice by slice, with the same "
        "prompts, dtype and threads; texts have no end, so that each wrote what it was asked for. Medians with quartiles over rounds. "
        "Read the ratios: times of this machine mean nothing on another.",
        "",
        f"Machine: {facts} Measured in {record.parts['minutes']:.0f} minutes, run {run['id'][:8]}.{_left_out(record)}",
        "",
        "## Against the published ways",
        "",
        "The baselines are written here from the papers' descriptions ([how](baselines.md)): UniTE by dictionaries tokenizes the whole text "
        "again at every step and keeps a cache for the first model only; SpecFuse without caches reads the whole text again to draft and to score.",
        "",
        *map(markdown, claims(record)),
        _image(plots, "latency_length", "Time per token against the length of the text"),
        *([markdown(throughput(record))] if record.suite("batch") else []),
        _image(plots, "batch_scaling", "Tokens per second against rows in the batch"),
        "## Where the time goes",
        "",
        _image(plots, "time_split", "Milliseconds per token by forwards, fusion and host"),
        *map(markdown, [*latency_tables(record, "latency"), *latency_tables(record, "others")]),
        *[f"Not measured at batch {e['batch']}: {e['label']}: {e['reason']}.\n" for e in record.skipped],
        *_scaling(record, plots),
        *_quality(record),
        "## The cost model",
        "",
        f"[How it counts](cost.md). This machine was measured apart from the runs above: {device['bandwidth'] / 1e9:.1f} GB/s and "
        f"{device['flops'] / 1e9:.0f} Gflop/s in the models' linear layers, {device['layer_seconds'] * 1e6:.0f} µs more per layer. Median "
        f"error over {len(errors)} configurations {100 * quantile(errors, 0.5):.0f} %, 9 of 10 within {100 * quantile(errors, 0.9):.0f} %.",
        "",
        markdown(error_table(record.parts["cost"])),
        "### Predictions",
        "",
        "**Nothing below was measured.** Data sheets, the shares of them that the model assumes, and captured steps (CUDA graphs).",
        "",
        *map(markdown, standard_tables()),
        "## What this means for choosing a method",
        "",
        *_advice(record),
    ]
    return "\n".join(part for part in parts if part is not None).rstrip() + "\n"


def _left_out(record: Record) -> str:
    """What the whole run measures and this one did not."""
    had = {cell.suite for cell in record.cells} | set(record.parts)
    missing = [suite for suite in dict.fromkeys(plan.suite for plan in PLANS) if suite not in had]
    return f" Not measured in this run: {', '.join(missing)}." if missing else ""


def _scaling(record: Record, plots: dict[str, Path]) -> list[str]:
    tables = [table for table in (by_models(record), by_vocabulary(record)) if table is not None]
    if not tables:
        return []
    return [
        "## More models, larger vocabularies",
        "",
        "The models beyond the given ones have random weights (8 layers of 512): their cost is real, their text is not.",
        "",
        _image(plots, "models_cost", "Milliseconds per token against the number of models"),
        *map(markdown, tables),
    ]


def _quality(record: Record) -> list[str]:
    if "quality" not in record.parts:
        return []
    return [
        "## Quality",
        "",
        "Tiny models: the intervals are wide, and what holds here need not hold for large ones. The mixture is the arithmetic ensemble at the "
        "places where every tokenizer has an edge, so that all are measured on the same bytes.",
        "",
        *map(markdown, quality_tables(record.parts["quality"])),
    ]


def _advice(record: Record) -> Sequence[str]:
    """One line per method, with this run's figures."""
    cells = {cell.subject: cell for cell in record.suite("latency")}
    alone = figure(cells["single-0"].values(lambda s: s.latency_mean)).median

    def over(name: str) -> str:
        return f"{figure(cells[name].values(lambda s: s.latency_mean)).median / alone:.1f}"

    host = figure(cells["unite"].values(lambda s: 100 * (s.fusion + s.host + s.outside) / s.seconds)).median
    first = record.run["models"][0]
    return [
        f"- A token costs {over('unite')} times {first} alone with UniTE: the other models' own steps. What the package adds (fusion and "
        f"host work) is {host:.1f} % of the time.",
        *_about_others(record),
        f"- SpecFuse drafts with every model: {over('specfuse-all')} times while all models stay, less once weak ones leave.",
        *_about_batches(record),
    ]


def _about_others(record: Record) -> list[str]:
    cells = {cell.subject: cell for cell in record.suite("others")}
    if not cells:
        return []
    gac, safe, alone = (figure(cells[n].values(lambda s: s.latency_mean)).median for n in ("gac", "safe", "single-0"))
    stood = figure(cells["safe"].values(lambda s: 100 * s.accepted / max(s.drafted, 1))).median
    return [
        f"- GaC asks the others only where the first is unsure: {gac / alone:.1f} times.",
        f"- SAFE has the others read drafts instead of single tokens: {safe / alone:.1f} times with drafts of 5, {stood:.0f} % of which stood "
        "here. It gains most where reading five tokens at once costs little more than one (GPUs, large models) and models agree.",
    ]


def _about_batches(record: Record) -> list[str]:
    cells = [cell for cell in record.suite("batch") if cell.subject == "unite"]
    if len(cells) < 2:
        return []
    one, most = (figure(cell.values(lambda s: s.tokens / s.seconds)).median for cell in (cells[0], cells[-1]))
    return [
        f"- Many prompts: use a batch. UniTE made {most / one:.0f} times the tokens/s at batch {cells[-1].batch}: the weights are read once for "
        "all rows."
    ]
