"""HTML pages from the templates that lie beside the modules."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ensemble_decode.errors import InputError


def render(package: str, name: str, extra: str, **values: Any) -> str:
    """A page. What the template puts into it is escaped.

    Args:
        package: Where the template lies.
        name: The template's file.
        extra: The package's extra that brings jinja2, for the error.
        **values: What the template names; a name without a value is an error.

    Raises:
        InputError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise InputError(f"the HTML page needs jinja2: pip install 'ensemble-decode[{extra}]'") from error
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    template = files(package).joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(template).render(**values)
