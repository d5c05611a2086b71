"""``ensemble-decode models``: the demo models in the cache."""

from typing import Annotated

import typer
from rich.console import Console

from ensemble_decode.errors import InputError
from ensemble_decode.members import sources as models
from ensemble_decode.members.sources.gguf_convert import conversions, converted_folder, remove_conversions

models_app = typer.Typer(help="Fetch, list and remove the demo models.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(help=f"Which ones: {', '.join(models.DEMO_MODELS)}. Default: all.")]


@models_app.command("fetch")
def fetch(
    names: Names = None,
    convert: Annotated[
        bool, typer.Option("--convert/--no-convert", help="Also convert the weights, so that the first use is quick.")
    ] = True,
) -> None:
    """Download demo models into the cache, check them, and convert them for use."""
    from ensemble_decode.members.transformers.remarks import quiet_libraries

    console = Console(stderr=True)
    for name in _chosen(names):
        path = models.fetch_demo(name, console)
        if convert:
            with console.status(f"Converting demo:{name} (once, about a minute)"):
                quiet_libraries()
                path = converted_folder(path, f"demo:{name}", models.DEMO_MODELS[name].sha256)
        console.print(f"demo:{name} is ready in {path}", highlight=False, soft_wrap=True)


@models_app.command("list")
def list_models() -> None:
    """Show the demo models and what of them lies in the cache."""
    for status in models.list_demos():
        where = f"{status.size / 1e6:.0f} MB in {status.path}" if status.fetched else "not downloaded"
        typer.echo(
            f"demo:{status.model.name}  {status.model.title}\n  licence: {status.model.licence}\n  file: {where}"
        )
        for folder in conversions(status.model.sha256):
            typer.echo(f"  converted: {folder}")


@models_app.command("remove")
def remove(
    names: Annotated[list[str] | None, typer.Argument(help="Which demo models.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Delete demo models and their converted weights from the cache."""
    if everything == bool(names):
        raise InputError("models remove: name the models to remove, or give --all")
    console = Console(stderr=True)
    for name in _chosen(names):
        existed = models.remove_demo(name)
        existed = remove_conversions(models.DEMO_MODELS[name].sha256) > 0 or existed
        console.print(f"demo:{name}: {'removed' if existed else 'was not in the cache'}", highlight=False)


def _chosen(names: list[str] | None) -> list[str]:
    chosen = [name.removeprefix("demo:") for name in names or models.DEMO_MODELS]
    for name in chosen:
        models.demo_path(name)  # refuses unknown names before anything is done
    return chosen
