"""Options as text."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_decode.errors import InputError
from ensemble_decode.schema.grammar import Call, Word, read, write

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
LEAVES = st.one_of(
    NAMES.map(Word),
    st.text(),
    st.binary(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        # without arguments it is written as its name, which is read as a word
        st.builds(
            Call, NAMES, st.lists(inner, min_size=1, max_size=3).map(tuple), st.dictionaries(NAMES, inner, max_size=3)
        ),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("safe", Word("safe")),
        ("unite()", Call("unite")),
        (" kl ( 0.2 ) ", Call("kl", (0.2,))),
        (
            'f(1, -2.5e3, x=[a, "b"], y=g(z=none))',
            Call("f", (1, -2500.0), {"x": ["a", "b"], "y": Call("g", (), {"z": "none"})}),
        ),
        (r'"\n\u00e9"', "\né"),
        (r'b"a\u00ff"', b"a\xff"),
        ("[]", []),
        ("1e999", float("inf")),
    ],
)
def test_reads(text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a value (character 1, at its end)"),
        ("safe(", "expected a value (character 6, at its end)"),
        ("safe(a=1", 'expected "," or ")" (character 9, at its end)'),
        ("f(a b)", 'expected "," or ")" (character 5, at \'b)\')'),
        ("f(a=1, a=2)", "a is given twice (character 8, at 'a=2)')"),
        ("f(a=1, 2)", "a value without a name stands behind one with a name (character 8, at '2)')"),
        ("f(1) g", "expected nothing more (character 6, at 'g')"),
        ('f("x)', "the string has no end (character 3"),
        ("f(a=$)", "not understood (character 5, at '$)')"),
        (r'"\q"', "an escape that JSON does not know (character 1"),
        ('b"€"', "bytes hold characters up to U+00FF only"),
        ("9" * 6000, "too many digits"),
        ("(" * 3, "expected a value (character 1"),
        ("[" * 5000, "within each other"),
    ],
)
def test_what_cannot_be_read_is_shown_with_its_place(text, words):
    with pytest.raises(InputError) as refused:
        read(text)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 300


@settings(deadline=None)
@given(VALUES)
def test_what_is_written_is_read_again(value):
    assert read(write(value)) == value


@settings(deadline=None)
@given(st.text() | st.text(alphabet='abc_()[],=" .-019b\\', max_size=30))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(InputError):
        read(text)
