"""``ensemble-decode plan``: what fits into a memory, from the models' configs alone."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.errors import InputError


def plan(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="As for generate, or a size such as qwen2.5-7b. Repeat for several."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    memory: Annotated[str | None, typer.Option(help="For all KV caches: 8GiB, 500MB.")] = None,
    gpu: Annotated[str | None, typer.Option(help="A card's name, for its memory and pace.")] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Of a typical prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Of a typical answer.")] = 256,
    method: Annotated[str, typer.Option(help="For the pace: single, unite, gac, safe, specfuse.")] = "unite",
    batch_size: Annotated[int | None, typer.Option(help="For the pace. Default: all rows that fit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Say what a batch needs: weights, bytes of cache per token, rows that fit at once, tokens/s to expect."""
    if not model:
        raise InputError("no model given; give at least one --model, such as --model qwen2.5-7b")
    from ensemble_decode.cost.capacity import capacity, device_named, shape_of
    from ensemble_decode.members.memory import parse_memory

    amount = None if memory is None else parse_memory(memory)
    if isinstance(amount, float):
        raise InputError(f"--memory {memory!r}: a share of what is free says nothing here; give a size such as 8GiB")
    found = capacity(
        [shape_of(spec, dtype) for spec in model],
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        memory=amount,
        device=None if gpu is None else device_named(gpu),
        method=method,
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
        out.file.write(json.dumps(told) + "\n")
        return
    table = Table("model", "weights", "cache per token")
    for shape in found.shapes:
        table.add_row(
            shape.name, f"{shape.held_bytes / 2**30:.2f} GiB", f"{shape.cache_bytes_per_token / 1024:.1f} KiB"
        )
    out.print(table)
    row = found.positions * found.bytes_per_token
    lines = [
        f"a row of {found.tokens} tokens takes {row / 2**20:.1f} MiB of cache in all models ({found.positions} positions, in blocks)",
        f"{found.cache_bytes / 2**30:.2f} GiB for the caches: {found.rows} rows at once",
    ]
    if not found.rows:
        lines.append("not even one row fits: fewer tokens, smaller models or more memory")
    if found.tokens_per_second is not None:
        word = "predicted from its data sheet" if found.predicted else "from measurements"
        lines.append(f"about {found.tokens_per_second:.0f} tokens/s with {method} on {gpu}, {word}")
    out.file.write("\n".join(lines) + "\n")
