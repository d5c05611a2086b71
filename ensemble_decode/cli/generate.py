"""``ensemble-decode generate``: text from one or several models, for one prompt or many."""

import base64
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.cli import loading, options
from ensemble_decode.cli.streams import read_text, write_json, writer
from ensemble_decode.errors import EnsembleError, InputError

if TYPE_CHECKING:
    from ensemble_decode.outputs import Completion, TraceStep

_CHAT, _OUTPUT = "Chat", "Output"


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; several are decoded as one batch. Default: standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the prompt from a file, in UTF-8; - is standard input.")
    ] = None,
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
    chat: Annotated[
        bool, typer.Option("--chat", help="Send each prompt as a user's message.", rich_help_panel=_CHAT)
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="A system message before it; implies --chat.", rich_help_panel=_CHAT)
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option(
            help="Read chat messages from a JSON file in place of prompts: a list of objects with role and content, or "
            "a list of such lists; - is standard input.",
            rich_help_panel=_CHAT,
        ),
    ] = None,
    system_role: options.SystemRole = "error",
    no_template: options.NoTemplate = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per prompt and line.", rich_help_panel=_OUTPUT)
    ] = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Write text as it is generated. Default: on a terminal.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the candidates of every step.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Generate text with one or several models."""
    asked = loading.Loading(
        model, weight, device, dtype, revision, memory, attention, compile, graphs, chunk_tokens, few_rows,
        trust_remote_code, model_args,
    )  # fmt: skip
    asked.require_models()
    if stream and as_json:
        raise InputError("--stream writes text as it comes; it cannot be combined with --json")
    options.check_one_of("--system-role", system_role, ("error", "merge"))
    sent = _read_prompts(prompts, file, messages, chat or system is not None, system)
    if stream and len(sent) > 1:
        raise InputError("--stream writes one text as it comes; give one prompt, or --no-stream")
    from ensemble_decode.methods.options import parse_method
    from ensemble_decode.sampling import Sampling

    chosen = parse_method(method)
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    ensemble = asked.load(Console(stderr=True))
    out = Console()
    streaming = stream if stream is not None else out.is_terminal and len(sent) == 1 and not as_json
    done = ensemble.generate(
        sent,
        method=chosen,
        max_new_tokens=max_new_tokens,
        stop=stop,
        sampling=sampling,
        chat="plain" if no_template else "template",
        system=system_role,  # type: ignore[arg-type]
        trace=trace,
        on_delta=writer(out) if streaming else None,
    )
    _show(done, sent, out, as_json=as_json, streamed=streaming)
    failed = [f"prompt {i}: {one.error}" for i, one in enumerate(done) if one.finish_reason == "error"]
    if failed:
        raise EnsembleError("; ".join(failed))


def _read_prompts(
    prompts: Sequence[str] | None, file: Path | None, messages: Path | None, chat: bool, system: str | None
) -> list[Any]:
    """Texts, or lists of messages."""
    if sum((bool(prompts), file is not None, messages is not None)) > 1:
        raise InputError("give prompts as arguments, with --file, or as --messages: one of these")
    if messages is not None:
        if system is not None:
            raise InputError("--system goes with prompts; --messages has its own system messages")
        return _read_messages(messages)
    texts = list(prompts) if prompts else [read_text(file)]
    if texts == [""] and not prompts:
        raise InputError(f"the prompt {'on standard input' if file is None else f'in {file}'} is empty")
    if not chat:
        return texts
    first = [] if system is None else [{"role": "system", "content": system}]
    return [[*first, {"role": "user", "content": text}] for text in texts]


def _read_messages(file: Path) -> list[Any]:
    try:
        found = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--messages {file}: {error}") from error
    if not isinstance(found, list) or not found:
        raise InputError(f"--messages {file}: expected a list of chat messages, or a list of such lists")
    return found if all(isinstance(one, list) for one in found) else [found]


def _show(done: "list[Completion]", sent: list[Any], out: Console, *, as_json: bool, streamed: bool) -> None:
    for number, (completion, prompt) in enumerate(zip(done, sent, strict=True)):
        if as_json:
            write_json(as_dict(prompt, completion))
            continue
        if not streamed:
            if len(done) > 1:
                out.rule(f"prompt {number}")
            out.file.write(completion.text)
        out.file.write("\n")
        if completion.trace is not None:
            Console(stderr=True).print(_trace_table(completion.trace))
    out.file.flush()


def as_dict(prompt: Any, completion: "Completion") -> dict[str, Any]:
    """A completion as JSON has it: exact bytes in base64; candidates as text, with ``\\xhh`` for what is not UTF-8."""
    fields: dict[str, Any] = {
        "prompt": prompt,
        "text": completion.text,
        "data_base64": base64.b64encode(completion.data).decode(),
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "error": completion.error,
        "ensembled_at": completion.ensembled_at,
        "stats": dataclasses.asdict(completion.stats),
    }
    if completion.trace is not None:
        fields["trace"] = [
            step._asdict()
            | {
                "candidates": [_readable(candidate) for candidate in step.candidates],
                "chosen": _readable(step.chosen),
                "written": _readable(step.written),
                "model_top": [_readable(top) for top in step.model_top],
                "segment": None if step.segment is None else step.segment._asdict(),
            }
            for step in completion.trace
        ]
    return fields


def _readable(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


def _trace_table(trace: "Sequence[TraceStep]") -> Table:
    table = Table("step", "chosen", "candidates", "each model's top", "fused")
    for number, step in enumerate(trace):
        best = sorted(zip(step.probs, step.candidates, strict=True), key=lambda pair: -pair[0])[:4]
        table.add_row(
            str(number),
            _shown(step.chosen, step.ended),
            "  ".join(f"{_shown(candidate, not candidate)} {prob:.2f}" for prob, candidate in best),
            "  ".join(_shown(top, not top) for top in step.model_top),
            "yes" if step.ensembled else "no",
        )
    return table


def _shown(data: bytes, end: bool) -> str:
    from rich.markup import escape

    return "END" if end else escape(repr(_readable(data)))
