"""`ensemble-decode methods`."""

import dataclasses
import json

from ensemble_decode.methods.options import json_schema
from ensemble_decode.methods.registry import METHODS


def test_every_method_and_option_is_shown_with_default_and_source(run):
    code, out, _ = run("methods", columns=80)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for name, cls in METHODS.classes.items():
        assert f"{name} method" in words
        for field in dataclasses.fields(cls):
            assert field.name in words
    assert "top_k 10 An integer from 1 to 1024." in words
    assert "safe method (arXiv 2510.15346)" in words
    assert "kl gate" in words
    assert "none, prefix, geometric, temperature sharpening" in words
    assert "sampling for every method" in words
    assert "top_p 1.0 A number above 0 and at most 1." in words
    assert "max_new_tokens 128 An integer of at least 1." in words


def test_the_schema_is_one_json_object(run):
    code, out, _ = run("methods", "--json")
    assert code == 0
    assert json.loads(out) == json_schema()
