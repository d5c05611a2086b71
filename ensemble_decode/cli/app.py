"""The command line: ``ensemble-decode`` and its subcommands, one file each.

Nothing here imports torch, so that ``--help`` and usage errors answer at once; each command imports what it runs.
"""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from ensemble_decode.cli.batch import batch
from ensemble_decode.cli.bench import bench_app
from ensemble_decode.cli.demo import demo
from ensemble_decode.cli.determine import determine
from ensemble_decode.cli.generate import generate
from ensemble_decode.cli.info import info
from ensemble_decode.cli.lm_eval import lm_eval
from ensemble_decode.cli.methods import methods
from ensemble_decode.cli.models import models_app
from ensemble_decode.cli.options import EXIT_CODES
from ensemble_decode.cli.plan import plan
from ensemble_decode.cli.streams import prepare_output
from ensemble_decode.errors import EnsembleError, InputError
from ensemble_decode.version import __version__

app = typer.Typer(
    name="ensemble-decode",
    help="Several language models with different tokenizers write one text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=EXIT_CODES)(generate)
app.command(epilog=EXIT_CODES)(batch)
app.command(epilog=EXIT_CODES)(plan)
app.command(epilog=EXIT_CODES)(demo)
app.command(epilog=EXIT_CODES)(determine)
app.command(epilog=EXIT_CODES)(methods)
app.command(
    "lm-eval", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(lm_eval)
app.add_typer(models_app, name="models")
app.command(epilog=EXIT_CODES)(info)
app.add_typer(bench_app, name="bench")

_debug = False


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ensemble-decode {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    global _debug
    _debug = debug


def main() -> None:
    """Run the command line; ``cli.options.EXIT_CODES`` says with which codes it ends."""
    global _debug
    _debug = False
    prepare_output()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has gone, as head does; nothing is left to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if _debug:
            raise
        _report(error)
        sys.exit(2 if isinstance(error, InputError) else 1)


def _report(error: Exception) -> None:
    """One message, without a traceback: an error of ours says itself what to do, any other is named for what it is."""
    words = str(error) if isinstance(error, EnsembleError) else f"{type(error).__name__}: {error} (--debug shows where)"
    Console(stderr=True).print(f"[bold red]Error:[/] {_escaped(words)}", highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
