"""Tokenizers of published sizes: nothing at load is done once per token through the tokenizer library."""

import sys
import time
from collections import Counter

import pytest
from support import large_tokenizers
from transformers import AutoTokenizer

from ensemble_decode.vocab.aligned import AlignedVocab


class Calls:
    """Counts calls made from Python code: in all, and of the methods of the tokenizer library by name."""

    def __enter__(self):
        self.total, self.library = 0, Counter()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, what):
        if event in ("call", "c_call"):
            self.total += 1
        if event == "c_call" and type(getattr(what, "__self__", None)).__module__.startswith("tokenizers"):
            self.library[what.__name__] += 1


def test_loading_from_the_cache_calls_the_tokenizers_a_few_times_whatever_their_size(tmp_path):
    """6 405 added tokens took 12 s, each by a call of its own."""
    tokenizers = [large_tokenizers.metaspace(20000, added=6405), large_tokenizers.byte_level(8000, added=2000)]
    AlignedVocab.build(tokenizers, cache_dir=tmp_path)
    with Calls() as calls:
        aligned = AlignedVocab.build(tokenizers, cache_dir=tmp_path)
    assert calls.library["add_tokens"] == 2
    assert sum(calls.library.values()) < 250, calls.library
    assert calls.total < 9 * (6405 + 2000), "a few calls for an added token, none for another"
    for vocab, tokenizer in zip(aligned.models, tokenizers, strict=True):
        last = tokenizer.convert_tokens_to_ids("<unused 999>")
        assert vocab.encode(b"a<unused 999>b")[1] == last
        assert vocab.token_bytes[last] == b"<unused 999>"


def test_building_calls_the_tokenizers_a_few_times_for_added_tokens():
    tokenizer = large_tokenizers.metaspace(12000, added=6405)
    with Calls() as calls:
        AlignedVocab.build([tokenizer], cache_dir=None)
    assert calls.library["add_tokens"] == 1
    assert sum(calls.library.values()) < 1500, calls.library


@pytest.mark.slow
def test_a_pair_of_published_sizes_is_ready_from_the_cache_in_under_a_second(tmp_path):
    """Prints the figure; the machine's load decides whether it is met, so calls are what is asserted."""
    large_tokenizers.metaspace(262144, added=6405).save_pretrained(tmp_path / "metaspace")
    large_tokenizers.byte_level(151936, added=300).save_pretrained(tmp_path / "byte_level")
    seconds = []
    for _ in range(3):  # the first builds
        tokenizers = [AutoTokenizer.from_pretrained(tmp_path / name) for name in ("metaspace", "byte_level")]
        start = time.perf_counter()
        AlignedVocab.build(tokenizers, cache_dir=tmp_path / "cache")
        seconds.append(time.perf_counter() - start)
    print(f"262 144 and 151 936 tokens: built in {seconds[0]:.1f} s, from the cache in {min(seconds[1:]):.2f} s")
    with Calls() as calls:
        AlignedVocab.build(tokenizers, cache_dir=tmp_path / "cache")
    assert calls.library["add_tokens"] == 2
    assert sum(calls.library.values()) < 250, calls.library
    assert calls.total < 414080 / 2
