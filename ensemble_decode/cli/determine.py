"""``ensemble-decode determine``: which models are worth combining, and how."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ensemble_decode.errors import InputError
from ensemble_decode.members.transformers.remarks import quiet_libraries

_INPUT, _GENERATION, _FIGURES, _RULES, _OUTPUT = "Input", "Generation", "Figures", "Rules", "Output"


def determine(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A candidate, as for generate. Repeat for several.", rich_help_panel=_INPUT),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="The demo models and a shortened one on generated questions, in place of --model and --data.",
            rich_help_panel=_INPUT,
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="JSON lines with prompt, answer and optionally id and grader.", rich_help_panel=_INPUT),
    ] = None,
    grader: Annotated[
        str,
        typer.Option(
            help="Of lines without one: exact, numeric, numeric:first, choice, regex, or package.module:function.",
            rich_help_panel=_INPUT,
        ),
    ] = "exact",
    generations: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=FILE: saved responses, JSON lines with id and text.", rich_help_panel=_INPUT),
    ] = None,
    harness: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=FILE: samples of lm_eval --log_samples, in place of --data.", rich_help_panel=_INPUT),
    ] = None,
    harness_metric: Annotated[
        str | None, typer.Option(help="Which metric is the score. Default: the first.", rich_help_panel=_INPUT)
    ] = None,
    harness_filter: Annotated[
        str | None, typer.Option(help="Which filter's responses count, of several.", rich_help_panel=_INPUT)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many items.", rich_help_panel=_INPUT)] = None,
    texts_only: Annotated[
        bool, typer.Option("--texts-only", help="Load no model: every response is given.", rich_help_panel=_INPUT)
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", "-n", show_default="256, 16 with --demo", rich_help_panel=_GENERATION),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End before this text; may be repeated.",
            show_default="none, the end of a line with --demo",
            rich_help_panel=_GENERATION,
        ),
    ] = None,
    system_merge: Annotated[
        bool,
        typer.Option("--merge-system", help="Put system messages before the user's.", rich_help_panel=_GENERATION),
    ] = False,
    plain: Annotated[
        bool, typer.Option("--no-template", help="Chat messages without a template.", rich_help_panel=_GENERATION)
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, rich_help_panel=_GENERATION)] = 16,
    device: Annotated[
        list[str] | None, typer.Option(help="One for all or one per model.", rich_help_panel=_GENERATION)
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="One for all or one per model.", rich_help_panel=_GENERATION)
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Of the unions for JS.", rich_help_panel=_FIGURES)] = 10,
    draft_length: Annotated[
        int, typer.Option(min=1, help="Of SAFE, for unsafe positions.", rich_help_panel=_FIGURES)
    ] = 5,
    words: Annotated[
        int, typer.Option(min=1, help="So many common words are tokenized.", rich_help_panel=_FIGURES)
    ] = 10_000,
    language: Annotated[str, typer.Option(help="Of these words.", rich_help_panel=_FIGURES)] = "en",
    resamples: Annotated[int, typer.Option(min=1, help="Of the bootstrap.", rich_help_panel=_FIGURES)] = 2000,
    confidence: Annotated[float, typer.Option(help="Of the intervals.", rich_help_panel=_FIGURES)] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.", rich_help_panel=_FIGURES)] = 0,
    cost_device: Annotated[
        str, typer.Option(help="A device of the cost model.", rich_help_panel=_FIGURES)
    ] = "h100-sxm",
    cost_batch: Annotated[int, typer.Option(min=1, help="Rows at a time.", rich_help_panel=_FIGURES)] = 8,
    max_gap: Annotated[float, typer.Option(help="Largest distance to the best score.", rich_help_panel=_RULES)] = 0.10,
    relative_gap: Annotated[
        bool, typer.Option("--relative-gap", help="That distance is a share of the best score.", rich_help_panel=_RULES)
    ] = False,
    max_length_ratio: Annotated[float, typer.Option(help="Of mean words, any two.", rich_help_panel=_RULES)] = 2.0,
    min_room: Annotated[
        float, typer.Option(help="What a model must add to the oracle choice.", rich_help_panel=_RULES)
    ] = 0.01,
    short_words: Annotated[float, typer.Option(help="Answers up to here are short.", rich_help_panel=_RULES)] = 32.0,
    near_equal: Annotated[
        float, typer.Option(help="Word agreement of nearly equal tokenizers.", rich_help_panel=_RULES)
    ] = 0.9,
    open_ended: Annotated[
        bool | None,
        typer.Option(
            "--open-ended/--right-answers", help="Default: by whether items have answers.", rich_help_panel=_RULES
        ),
    ] = None,
    max_models: Annotated[int, typer.Option(help="The largest set.", rich_help_panel=_RULES)] = 3,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of responses and the report.", rich_help_panel=_OUTPUT)
    ] = Path("determine"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON report, not the table.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Compare candidate models on your data: are they worth combining, which, and how?"""
    saved, samples = _files(generations, "--generations"), _files(harness, "--harness")
    screen, terminal = Console(stderr=True), Console()
    if demo:
        if model or data or samples:
            raise InputError("--demo has its own models and data; leave out --model, --data and --harness")
        model, data, max_new_tokens, stop = _demo(out, max_new_tokens, stop, screen)
    if not model:
        raise InputError(
            "no model given; give the candidates, such as --model demo:smollm2 --model demo:gemma3, or --demo"
        )
    if not texts_only:
        from ensemble_decode.members import sources as models

        for spec in model:
            parsed = models.parse_spec(spec)
            if parsed.kind == "demo":
                models.fetch_demo(parsed.location, screen)
    from ensemble_decode.determination import Rules
    from ensemble_decode.determination import determine as run
    from ensemble_decode.determination.table import show

    quiet_libraries()
    with _Bars(screen) as bars:
        report = run(
            model,
            data,
            grader=grader,
            generations=saved,
            harness=samples,
            harness_metric=harness_metric,
            harness_filter=harness_filter,
            folder=out,
            limit=limit,
            texts_only=texts_only,
            max_new_tokens=256 if max_new_tokens is None else max_new_tokens,
            stop=stop or (),
            chat="plain" if plain else "template",
            system="merge" if system_merge else "error",
            batch_size=batch_size,
            device=device or "auto",
            dtype=dtype or "auto",
            top_k=top_k,
            draft_length=draft_length,
            words=words,
            language=language,
            resamples=resamples,
            confidence=confidence,
            seed=seed,
            cost_device=cost_device,
            cost_batch=cost_batch,
            rules=Rules(
                max_gap=max_gap,
                gap="relative" if relative_gap else "points",
                max_length_ratio=max_length_ratio,
                min_room=min_room,
                short_words=short_words,
                near_equal=near_equal,
                open_ended=open_ended,
                max_models=max_models,
            ),
            progress=bars.update,
        )
    files = report.write(out)
    if as_json:
        terminal.file.write(report.to_json())
    else:
        show(report, terminal)
    screen.print(f"Written: {', '.join(str(file) for file in files)}", highlight=False, soft_wrap=True)


