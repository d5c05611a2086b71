"""``ensemble-decode demo``: the two demo models write one text together, then each alone."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.cli import loading, options
from ensemble_decode.cli.streams import writer

if TYPE_CHECKING:
    from ensemble_decode.ensemble import Ensemble
    from ensemble_decode.methods import Method
    from ensemble_decode.outputs import Completion, Delta

PROMPT = "The three most important things to know about the history of printing are:"


def demo(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")] = PROMPT,
    max_new_tokens: options.MaxNewTokens = 96,
    device: loading.Devices = None,
    dtype: loading.Dtypes = None,
) -> None:
    """Fetch the demo models, continue a prompt with both of them (UniTE), and compare with each alone."""
    began = time.perf_counter()
    screen, out = Console(stderr=True), Console()
    specs = ["demo:smollm2", "demo:gemma3"]
    ensemble = loading.Loading(specs, device=device, dtype=dtype).load(screen)
    from ensemble_decode.methods import Single, UniTE

    out.print(f"Ready in {time.perf_counter() - began:.1f} s: {' and '.join(specs)}, UniTE.", highlight=False)
    out.rule("both together")
    out.file.write(prompt)
    show = writer(out)
    runs = [("UniTE, both", *_timed(ensemble, prompt, UniTE(), max_new_tokens, show))]
    out.file.write("\n")
    for number, spec in enumerate(specs):
        out.rule(f"{spec} alone")
        out.file.write(prompt)
        runs.append((f"{spec} alone", *_timed(ensemble, prompt, Single(number), max_new_tokens, show)))
        out.file.write("\n")
    out.print(_table(runs, specs))
    out.print(
        "in models: share of the time spent in their forwards; first: how often a model's top choice was chosen.",
        highlight=False,
    )


def _timed(
    ensemble: "Ensemble", prompt: str, method: "Method", max_new_tokens: int, show: "Callable[[Delta], None]"
) -> "tuple[Completion, float]":
    began = time.perf_counter()
    completion = ensemble.generate(prompt, method=method, max_new_tokens=max_new_tokens, on_delta=show)[0]
    return completion, time.perf_counter() - began


def _table(runs: "list[tuple[str, Completion, float]]", specs: list[str]) -> Table:
    short = [spec.removeprefix("demo:") for spec in specs]
    table = Table("", "tokens", "tokens/s", "in models", *(f"{name} first" for name in short))
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, completion, seconds in runs:
        count = len(completion.token_ids)
        stats = completion.stats
        forward = sum(stats.forward_seconds)
        table.add_row(
            name,
            str(count),
            f"{count / seconds:.1f}",
            f"{forward / seconds:.0%}",
            *(f"{stats.agreed[m] / count:.0%}" if stats.forwarded[m] else "" for m in range(len(specs))),
        )
    return table
