"""The options of loading, one group for every command that runs models, and the loading itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.ensemble import Ensemble

_PANEL, _SPEED, _SOURCE = "Models", "Memory and speed", "Loading"
_EACH = "Once for all models, or once per model."

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="Hub id, ID@REVISION, folder, .gguf file or demo:NAME. Repeat for several; the first is the primary.",
        rich_help_panel=_PANEL,
    ),
]
Weights = Annotated[
    list[float] | None,
    typer.Option("--weight", help=f"Weight in the ensemble. {_EACH} Default: equal.", rich_help_panel=_PANEL),
]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help=f"auto, cpu, cuda:0 and so on. {_EACH} Default: auto.", rich_help_panel=_PANEL),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", help=f"auto, float32, bfloat16 or float16. {_EACH} Default: auto.", rich_help_panel=_PANEL),
]
Revisions = Annotated[
    list[str] | None,
    typer.Option("--revision", help=f"Branch, tag or commit of a hub id. {_EACH}", rich_help_panel=_PANEL),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="What the KV caches of all models may take together: a size such as 8GiB, or a share of what is free, "
        "such as 50%.",
        rich_help_panel=_SPEED,
    ),
]
Attention = Annotated[str, typer.Option(help="auto, sdpa or flash.", rich_help_panel=_SPEED)]
Compile = Annotated[
    bool, typer.Option("--compile", help="Run decode steps through torch.compile.", rich_help_panel=_SPEED)
]
Graphs = Annotated[
    bool,
    typer.Option("--graphs", help="Replay decode steps as CUDA graphs; needs CUDA devices.", rich_help_panel=_SPEED),
]
ChunkTokens = Annotated[
    int, typer.Option(min=1, metavar="N", help="The most tokens in one forward of a model.", rich_help_panel=_SPEED)
]
FewRows = Annotated[
    str,
    typer.Option(
        help="Linear layers on a CPU that read their weights once for a few rows: on, off, or auto, where faster.",
        rich_help_panel=_SPEED,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with a model from the hub.", rich_help_panel=_SOURCE),
]
ModelArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="KEY=VALUE",
        help="An argument of transformers' from_pretrained, for every model; VALUE is JSON or text. "
        "Repeat for several.",
        rich_help_panel=_SOURCE,
    ),
]


@dataclass(frozen=True)
class Loading:
    """What was asked for; the fields are the arguments of ``Ensemble.load`` as the command line has them."""

    model: Sequence[str] | None = None
    weight: Sequence[float] | None = None
    device: Sequence[str] | None = None
    dtype: Sequence[str] | None = None
    revision: Sequence[str] | None = None
    memory: str | None = None
    attention: str = "auto"
    compile: bool = False
    graphs: bool = False
    chunk_tokens: int = 2048
    few_rows: str = "auto"
    trust_remote_code: bool = False
    model_args: Sequence[str] | None = None

    def require_models(self) -> list[str]:
        """The models. Raises ``InputError`` where there are none."""
        if not self.model:
            raise InputError("no model given; give at least one --model, such as --model demo:smollm2")
        return list(self.model)

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``Ensemble.load`` that are not its defaults."""
        model_kwargs = dict(_key_and_value(text) for text in self.model_args or ())
        if self.trust_remote_code:
            model_kwargs["trust_remote_code"] = True
        if self.few_rows not in ("auto", "on", "off"):
            raise InputError(f"--few-rows {self.few_rows!r}: expected auto, on or off")
        given = {
            "weight": _one_or_each(self.weight),
            "device": _one_or_each(self.device),
            "dtype": _one_or_each(self.dtype),
            "revision": _one_or_each(self.revision),
            "model_kwargs": model_kwargs or None,
            "memory": self.memory,
            "few_rows": None if self.few_rows == "auto" else self.few_rows == "on",
        }
        arguments = {name: value for name, value in given.items() if value is not None}
        for name in ("attention", "compile", "graphs", "chunk_tokens"):
            if getattr(self, name) != getattr(type(self), name):
                arguments[name] = getattr(self, name)
        return arguments

    def load(self, console: Console) -> "Ensemble":
        """``Ensemble.load`` under a spinner on ``console``."""
        specs, arguments = self.require_models(), self.arguments()
        fetch_demos(specs, console)
        with console.status("Loading models (a GGUF file is converted on first use, which takes about a minute)"):
            from ensemble_decode.ensemble import Ensemble
            from ensemble_decode.members.transformers.remarks import quiet_libraries

            quiet_libraries()
            return Ensemble.load(specs, **arguments)


def fetch_demos(specs: Sequence[str], console: Console) -> None:
    """Fetch the demo models among ``specs``, with their progress on ``console``."""
    from ensemble_decode.members import sources

    for spec in specs:
        parsed = sources.parse_spec(spec)
        if parsed.kind == "demo":
            sources.fetch_demo(parsed.location, console)


def _one_or_each(values: Sequence[Any] | None) -> Any:
    return None if not values else values[0] if len(values) == 1 else list(values)


def _key_and_value(text: str) -> tuple[str, Any]:
    import json

    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"--model-arg {text!r}: expected KEY=VALUE, such as local_files_only=true")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
