"""Pages from templates: escaped, complete, and refused by name where jinja2 is missing."""

import sys
from importlib.resources import files

import pytest

from ensemble_decode.determination.templates import render
from ensemble_decode.errors import InputError

PAGE = ("ensemble_decode.bench", "page.html.j2", "plot")
NONE = {"facts": [], "images": {}, "tables": [], "skipped": []}


def test_what_a_template_shows_is_escaped():
    assert "Run &lt;b&gt;" in render(*PAGE, run={"id": "<b>"}, **NONE)


def test_a_name_without_a_value_is_an_error():
    import jinja2

    with pytest.raises(jinja2.UndefinedError, match="run"):
        render(*PAGE, **NONE)


def test_without_jinja2_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"ensemble-decode\[plot\]"):
        render(*PAGE, run={"id": "x"}, **NONE)


@pytest.mark.parametrize(
    ("package", "name"),
    [("ensemble_decode.bench", "page.html.j2"), ("ensemble_decode.determination", "report.html.j2")],
)
def test_templates_are_installed_with_the_package(package, name):
    assert files(package).joinpath(name).is_file()
