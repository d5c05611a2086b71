"""``ensemble-decode batch``: every line of a file through one or several models, into a file."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ensemble_decode.cli.generate import generate
from ensemble_decode.errors import InputError
from ensemble_decode.methods.flags import METHOD_OPTIONS

_MODELS = ("model", "weight", "device", "dtype", "attention")
_METHOD = tuple(dict.fromkeys(option.replace("-", "_") for options in METHOD_OPTIONS.values() for option in options))
_SAMPLING = ("temperature", "top_p", "sample_top_k", "min_p", "seed")
_SHARED = (*_MODELS, "method", *_METHOD, *_SAMPLING, "max_new_tokens", "stop")
_OUTPUT, _SPEED, _RAY = "Output", "Speed and memory", "Many machines"


def _with_options_of_generate(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**shared`` the options that ``generate`` has under the names in ``_SHARED``."""
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [inspect.signature(generate).parameters[name] for name in _SHARED]
    asked = [p for p in own if p.default is inspect.Parameter.empty]
    given = [p for p in own if p.default is not inspect.Parameter.empty]
    together = [*asked, *shared, *given]
    command.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in together} | {"return": None}
    return command


@_with_options_of_generate
def batch(
    input: Annotated[Path, typer.Argument(help="Lines with 'prompt' or 'messages': .jsonl, .jsonl.gz or .parquet.")],
    output: Annotated[Path, typer.Argument(help="Where the results go: .jsonl, .jsonl.gz or .parquet.")],
    order: Annotated[str, typer.Option(help="input, or finished: as rows end.", rich_help_panel=_OUTPUT)] = "input",
    ids: Annotated[bool, typer.Option("--ids", help="Write token_ids too.", rich_help_panel=_OUTPUT)] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad line.", rich_help_panel=_OUTPUT)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, whatever the output holds.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Rows at a time, at most.", rich_help_panel=_SPEED)] = 32,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What all KV caches may take: 8GiB, or a share of what is free, as 50%. Default: 80% of a GPU, 50% of the host.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    prefill_tokens: Annotated[
        int, typer.Option(help="Prompt tokens read in one round, at most.", rich_help_panel=_SPEED)
    ] = 2048,
    chat: Annotated[
        str, typer.Option(help="Messages through each model's 'template', or 'plain'.", rich_help_panel=_OUTPUT)
    ] = "template",
    system: Annotated[
        str, typer.Option(help="A system message that a template refuses: 'error' or 'merge'.", rich_help_panel=_OUTPUT)
    ] = "error",
    engine: Annotated[str, typer.Option(help="local or ray.", rich_help_panel=_RAY)] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="ray: the cluster, as ray.init takes it. Default: one on this machine.", rich_help_panel=_RAY
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="ray: actors, each with all models.", rich_help_panel=_RAY)] = 1,
    worker_cpus: Annotated[float, typer.Option(help="ray: CPUs of each actor.", rich_help_panel=_RAY)] = 1.0,
    worker_gpus: Annotated[float, typer.Option(help="ray: GPUs of each actor.", rich_help_panel=_RAY)] = 0.0,
    **shared: Any,
) -> None:
    """Complete every line of a file; killed or stopped, the same command goes on where it was."""
    specs = shared["model"]
    if not specs:
        raise InputError("no model given; give at least one --model, such as --model demo:smollm2")
    if engine not in ("local", "ray"):
        raise InputError(f"--engine {engine!r}: there are local, ray")
    if engine == "local" and (address is not None or workers != 1 or worker_cpus != 1 or worker_gpus):
        raise InputError("--address, --workers, --worker-cpus and --worker-gpus are options of --engine ray")
    if order not in ("input", "finished"):
        raise InputError(f"--order {order!r}: there are input, finished")
    if chat not in ("template", "plain") or system not in ("error", "merge"):
        raise InputError(f"--chat is template or plain, --system error or merge; got {chat!r} and {system!r}")
    options = {name.replace("_", "-"): shared[name] for name in _METHOD if shared[name] is not None}
    if "literal" in options:
        options["literal"] = tuple(options["literal"])

    from ensemble_decode.batch.fields import Defaults
    from ensemble_decode.batch.job import Job, run_local
    from ensemble_decode.batch.progress import BarWatcher, LogWatcher
    from ensemble_decode.cli.support import load_ensemble
    from ensemble_decode.members.memory import parse_memory
    from ensemble_decode.sampling import Sampling

    sampling = Sampling(
        temperature=shared["temperature"],
        top_p=shared["top_p"],
        top_k=shared["sample_top_k"],
        min_p=shared["min_p"],
        seed=shared["seed"],
    )
    job = Job(
        input=input,
        output=output,
        models=specs,
        load={
            "device": shared["device"] or "auto",
            "dtype": shared["dtype"] or "auto",
            "weight": shared["weight"] or None,
            "attention": shared["attention"],
        },
        defaults=Defaults(shared["method"], options, sampling),
        max_new_tokens=shared["max_new_tokens"],
        stop=shared["stop"] or (),
        chat=chat,
        system=system,
        order=order,  # type: ignore[arg-type]
        ids=ids,
        strict=strict,
        overwrite=overwrite,
        batch_size=batch_size,
        memory=None if memory is None else parse_memory(memory),
        prefill_tokens=prefill_tokens,
    )
    console = Console(stderr=True)
    with BarWatcher(console) if console.is_terminal else LogWatcher(console) as watcher:
        if engine == "ray":
            from ensemble_decode.batch.ray import Workers, run_ray

            summary = run_ray(job, watcher, Workers(workers, worker_cpus, worker_gpus), address)
        else:
            summary = run_local(job, lambda: load_ensemble(specs, console, **job.load), watcher)
    out = Console()
    if as_json:
        out.file.write(json.dumps(summary.as_dict(), ensure_ascii=False) + "\n")
    else:
        out.file.write("\n".join(summary.lines()) + "\n")
