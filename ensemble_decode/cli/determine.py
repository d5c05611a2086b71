"""``ensemble-decode determine``: which models are worth combining, and how."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ensemble_decode.cli import loading, options
from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.determination import Rules

_INPUT, _GENERATION, _FIGURES, _OUTPUT = "Input", "Generation", "Figures", "Output"
RULES = "max_gap, gap, max_length_ratio, min_room, short_words, near_equal, open_ended, max_models"


def determine(
    model: loading.Models = None,
    device: loading.Devices = None,
    dtype: loading.Dtypes = None,
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
            help="For lines without one: exact, numeric, numeric:first, choice, regex, or package.module:function.",
            rich_help_panel=_INPUT,
        ),
    ] = "exact",
    generations: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FILE", help="Saved responses: JSON lines with id and text.", rich_help_panel=_INPUT
        ),
    ] = None,
    harness: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FILE", help="Samples of lm_eval --log_samples, in place of --data.", rich_help_panel=_INPUT
        ),
    ] = None,
    harness_metric: Annotated[
        str | None, typer.Option(help="Which metric is the score. Default: the first.", rich_help_panel=_INPUT)
    ] = None,
    harness_filter: Annotated[
        str | None, typer.Option(help="Which filter's responses count, of several.", rich_help_panel=_INPUT)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many items.", rich_help_panel=_INPUT)] = None,
    texts_only: Annotated[
        bool, typer.Option("--texts-only", help="Load no model: every response is given.", rich_help_panel=_INPUT)
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-n",
            help="Tokens of each response at most, END included.",
            show_default="256, 16 with --demo",
            rich_help_panel=_GENERATION,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="The text ends before this string. Repeat for several.",
            show_default="none, the end of a line with --demo",
            rich_help_panel=_GENERATION,
        ),
    ] = None,
    system_role: options.SystemRole = "error",
    no_template: options.NoTemplate = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.", rich_help_panel=_GENERATION)] = 16,
    union_top_k: Annotated[
        int,
        typer.Option(min=1, help="Candidates of each model in the unions whose JS is taken.", rich_help_panel=_FIGURES),
    ] = 10,
    draft_length: Annotated[
        int, typer.Option(min=1, help="Drafts of SAFE, for the share of unsafe positions.", rich_help_panel=_FIGURES)
    ] = 5,
    words: Annotated[
        int, typer.Option(min=1, help="So many of the most frequent words are tokenized.", rich_help_panel=_FIGURES)
    ] = 10_000,
    language: Annotated[str, typer.Option(help="The language of these words.", rich_help_panel=_FIGURES)] = "en",
    resamples: Annotated[int, typer.Option(min=1, help="Resamples of the bootstrap.", rich_help_panel=_FIGURES)] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.", rich_help_panel=_FIGURES)] = 0.95,
    bootstrap_seed: Annotated[int, typer.Option(help="Seed of the bootstrap.", rich_help_panel=_FIGURES)] = 0,
    cost_device: Annotated[
        str, typer.Option(help="A device of the cost model.", rich_help_panel=_FIGURES)
    ] = "h100-sxm",
    cost_batch: Annotated[
        int, typer.Option(min=1, help="Rows at a time in the cost model.", rich_help_panel=_FIGURES)
    ] = 8,
    rules: Annotated[
        str,
        typer.Option(
            help=f"What makes a set worth combining, where it is not the default, as 'max_gap=0.05, gap=relative'. "
            f"There are {RULES} (docs/determine.md).",
            rich_help_panel=_OUTPUT,
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of responses and the report.", rich_help_panel=_OUTPUT)
    ] = Path("determine"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON report, not the table.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Compare candidate models on your data: are they worth combining, which, and how?"""
    saved, samples = _files(generations, "--generations"), _files(harness, "--harness")
    options.check_one_of("--system-role", system_role, ("error", "merge"))
    screen, terminal = Console(stderr=True), Console()
    if demo:
        if model or data or samples:
            raise InputError("--demo has its own models and data; leave out --model, --data and --harness")
        model, data, max_new_tokens, stop = _demo(out, max_new_tokens, stop, screen)
    if not model:
        raise InputError(
            "no model given; give the candidates, such as --model demo:smollm2 --model demo:gemma3, or --demo"
        )
    judged = _rules(rules)
    if not texts_only:
        loading.fetch_demos(model, screen)
    from ensemble_decode.determination import determine as run
    from ensemble_decode.determination.table import show
    from ensemble_decode.members.transformers.remarks import quiet_libraries

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
            chat="plain" if no_template else "template",
            system=system_role,  # type: ignore[arg-type]
            batch_size=batch_size,
            device=device or "auto",
            dtype=dtype or "auto",
            top_k=union_top_k,
            draft_length=draft_length,
            words=words,
            language=language,
            resamples=resamples,
            confidence=confidence,
            seed=bootstrap_seed,
            cost_device=cost_device,
            cost_batch=cost_batch,
            rules=judged,
            progress=bars.update,
        )
    files = report.write(out)
    if as_json:
        terminal.file.write(report.to_json())
    else:
        show(report, terminal)
    screen.print(f"Written: {', '.join(str(file) for file in files)}", highlight=False, soft_wrap=True)


def _rules(text: str) -> "Rules":
    from ensemble_decode.determination import Rules
    from ensemble_decode.schema.options import Choice

    return Choice("rules", {"rules": Rules}).build(f"rules({text})")


def _demo(
    out: Path, max_new_tokens: int | None, stop: list[str] | None, screen: Console
) -> tuple[list[str], Path, int, list[str]]:
    """The models, questions and settings of --demo, made in the output folder; says how to run the same without it."""
    from ensemble_decode.determination import demo
    from ensemble_decode.determination.words import shell
    from ensemble_decode.members import sources as models
    from ensemble_decode.members.transformers.remarks import quiet_libraries

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
