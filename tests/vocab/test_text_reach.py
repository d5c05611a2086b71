"""How far a pre-tokenizer can look: the bound is right where it is stated, and withheld where it cannot be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import texts
from support import tokenizers as tiny
from tokenizers import Regex, pre_tokenizers

from ensemble_decode.vocab.pretokens import GPT2_PATTERN, reach_of

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = [GPT2_PATTERN, tiny.LLAMA3_REGEX, tiny.QWEN2_REGEX, CL100K, O200K]


def split(pattern: str, **changes) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **changes}


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=150, deadline=None)
@given(
    start=st.lists(st.sampled_from(texts.FRAGMENTS), max_size=20).map("".join),
    end=st.lists(st.sampled_from(texts.FRAGMENTS), max_size=10).map("".join),
    added=st.text(max_size=5),
)
def test_a_split_that_is_called_final_stays_whatever_follows(pattern, start, end, added):
    """The middle has borders between groups enough for any of the patterns, so that some split is always final."""
    old = start + " a1!" * 8 + end
    reach = reach_of([split(pattern)])
    assert reach is not None
    final = reach.final_before(old)
    assert final is not None
    assert final > len(start)
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")

    def starts(text):
        return [start for _, (start, _) in splitter.pre_tokenize_str(text) if start <= final]

    assert starts(old) == starts(old + added)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<=a)b",  # looks left
        r"^\s+|\S+",
        r"\bword\b",
        r"\p{N}+(?=(\d{3})+(?!\d))|\s+",  # a repeated group
        r"[\s\S]+",  # runs through everything
        r".+|\n",
        r"\S+| \S+|[\s\S]+",
        r"[a-z&&[^x]]+|\s+",
        r"(a|b",
        r"a{2",
        r"\p{Greek}+|\s+",
        r"[",
    ],
)
def test_no_bound_is_stated_for_patterns_that_might_look_further(pattern):
    assert reach_of([split(pattern)]) is None


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [{"type": "Whitespace"}],
        [split(GPT2_PATTERN, behavior="MergedWithNext")],
        [split(GPT2_PATTERN, invert=True)],
        [split(GPT2_PATTERN), split(GPT2_PATTERN)],  # a first stage whose matches may lie across a border
    ],
)
def test_no_bound_is_stated_for_other_stages(stages):
    assert reach_of(stages) is None


def test_digits_before_byte_level_need_a_border_to_restart_on():
    stages = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    ]
    reach = reach_of(stages)
    assert reach is not None
    assert reach.edges
    assert not reach_of(stages[1:]).edges


def test_groups_that_an_item_runs_through_become_one():
    reach = reach_of([split(r"[^\s]+|\s+")])
    assert reach.group("a") == reach.group("1") == reach.group("!") != reach.group(" ")
    assert reach.group(" ") == reach.group("\n")
    assert reach.group("\u0301") is None
    # "a b" has two borders; the bound for this pattern is one unbounded item plus two.
    assert reach.final_before("a b") is None
    assert reach.final_before("a b c d") == 3
