"""Options that several commands share: the method, sampling, limits, chats; meanings are the library's own."""

from typing import Annotated, Any

import typer

from ensemble_decode.errors import InputError
from ensemble_decode.schema.options import meanings
from ensemble_decode.settings import Limits, Sampling

_METHOD, _SAMPLING, _CHAT = "Method", "Sampling", "Chat"

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed while running, 2 wrong usage or input, 130 interrupted. "
    "Redirected output is UTF-8."
)


def _sampling(name: str) -> Any:
    return typer.Option(help=meanings(Sampling)[name], rich_help_panel=_SAMPLING)


MethodText = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="METHOD",
        help="A method by its name, with options in parentheses where they are not the default: unite, "
        "'safe(draft_length=auto, base=gac(threshold=0.4))'; or as a JSON object. "
        "ensemble-decode methods shows all of them.",
        rich_help_panel=_METHOD,
    ),
]
Temperature = Annotated[float, _sampling("temperature")]
TopP = Annotated[float, _sampling("top_p")]
TopK = Annotated[int, _sampling("top_k")]
MinP = Annotated[float, _sampling("min_p")]
Seed = Annotated[int | None, _sampling("seed")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help=meanings(Limits)["max_new_tokens"])]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="The text ends before this string. Repeat for several.")]
NoTemplate = Annotated[
    bool,
    typer.Option(
        "--no-template", help="Send chat messages as plain text, without a chat template.", rich_help_panel=_CHAT
    ),
]
SystemRole = Annotated[
    str,
    typer.Option(
        help="What becomes of a system message that a model's template refuses: error, or merge, which puts it before "
        "the user's first message.",
        rich_help_panel=_CHAT,
    ),
]


def check_one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a ``value`` of an option that is none of ``choices``."""
    if value not in choices:
        raise InputError(f"{option} {value!r}: expected {' or '.join(choices)}")
