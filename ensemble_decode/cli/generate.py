"""``ensemble-decode generate``: text from one or several models, for one prompt or many."""

import base64
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.cli.support import load_ensemble, writer
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.methods.flags import METHOD_OPTIONS, build_method

if TYPE_CHECKING:
    from ensemble_decode.outputs import Completion, TraceStep

_MODELS, _METHOD, _SAMPLING, _OUTPUT = "Models", "Method", "Sampling", "Output"


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; several are decoded as one batch. Default: standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Hub id, ID@REVISION, folder, .gguf file or demo:NAME. Repeat for several; the first is the primary.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    weight: Annotated[
        list[float] | None, typer.Option(help="Weight of each model, in order.", rich_help_panel=_MODELS)
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="auto, cpu, cuda:0, ...: one for all or one per model.", rich_help_panel=_MODELS),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="auto, float32, bfloat16 or float16: one for all or one per model.", rich_help_panel=_MODELS),
    ] = None,
    attention: Annotated[str, typer.Option(help="auto, sdpa or flash.", rich_help_panel=_MODELS)] = "auto",
    method: Annotated[str, typer.Option(help=", ".join(METHOD_OPTIONS), rich_help_panel=_METHOD)] = "unite",
    top_k: Annotated[
        int | None, typer.Option(help="unite: candidates taken from each model.", rich_help_panel=_METHOD)
    ] = None,
    oov: Annotated[str | None, typer.Option(help="unite: first_piece or exclude.", rich_help_panel=_METHOD)] = None,
    aggregate: Annotated[
        str | None, typer.Option(help="unite: arithmetic or geometric.", rich_help_panel=_METHOD)
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(help="unite: max_prob, kl or js, with a threshold as in kl:0.2.", rich_help_panel=_METHOD),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="gac: ensemble where the primary's top probability is lower.", rich_help_panel=_METHOD),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="safe: the step at a rejected token, unite or gac.", rich_help_panel=_METHOD)
    ] = None,
    draft_length: Annotated[
        str | None, typer.Option(help="safe: tokens per draft, or auto.", rich_help_panel=_METHOD)
    ] = None,
    sharpen: Annotated[
        str | None, typer.Option(help="safe: none, prefix, geometric or temperature.", rich_help_panel=_METHOD)
    ] = None,
    trigger: Annotated[
        str | None, typer.Option(help="safe: sharpen by max_prob or entropy.", rich_help_panel=_METHOD)
    ] = None,
    sharpen_threshold: Annotated[
        float | None, typer.Option(help="safe: threshold of the trigger.", rich_help_panel=_METHOD)
    ] = None,
    sharpen_min_prob: Annotated[
        float | None, typer.Option(help="safe: least probability that prefix sharpens.", rich_help_panel=_METHOD)
    ] = None,
    sharpen_temperature: Annotated[
        float | None, typer.Option(help="safe: temperature of temperature sharpening.", rich_help_panel=_METHOD)
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="safe: reject a token where this gate is open, instead of the paper's test.", rich_help_panel=_METHOD
        ),
    ] = None,
    segment_length: Annotated[
        int | None, typer.Option(help="specfuse: tokens per draft.", rich_help_panel=_METHOD)
    ] = None,
    exit_threshold: Annotated[
        float | None, typer.Option(help="specfuse: a model leaves below this share.", rich_help_panel=_METHOD)
    ] = None,
    exit_temperature: Annotated[
        float | None, typer.Option(help="specfuse: temperature of the exit test.", rich_help_panel=_METHOD)
    ] = None,
    feedback: Annotated[
        float | None, typer.Option(help="specfuse: learning rate of SpecEM's weights.", rich_help_panel=_METHOD)
    ] = None,
    trim: Annotated[str | None, typer.Option(help="specfuse: word or none.", rich_help_panel=_METHOD)] = None,
    literal: Annotated[
        list[str] | None,
        typer.Option(help="specfuse: a further candidate of every round; may be repeated.", rich_help_panel=_METHOD),
    ] = None,
    single_model: Annotated[
        int | None, typer.Option(help="single: which model writes, from 0.", rich_help_panel=_METHOD)
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus: 1 is off.", rich_help_panel=_SAMPLING)] = 1.0,
    sample_top_k: Annotated[int, typer.Option(help="Sample among this many: 0 is off.", rich_help_panel=_SAMPLING)] = 0,
    min_p: Annotated[
        float, typer.Option(help="Least share of the top probability: 0 is off.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Default: a new one.", rich_help_panel=_SAMPLING)] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Of the primary.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send each prompt as a user's message.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message before it (with --chat).")] = None,
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
    if not model:
        raise InputError("no model given; give at least one --model, such as --model demo:smollm2")
    if stream and as_json:
        raise InputError("--stream writes text as it comes; it cannot be combined with --json")
    if system is not None and not chat:
        raise InputError("--system needs --chat: a plain prompt has no system message")
    chosen = build_method(
        method,
        {
            "top-k": top_k, "oov": oov, "aggregate": aggregate, "gate": gate, "threshold": threshold, "base": base,
            "draft-length": draft_length, "sharpen": sharpen, "trigger": trigger, "sharpen-threshold": sharpen_threshold,
            "sharpen-min-prob": sharpen_min_prob, "sharpen-temperature": sharpen_temperature, "single-model": single_model,
            "test": test, "segment-length": segment_length, "exit-threshold": exit_threshold,
            "exit-temperature": exit_temperature, "feedback": feedback, "trim": trim,
            "literal": tuple(literal) if literal else None,
        },
    )  # fmt: skip
    texts = _read_prompts(prompts, file)
    if stream and len(texts) > 1:
        raise InputError("--stream writes one text as it comes; give one prompt, or --no-stream")
    from ensemble_decode.sampling import Sampling

    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=sample_top_k, min_p=min_p, seed=seed)
    out = Console()
    ensemble = load_ensemble(
        model,
        Console(stderr=True),
        device=device or "auto",
        dtype=dtype or "auto",
        weight=weight or None,
        attention=attention,
    )
    streaming = stream if stream is not None else out.is_terminal and len(texts) == 1 and not as_json
    sent: list[Any] = list(texts)
    if chat:
        sent = [_message(text, system) for text in texts]
    done = ensemble.generate(
        sent,
        method=chosen,
        max_new_tokens=max_new_tokens,
        stop=stop,
        sampling=sampling,
        trace=trace,
        on_delta=writer(out) if streaming else None,
    )
    _show(done, texts, out, as_json=as_json, streamed=streaming)
    failed = [f"prompt {i}: {one.error}" for i, one in enumerate(done) if one.finish_reason == "error"]
    if failed:
        raise EnsembleError("; ".join(failed))