def _demo(
    out: Path, max_new_tokens: int | None, stop: list[str] | None, screen: Console
) -> tuple[list[str], Path, int, list[str]]:
    """The candidates, the questions and the settings of --demo, made in the output folder; says how to run the same without it."""
    from ensemble_decode.determination import demo
    from ensemble_decode.determination.words import shell
    from ensemble_decode.members import sources as models

    for name in demo.MODELS:
        models.fetch_demo(name.removeprefix("demo:"), screen)
    data = demo.write_questions(out / "questions.jsonl")
    with screen.status("Making the shortened model"):
        quiet_libraries()
        third = demo.shortened(out / "smollm2-short")
    chosen = [*demo.MODELS, str(third)]
    tokens, ends = demo.MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens, stop or [demo.STOP]
    words = ["ensemble-decode determine", *(f"--model {shell(name)}" for name in chosen), f"--data {shell(str(data))}"]
    words += [f"--max-new-tokens {tokens}", *(f"--stop {shell(end)}" for end in ends), f"--out {shell(str(out))}"]
    screen.print(f"The same as: {' '.join(words)}", highlight=False, soft_wrap=True, markup=False)
    return chosen, data, tokens, ends


class _Bars:
    """One bar for each kind of work, as it begins."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)


def _files(pairs: list[str] | None, option: str) -> dict[str, Path]:
    """MODEL=FILE; the last = parts them, for a model's name may hold one."""
    found = {}
    for text in pairs or ():
        name, equals, file = text.rpartition("=")
        if not equals or not name or not file:
            raise InputError(f"{option} {text!r}: give MODEL=FILE")
        found[name] = Path(file)
    return found
