"""Tokenizers made so that re-encoding from a wrong place gives wrong ids: each rule of the restart has one that needs
it."""

import pytest
from support import tokenizers as tiny
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ensemble_decode.vocab.aligned import ModelVocab
from ensemble_decode.vocab.text import IncrementalTokens
from ensemble_decode.vocab.token_bytes import printable_alphabet


def byte_level(merges: list[tuple[str, str]], normalizer=None) -> ModelVocab:
    """Llama 3's pre-tokenizer with these merges (written in the printable alphabet)."""
    pieces = [*printable_alphabet(), *(a + b for a, b in merges)]
    rust = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tiny.LLAMA3_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rust.decoder = decoders.ByteLevel()
    if normalizer is not None:
        rust.normalizer = normalizer
    return ModelVocab.build(rust)


def metaspace(extra: list[str], merges: list[tuple[str, str]]) -> ModelVocab:
    """No pre-tokens, byte fallback."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *extra, *(a + b for a, b in merges)]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    rust = Tokenizer(model)
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return ModelVocab.build(rust)


def check(vocab: ModelVocab, before: str, after: str) -> list[int]:
    """Update from one text to the other and back; returns the ids of the second."""
    kept = IncrementalTokens(vocab)
    for text in (before, after, before):
        assert kept.peek(text.encode()) == vocab.encode(text.encode())
        kept.update(text.encode())
        assert kept.ids == vocab.encode(text.encode())
    return vocab.encode(after.encode())


@pytest.mark.parametrize("blanks", [20, 100, 1000])
def test_blank_space_is_joined_to_the_line_feed_before_it_when_another_follows(blanks):
    """Only then are "\\n" and the spaces one pre-token, and the merge across them applies, however far back."""
    vocab = byte_level([("Ċ", "Ġ")])
    before = "the quick " * 30 + "x\n" + " " * blanks
    joined = vocab.exact[b"\n "]
    assert joined not in vocab.encode(before.encode())
    assert joined in check(vocab, before, before + "\n")


@pytest.mark.parametrize("marks", [12, 60, 600])
def test_marks_are_spelled_with_the_character_that_a_normalizer_joins_them_to(marks):
    """Alone they are encoded (pairs of pairs), behind an ``e`` longest match spells them (threes)."""
    one, two, three = "Ì£", "Ì£Ì£", "Ì£Ì£Ì£"
    vocab = byte_level([("Ì", "£"), (one, one), (two, one)], normalizers.NFC())
    assert (one + two) == three
    mark = "\u0323"
    assert vocab.exact[mark.encode() * 3] not in vocab.encode(mark.encode() * marks)
    ids = check(vocab, "the quick " * 30 + "e" + mark * marks, "the quick " * 30 + "e" + mark * (marks + 6))
    assert ids.count(vocab.exact[mark.encode() * 3]) == marks // 3 + 2


@pytest.mark.parametrize("length", [10, 60, 400])
def test_a_merge_at_the_end_may_change_every_token_before_it(length):
    """Pairs merge from the right, so one more character pairs all of them anew."""
    chars = [chr(0x4E00 + index) for index in range(length + 1)]
    vocab = metaspace(chars, [(chars[i], chars[i + 1]) for i in range(length - 1, -1, -1)])
    before, after = "".join(chars[:length]), "".join(chars)
    assert not set(vocab.encode(before.encode())[1:-1]) & set(vocab.encode(after.encode())[1:-1])
    check(vocab, before, after)
    check(vocab, "x" * 300 + before, "x" * 300 + after)


@pytest.mark.parametrize("length", [20, 150])
def test_an_added_token_longer_than_the_first_window(length):
    """Its last character arrives long after the place from which a shorter token would be re-read."""
    tokenizer = tiny.BUILDERS["gemma"]()
    rule = "<" + "=" * length + ">"
    tokenizer.add_tokens([rule])
    vocab = ModelVocab.build(tokenizer)
    before = "the quick " * 30 + rule[:-1]
    assert tokenizer.convert_tokens_to_ids(rule) in check(vocab, before, before + ">")


def test_once_a_stretch_needed_a_longest_match_as_a_whole_everything_is_encoded():
    """Unigram takes the text "<0x41>" for the piece of that name, whose byte is another; no local rule mends that."""
    vocab = ModelVocab.build(tiny.build("unigram"))
    start = "the river past the house " * 30
    assert vocab.encode(start.encode()) != vocab.speller.longest_match(start.encode())
    kept = IncrementalTokens(vocab)
    for text in (start, start + "<0x41>", start + "<0x41> and on", start + "<0x41> and on it goes", start[:-3]):
        kept.update(text.encode())
        assert kept.ids == vocab.encode(text.encode())
