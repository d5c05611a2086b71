"""Methods as text, as JSON and as a table."""

import copy
import dataclasses
import json
import pickle

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ensemble_decode as ed
from ensemble_decode.errors import InputError
from ensemble_decode.methods import JS, KL, SAFE, BaseMethod, GaC, MaxProb, Sharpen, Single, SpecFuse, UniTE
from ensemble_decode.methods.options import (
    as_mapping,
    describe,
    json_schema,
    option_groups,
    options_table,
    parse_method,
)
from ensemble_decode.methods.registry import METHODS
from ensemble_decode.schema.options import meanings
from ensemble_decode.settings import Limits

PROBABILITIES = st.floats(0, 1)
POSITIVE = st.floats(0, 1e300, exclude_min=True)
GATES = (
    st.none() | st.builds(MaxProb, PROBABILITIES) | st.builds(KL, st.floats(0, 1e300)) | st.builds(JS, st.floats(0, 9))
)
UNITES = st.builds(
    UniTE,
    st.integers(1, 1024),
    st.sampled_from(["first_piece", "exclude"]),
    st.sampled_from(["arithmetic", "geometric"]),
    GATES,
)
GACS = st.builds(GaC, PROBABILITIES)
SHARPENINGS = st.builds(
    Sharpen,
    st.sampled_from(["none", "prefix", "geometric", "temperature"]),
    st.sampled_from(["max_prob", "entropy"]),
    PROBABILITIES,
    PROBABILITIES,
    POSITIVE,
)
SAFES = st.builds(
    SAFE, UNITES | GACS, st.just("auto") | st.integers(1, 10**30), SHARPENINGS, GATES, st.none() | st.booleans()
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def specfuses(literals):
    return st.builds(
        SpecFuse,
        st.integers(1, 99),
        PROBABILITIES,
        POSITIVE,
        st.none() | POSITIVE,
        st.sampled_from(["word", "none"]),
        st.lists(literals, max_size=3).map(tuple),
    )


WITHOUT_BYTES = st.one_of(st.builds(Single, st.integers(0, 9)), UNITES, GACS, SAFES, specfuses(TEXTS))
ALL = WITHOUT_BYTES | specfuses(TEXTS | st.binary(min_size=1))


@given(ALL)
@settings(deadline=None)
def test_a_method_as_text_is_read_as_the_same_method(method):
    assert parse_method(describe(method)) == method


@given(WITHOUT_BYTES)
@settings(max_examples=50, deadline=None)
def test_a_method_as_json_is_read_as_the_same_method_and_follows_the_schema(method):
    told = as_mapping(method)
    text = json.dumps(told)
    assert parse_method(told) == parse_method(text) == method
    jsonschema.validate(json.loads(text), json_schema())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OPTION_NAMES = sorted({row.name for group in option_groups() for row in group.options})
NEARLY = st.recursive(
    st.sampled_from(
        ["none", "true", "auto", "-1", "1e999", "0.3", '"x"', "[]", "[a]", "kl", "gac", "99999999999999999999"]
    ),
    lambda inner: st.builds(
        lambda name, given: f"{name}({','.join(f'{k}={v}' for k, v in given.items())})",
        st.sampled_from([*METHODS.classes, "kl", "max_prob", "prefix"]),
        st.dictionaries(st.sampled_from(OPTION_NAMES), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(st.text() | NEARLY | JSON.map(json.dumps))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_method_or_an_input_error(text):
    try:
        method = parse_method(text)
    except InputError:
        return
    assert parse_method(describe(method)) == method


@given(
    st.sampled_from([*METHODS.classes, "x"]), st.dictionaries(st.sampled_from([*OPTION_NAMES, "y"]), JSON, max_size=3)
)
@settings(max_examples=300, deadline=None)
def test_any_json_object_is_a_method_or_an_input_error(name, options):
    try:
        method = parse_method({"name": name} | options)
    except InputError:
        return
    assert parse_method(as_mapping(method)) == method


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("unite", UniTE()),
        ("unite(3, exclude, gate=js(0.3))", UniTE(3, "exclude", gate=JS(0.3))),
        ("unite(gate=max_prob)", UniTE(gate=MaxProb())),
        ("unite(gate=none)", UniTE()),
        ("gac(threshold=0.7)", GaC(0.7)),
        ("single(1)", Single(1)),
        ("safe(draft_length=auto, sharpen=none)", SAFE(draft_length="auto", sharpen=Sharpen("none"))),
        (
            "safe(sharpen=temperature(temperature=0.4, trigger=entropy))",
            SAFE(sharpen=Sharpen("temperature", "entropy", temperature=0.4)),
        ),
        (
            "safe(sharpen=prefix, base=gac(threshold=0.4), test=kl(0.2), overlap=true)",
            SAFE(GaC(0.4), sharpen=Sharpen("prefix"), test=KL(0.2), overlap=True),
        ),
        (
            'specfuse(4, trim=none, feedback=0.5, literals=["\\n\\n", b"\\u00ff"])',
            SpecFuse(4, feedback=0.5, trim="none", literals=("\n\n", b"\xff")),
        ),
        (
            '{"name": "safe", "base": {"name": "gac", "threshold": 0.4}, "sharpen": "prefix"}',
            SAFE(GaC(0.4), sharpen=Sharpen("prefix")),
        ),
        ({"name": "unite", "top_k": 24.0, "gate": None}, UniTE(24)),
        ({"name": "safe", "draft_length": "auto", "test": "kl(0.2)"}, SAFE(draft_length="auto", test=KL(0.2))),
    ],
)
def test_reads_every_form(text, method):
    assert parse_method(text) == method


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("best", "'best' is not a method; expected single, unite, gac, safe or specfuse"),
        ("safe(top_k=3)", "safe has no option 'top_k'; expected base, draft_length, sharpen, test, overlap"),
        ("safe(base=gac(top_k=3))", "gac has no option 'top_k'; expected threshold"),
        ("safe(base=single)", "'single' is not a base method; expected unite or gac"),
        ("safe(draft_length=some)", "SAFE: draft_length must be an integer of at least 1 or 'auto', got 'some'"),
        ("unite(gate=max)", "'max' is not a gate; expected max_prob, kl, js or none"),
        ("unite(gate=kl(x))", "KL: threshold must be a number of at least 0, got 'x'"),
        ("unite(gate=7)", "UniTE: gate must be a gate (max_prob, kl, js or none), got 7"),
        ("unite(1, 2, 3, 4, 5)", "unite takes at most 4 options, got 5"),
        ("unite(3, top_k=4)", "unite: top_k is given twice"),
        ("unite(top_k=2.5)", "UniTE: top_k must be an integer from 1 to 1024, got 2.5"),
        ("unite(top_k=true)", "UniTE: top_k must be an integer from 1 to 1024, got 'true'"),
        ({"name": "unite", "top_k": True}, "UniTE: top_k must be an integer from 1 to 1024, got True"),
        ({"name": "single", "model": "1"}, "Single: model must be an integer of at least 0, got '1'"),
        ({"name": "specfuse", "literals": ["\ud83d"]}, "SpecFuse: literals must be a list of strings or bytes"),
        (
            {"name": "safe", "sharpen": {"name": "temperature", "temperature": float("inf")}},
            "Sharpen: temperature must be a number above 0, got inf",
        ),
        ({"top_k": 3}, "a method needs a 'name'"),
        ("{", "a method as JSON: "),
        ("[" * 100_000, "within each other"),
        ("{" + '"a":[' * 100_000, "a method as JSON: "),
        (7, "a method is text or an object with a 'name', got 7"),
    ],
)
def test_refusals_name_class_option_and_what_is_expected(given, message):
    with pytest.raises(InputError) as refused:
        parse_method(given)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniTE(0), "UniTE: top_k must be an integer from 1 to 1024, got 0"),
        (lambda: UniTE(True), "top_k must be an integer"),
        (lambda: UniTE("5"), "top_k must be an integer"),
        (lambda: GaC(float("nan")), "GaC: threshold must be a number from 0 to 1, got nan"),
        (lambda: SAFE(overlap=1), "SAFE: overlap must be True, False or None, got 1"),
        (
            lambda: SAFE(base=Single()),
            "SAFE: base must be a base method (unite or gac, or another BaseMethod), got Single(model=0)",
        ),
        (lambda: SpecFuse(literals="ab"), "SpecFuse: literals must be a list of strings"),
        (lambda: SpecFuse(literals=("",)), "none of them empty"),
        (
            lambda: ed.Sampling(top_k=10**20 - 1, temperature=-1),
            "Sampling: temperature must be a number of at least 0, got -1",
        ),
        (lambda: ed.Sampling(seed=2**63), "Sampling: seed must be an integer from 0 to 9223372036854775807 or None"),
        (lambda: Limits(stop=5), "Limits: stop must be a string or a list of strings"),
        (lambda: Limits(0), "Limits: max_new_tokens must be an integer of at least 1, got 0"),
    ],
)
def test_python_refuses_in_the_same_words(make, message):
    with pytest.raises(InputError) as refused:
        make()
    assert message in str(refused.value)


