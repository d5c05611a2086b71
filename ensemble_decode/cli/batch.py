"""``ensemble-decode batch``: every line of a file through one or several models, into a file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ensemble_decode.cli import loading, options
from ensemble_decode.errors import InputError

_OUTPUT, _SPEED, _RAY = "Output", "Speed", "Many machines"
_FORMATS = ".jsonl, .json, .csv (with .gz or .zst) or .parquet"


def batch(
    input: Annotated[Path, typer.Argument(help=f"Lines with 'prompt' or 'messages': {_FORMATS}; - is standard input.")],
    output: Annotated[
        Path, typer.Argument(help="Where the results go, likewise. {shard} in the name makes several files.")
    ],
    model: loading.Models = None,
    weight: loading.Weights = None,
    device: loading.Devices = None,
    dtype: loading.Dtypes = None,
    revision: loading.Revisions = None,
    memory: loading.Memory = None,
    attention: loading.Attention = "auto",
    compile: loading.Compile = False,
    graphs: loading.Graphs = False,
    chunk_tokens: loading.ChunkTokens = 2048,
    few_rows: loading.FewRows = "auto",
    trust_remote_code: loading.TrustRemoteCode = False,
    model_args: loading.ModelArgs = None,
    method: options.MethodText = "unite",
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    max_new_tokens: options.MaxNewTokens = 128,
    stop: options.Stop = None,
    system_role: options.SystemRole = "error",
    no_template: options.NoTemplate = False,
    order: Annotated[str, typer.Option(help="input, or finished: as rows end.", rich_help_panel=_OUTPUT)] = "input",
    ids: Annotated[bool, typer.Option("--ids", help="Write token_ids too.", rich_help_panel=_OUTPUT)] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Write every choice's log probability.", rich_help_panel=_OUTPUT)
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write every step's candidates and choice.", rich_help_panel=_OUTPUT)
    ] = False,
    shard_rows: Annotated[
        int | None,
        typer.Option(help="Rows per file, for {shard} in the output's name. Default: 100000.", rich_help_panel=_OUTPUT),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad line.", rich_help_panel=_OUTPUT)
    ] = False,
    max_errors: Annotated[
        int | None,
        typer.Option(help="Stop where more rows than this are errors. Default: never.", rich_help_panel=_OUTPUT),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Do the lines added to the input since.", rich_help_panel=_OUTPUT)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew, whatever the output holds.", rich_help_panel=_OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Rows at a time, at most.", rich_help_panel=_SPEED)] = 32,
    prefill_tokens: Annotated[
        int, typer.Option(help="Prompt tokens read in one round, at most.", rich_help_panel=_SPEED)
    ] = 2048,
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
) -> None:
    """Complete every line of a file; killed or stopped, the same command goes on where it was.

    Exit codes: 0 every row was done, 3 some rows are errors, 1 all rows are or the job failed, 2 wrong usage or input.
    """
    # the memory is the batch's: without one, 80 % of a GPU and 50 % of the host
    asked = loading.Loading(
        model, weight, device, dtype, revision, None, attention, compile, graphs, chunk_tokens, few_rows,
        trust_remote_code, model_args,
    )  # fmt: skip
    specs = asked.require_models()
    options.check_one_of("--engine", engine, ("local", "ray"))
    options.check_one_of("--order", order, ("input", "finished"))
    options.check_one_of("--system-role", system_role, ("error", "merge"))
    if engine == "local" and (address is not None or workers != 1 or worker_cpus != 1 or worker_gpus):
        raise InputError("--address, --workers, --worker-cpus and --worker-gpus are options of --engine ray")

    from ensemble_decode.batch.job import Job, run_local
    from ensemble_decode.batch.progress import BarWatcher, LogWatcher
    from ensemble_decode.members.memory import parse_memory
    from ensemble_decode.methods.options import parse_method
    from ensemble_decode.sampling import Sampling

    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    job = Job(
        input=input,
        output=output,
        models=specs,
        load=asked.arguments(),
        method=parse_method(method),
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop=stop or (),
        chat="plain" if no_template else "template",
        system=system_role,  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
        ids=ids,
        logprobs=logprobs,
        trace=trace,
        shard_rows=shard_rows,
        strict=strict,
        max_errors=max_errors,
        append=append,
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
            summary = run_local(job, lambda: asked.load(console), watcher)
    # where the results are on standard output, the report is not
    told = json.dumps(summary.as_dict(), allow_nan=False) if as_json else "\n".join(summary.lines())
    typer.echo(told, err=str(output) == "-")
    raise typer.Exit(summary.exit_code)
