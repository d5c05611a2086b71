"""``ensemble-decode bench``: what ensembling costs per token here, and what it would cost elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ensemble_decode.cli import loading
from ensemble_decode.cli.options import EXIT_CODES
from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.bench.record import Record
    from ensemble_decode.bench.tables import Table

bench_app = typer.Typer(
    help="Measure what ensembling costs per token, against each model alone and against other ways.", epilog=EXIT_CODES
)

_CONFIGURATIONS = (
    "single, unite, gac, safe, safe-auto, specfuse, specfuse-all, or a method with its options; baselines: generate, "
    "assisted, dictionary, segments"
)
DEMO = ["demo:smollm2", "demo:gemma3"]

Threads = Annotated[int | None, typer.Option(help="Threads of torch, for every configuration.")]


@bench_app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    model: loading.Models = None,
    device: loading.Devices = None,
    dtype: loading.Dtypes = None,
    threads: Threads = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", "-r", help=f"A configuration: {_CONFIGURATIONS}. Repeat for several.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size. Repeat for several. Default: 1.")] = None,
    prompt_tokens: Annotated[
        list[int] | None, typer.Option(help="Prompt length. Repeat for several. Default: 32.")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", "-n", help="Output length. Repeat for several. Default: 64.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds; configurations alternate within each.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record of the run.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots (PNG); needs the extra plot.")] = None,
    html: Annotated[Path | None, typer.Option(help="One self-contained page; needs the extra plot.")] = None,
) -> None:
    """Measure configurations in turn, in one process, and report medians with their quartiles.

    The models are demo:smollm2 and demo:gemma3 where none is given. Texts have no end here: every configuration
    writes as many tokens as it is asked for. Runs are never compared with each other.
    """
    if context.invoked_subcommand is not None:
        return
    batches, prompt_lengths, lengths = batch or [1], prompt_tokens or [32], tokens or [64]
    for name, values in (
        ("batch", batches),
        ("prompt-tokens", prompt_lengths),
        ("tokens", lengths),
        ("rounds", [rounds]),
    ):
        if min(values) < 1:
            raise InputError(f"bench: --{name} must be at least 1, got {min(values)}")
    from ensemble_decode.bench.setup import dtype_of, load_bench, set_threads
    from ensemble_decode.bench.suites import measure_into
    from ensemble_decode.members.transformers.remarks import quiet_libraries

    if plots or html:
        _plotting()
    console = Console(stderr=True)
    quiet_libraries()
    set_threads(threads)
    names = run or ["single", "unite", "gac", "safe", "specfuse", "generate", "assisted", "dictionary", "segments"]
    baselines = any(name in ("generate", "assisted", "dictionary", "segments") for name in names)
    made = load_bench(model or DEMO, dtype or "auto", device or "auto", baselines=baselines)
    record = _begin(made, dtype_of(made.ensemble))
    measure_into(
        record,
        made,
        names,
        suite="asked",
        batches=batches,
        prompt_tokens=prompt_lengths,
        tokens=lengths,
        rounds=rounds,
        say=lambda words: console.print(words, highlight=False),
    )
    if json_file is not None:
        record.write(json_file)
    _show(record)
    _draw(record, plots, html)


@bench_app.command("report", epilog=EXIT_CODES)
def report(
    files: Annotated[list[Path], typer.Argument(help="Records of one run, as --json wrote them.")],
    plots: Annotated[Path | None, typer.Option(help="Folder for plots (PNG).")] = None,
    html: Annotated[Path | None, typer.Option(help="One self-contained page.")] = None,
) -> None:
    """Show the record of a run again. Records of different runs are refused: they cannot be compared."""
    from ensemble_decode.bench.record import Record, join

    record = join([Record.read(path) for path in files])
    _show(record)
    _draw(record, plots, html)


def _begin(made: Any, dtype: str) -> "Record":
    from ensemble_decode.bench.record import Record

    devices = [str(runner.device) for runner in made.ensemble.runners]
    energy = made.meter.reason or "NVML's counter of the devices in use"
    return Record.begin(made.names, dtype, devices, energy)


def _show(record: "Record") -> None:
    from ensemble_decode.bench import tables

    suites = list(dict.fromkeys(cell.suite for cell in record.cells))
    found = [table for suite in suites for table in tables.latency_tables(record, suite)]
    found += [table for suite in suites if (table := tables.ratio_table(record, suite)) is not None]
    print_tables(found)
    console = Console()
    for entry in record.skipped:
        console.print(f"not measured at batch {entry['batch']}: {entry['label']}: {entry['reason']}", highlight=False)
    facts = record.run
    console.print(
        f"run {facts['id'][:8]}, {facts['dtype']}, {facts['threads']} threads, {facts['machine']['processor']}; "
        f"energy: {facts['energy']}",
        highlight=False,
    )


def print_tables(tables: "Sequence[Table]") -> None:
    """Tables on standard output, each under its title."""
    from rich import box
    from rich.table import Table as RichTable

    console = Console()
    for table in tables:
        shown = RichTable(*table.columns, title=table.title, title_justify="left", box=box.SIMPLE)
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown, highlight=False)


def _plotting() -> None:
    """Refuse before anything is measured where plots were asked for and cannot be drawn."""
    from ensemble_decode.bench.plots import require

    require()


def _draw(record: "Record", plots: Path | None, html: Path | None) -> None:
    if plots is None and html is None:
        return
    from ensemble_decode.bench.page import write_html
    from ensemble_decode.bench.plots import draw_all

    if plots is not None:
        draw_all(record, plots)
    if html is not None:
        write_html(record, html)


@bench_app.command("quality", epilog=EXIT_CODES)
def quality(
    model: loading.Models = None,
    device: loading.Devices = None,
    dtype: loading.Dtypes = None,
    threads: Threads = None,
    questions: Annotated[int, typer.Option(help="Questions of each kind.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the answers and the bits.")] = None,
) -> None:
    """Measure exact match on generated questions and perplexity of held-out text, for every model and method."""
    if questions < 1:
        raise InputError(f"bench quality: --questions must be at least 1, got {questions}")
    import json

    from ensemble_decode.bench.quality import evaluate, quality_tables
    from ensemble_decode.bench.setup import held_out, set_threads

    set_threads(threads)
    ensemble = loading.Loading(model or DEMO, device=device, dtype=dtype).load(Console(stderr=True))
    found = evaluate(ensemble, held_out(), questions=questions, seed=seed)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print_tables(quality_tables(found))


@bench_app.command("predict", epilog=EXIT_CODES)
def predict(
    batch: Annotated[int, typer.Option(help="Rows.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt length.")] = 512,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Output length.")] = 256,
    pair: Annotated[
        list[str] | None, typer.Option(help="Two models or more, by name (see the error for which).")
    ] = None,
    bits: Annotated[float, typer.Option(help="Bits per weight.")] = 16,
) -> None:
    """PREDICT time per token of known models on known cards from their data sheets. Nothing is measured."""
    from dataclasses import replace

    from ensemble_decode.bench.predict import prediction_table
    from ensemble_decode.cost.model import DEVICES, KNOWN

    names = pair or ["qwen2.5-7b", "llama3.1-8b"]
    for name in names:
        if name not in KNOWN:
            raise InputError(f"bench predict: model {name!r} is not known; there are {', '.join(KNOWN)}")
    if bits <= 0:
        raise InputError(f"bench predict: --bits must be above 0, got {bits}")
    shapes = [replace(KNOWN[name], weight_bytes=bits / 8) for name in names]
    devices = list(DEVICES.values())
    print_tables([prediction_table("", shapes, devices, batch=batch, prompt=prompt_tokens, tokens=tokens)])
