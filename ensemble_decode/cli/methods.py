"""``ensemble-decode methods``: every method and its options."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ensemble_decode.cli.streams import write_json


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="The JSON schema of a method.")] = False,
) -> None:
    """Show every method and option: its default, the values it takes, what it means, and the paper behind it.

    A method is written as safe(draft_length=auto, sharpen=geometric, base=gac(threshold=0.4)), or as a JSON object
    whose field "name" is its name. Options that are left out have their defaults.
    """
    from ensemble_decode.methods.options import json_schema, option_groups

    if as_json:
        write_json(json_schema(), indent=1)
        return
    out = Console()
    for group in option_groups():
        source = f"  ({group.source})" if group.source else ""
        out.print(f"[bold]{group.name}[/]  {group.kind}{source}", highlight=False)
        out.print(f"  {group.meaning}", highlight=False, markup=False)
        if group.options:
            table = Table("option", "default", "values and meaning", box=None, padding=(0, 2, 0, 2))
            for row in group.options:
                values = row.values[:1].upper() + row.values[1:]
                table.add_row(row.name, escape(row.default), escape(f"{values}. {row.meaning}"))
            out.print(table, highlight=False)
        out.print()