def test_numbers_of_numpy_are_numbers():
    assert UniTE(np.int64(3)) == UniTE(3)
    assert type(UniTE(np.int64(3)).top_k) is int
    assert ed.Sampling(np.float32(0.5), seed=np.uint32(4)) == ed.Sampling(0.5, seed=4)


def test_methods_are_values():
    method = SAFE(GaC(0.3), "auto")
    assert method == SAFE(base=GaC(threshold=0.3), draft_length="auto")
    assert hash(SpecFuse(literals=["a"])) == hash(SpecFuse(literals=("a",)))
    assert pickle.loads(pickle.dumps(method)) == copy.deepcopy(method) == method
    assert dataclasses.replace(method, draft_length=3) == SAFE(GaC(0.3), 3)
    assert repr(UniTE(5)) == "UniTE(top_k=5, oov='first_piece', aggregate='arithmetic', gate=None)"
    with pytest.raises(InputError, match="top_k"):
        dataclasses.replace(UniTE(), top_k=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.test = None


def test_a_base_of_ones_own_works_and_has_no_text():
    class Own(BaseMethod):
        def fuse(self, context, rows, logits, sharpen=None, *, draw=True):
            raise NotImplementedError

    method = SAFE(Own())
    with pytest.raises(InputError, match="has no name as a base method; names stand for unite or gac"):
        describe(method)
    with pytest.raises(InputError, match="JSON has no bytes"):
        as_mapping(SpecFuse(literals=(b"a",)))


def test_every_option_has_a_meaning_and_no_name_is_ambiguous():
    classes = [*METHODS.classes.values(), MaxProb, KL, JS, Sharpen, ed.Sampling, Limits]
    for cls in classes:
        names = [field.name for field in dataclasses.fields(cls)]
        assert list(meanings(cls)) == names, cls
        assert "name" not in names, "JSON objects have their class's name there"


def test_the_table_has_every_option_with_its_default():
    table = options_table()
    for name, cls in METHODS.classes.items():
        assert f"**`{name}`** (method)" in table
        for field in dataclasses.fields(cls):
            assert f"| `{field.name}` |" in table
    assert "| `top_k` | `10` | an integer from 1 to 1024 |" in table
    assert "arXiv 2510.15346" in table
