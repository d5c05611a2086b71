"""``ensemble-decode plan``: what fits into a memory, from the models' configs alone."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.cli import options
from ensemble_decode.cli.streams import write_json
from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.cost.model import Settings


def plan(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Hub id, ID@REVISION, folder, demo:NAME, or a size such as qwen2.5-7b. Repeat for several.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    memory: Annotated[
        str | None,
        typer.Option(
            help="What all KV caches may take together: 8GiB, 500MB. Default: 80% of what the weights leave of the GPU."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="A GPU of the cost model, such as h200, for its memory and pace.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a typical prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens of a typical answer.")] = 256,
    method: options.MethodText = "unite",
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time, for the pace. Default: all that fit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Say what a batch needs: weights, bytes of cache per token, rows that fit at once, tokens/s to expect."""
    if not model:
        raise InputError("no model given; give at least one --model, such as --model qwen2.5-7b")
    if memory is None and gpu is None:
        raise InputError("say how much memory there is: --memory for the caches, or --gpu for a card")
    from ensemble_decode.cost.capacity import capacity, device_named, shape_of
    from ensemble_decode.members.memory import parse_memory

    name, settings = _cost_method(method)
    amount = None if memory is None else parse_memory(memory)
    if isinstance(amount, float):
        raise InputError(f"--memory {memory!r}: a share of what is free says nothing here; give a size such as 8GiB")
    found = capacity(
        [shape_of(spec, dtype) for spec in model],
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        memory=amount,
        device=None if gpu is None else device_named(gpu),
        method=name,
        settings=settings,
        batch_size=batch_size,
    )
    out = Console()
    if as_json:
        told = {
            "models": [
                {
                    "name": s.name,
                    "weight_bytes": s.held_bytes,
                    "cache_bytes_per_token": s.cache_bytes_per_token,
                }
                for s in found.shapes
            ],
            "cache_bytes_per_token": found.bytes_per_token,
            "cache_bytes_per_row": found.positions * found.bytes_per_token,
            "cache_bytes": found.cache_bytes,
            "tokens_per_row": found.tokens,
            "rows": found.rows,
            "tokens_per_second": found.tokens_per_second,
            "predicted": found.predicted,
        }
        write_json(told)
        return
    table = Table("model", "weights", "cache per token")
    for shape in found.shapes:
        table.add_row(
            shape.name, f"{shape.held_bytes / 2**30:.2f} GiB", f"{shape.cache_bytes_per_token / 1024:.1f} KiB"
        )
    out.print(table)
    row = found.positions * found.bytes_per_token
    lines = [
        f"a row of {found.tokens} tokens takes {row / 2**20:.1f} MiB of cache in all models "
        f"({found.positions} positions, in blocks)",
        f"{found.cache_bytes / 2**30:.2f} GiB for the caches: {found.rows} rows at once",
    ]
    if not found.rows:
        lines.append("not even one row fits: fewer tokens, smaller models or more memory")
    if found.tokens_per_second is not None:
        word = "predicted from its data sheet" if found.predicted else "from measurements"
        lines.append(f"about {found.tokens_per_second:.0f} tokens/s with {name} on {gpu}, {word}")
    out.file.write("\n".join(lines) + "\n")


def _cost_method(text: str) -> "tuple[str, Settings]":
    """A method as the cost model knows it: its name, and the lengths that its cost depends on."""
    from ensemble_decode.cost.model import Settings
    from ensemble_decode.methods.options import parse_method
    from ensemble_decode.methods.registry import METHODS

    call = METHODS.call_of(parse_method(text))
    known: dict[str, Any] = {"safe": ("draft_length",), "specfuse": ("segment_length",)}
    for option, value in call.named.items():
        if option not in known.get(call.name, ()) or not isinstance(value, int):
            raise InputError(
                f"--method {text!r}: the cost model does not know {option}={value}; it knows safe's draft_length and "
                "specfuse's segment_length, as numbers"
            )
    return call.name, Settings(**call.named)