def _read_prompts(prompts: Sequence[str] | None, file: Path | None) -> list[str]:
    if file is not None and prompts:
        raise InputError("give the prompt as an argument or with --file, not both")
    if file is not None:
        try:
            return [file.read_text(encoding="utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--file {file}: {error}") from error
    if prompts:
        return list(prompts)
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("no prompt; give it as an argument, with --file, or on standard input")
    text = sys.stdin.read()
    if not text:
        raise InputError("the prompt on standard input is empty")
    return [text]


def _message(text: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _show(done: "list[Completion]", texts: list[str], out: Console, *, as_json: bool, streamed: bool) -> None:
    for number, (completion, text) in enumerate(zip(done, texts, strict=True)):
        if as_json:
            out.file.write(json.dumps(as_dict(text, completion), ensure_ascii=False) + "\n")
            continue
        if not streamed:
            if len(done) > 1:
                out.rule(f"prompt {number}")
            out.file.write(completion.text)
        out.file.write("\n")
        if completion.trace is not None:
            Console(stderr=True).print(_trace_table(completion.trace))
    out.file.flush()


def as_dict(prompt: str, completion: "Completion") -> dict[str, Any]:
    """A completion as JSON has it: exact bytes in base64, candidates as text with ``\\xhh`` for bytes that are not UTF-8."""
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
