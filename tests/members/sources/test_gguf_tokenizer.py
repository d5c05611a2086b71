"""The tokenizer of a GGUF file: every token that the file lists, at its id, matched whole where the file says so."""

import warnings
from dataclasses import replace

import pytest
from support.gguf_files import (
    BYTE,
    BYTE_LEVEL,
    CONTROL,
    END,
    NORMAL,
    SPELL,
    UNKNOWN,
    USER_DEFINED,
    FileVocab,
    write_gguf,
)
from transformers import AutoTokenizer

from ensemble_decode.members.sources import gguf_convert
from ensemble_decode.members.sources.gguf_tokenizer import differing_tokens, doubts_of_saved, load_gguf_tokenizer
from ensemble_decode.vocab.model import ModelVocab

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁", "▁▁▁▁"]


def sentencepiece(model: str = "llama", runs: tuple[str, ...] = ("  ", "   ", "    ")) -> FileVocab:
    """A SentencePiece vocabulary as llama.cpp converts it: user-defined runs of spaces are real spaces."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    words = [word for word in WORDS if word.replace("▁", " ") not in runs]
    tokens = [*specials, *runs, *BYTES, *words]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[USER_DEFINED] * len(runs), *[BYTE] * 256, *[NORMAL] * len(words)]
    return FileVocab(model, "default", tokens, types, None, [-float(i) for i in range(len(tokens))], eos=1)


def read(path, vocab: FileVocab, arch: str = "llama"):
    """The tokenizer that the package makes of a file, through a saved folder as models are loaded, and its warnings."""
    folder = path / "file"
    folder.mkdir()
    file = folder / "tiny.gguf"
    write_gguf(file, vocab=vocab, arch=arch)
    with gguf_convert.read_once(file) as reader:
        listed = gguf_convert.file_tokenizer(reader)
        tokenizer, doubts = load_gguf_tokenizer(file, listed)
    assert listed.tokens == list(vocab.tokens)
    tokenizer.save_pretrained(path / "saved")
    return AutoTokenizer.from_pretrained(path / "saved"), doubts + doubts_of_saved(path / "saved", listed)


@pytest.mark.parametrize(("arch", "model"), [("gemma3", "llama"), ("llama", "llama"), ("llama", "gemma4")])
def test_runs_of_spaces_are_matched_whole_and_longest_first(tmp_path, arch, model):
    vocab = sentencepiece(model)
    tokenizer, doubts = read(tmp_path, vocab, arch)
    assert doubts == []
    ids = tokenizer("a" + " " * 9 + "ab", add_special_tokens=False).input_ids
    assert [vocab.tokens[i] for i in ids if vocab.tokens[i].isspace()] == ["    ", "    "]
    ours = ModelVocab.build(tokenizer, size=len(vocab.tokens))
    assert [ours.token_bytes[i] for i in ours.encode(b"a" + b" " * 9 + b"ab")] == [b"a", b" " * 4, b" " * 4, b" ab"]
    assert ours.token_bytes[4:7] == [b"  ", b"   ", b"    "]


ADDED = {
    "user_defined": ["<think>", "  ", "    ", "<｜tool｜>", "naïve"],
    "control": ["<｜user｜>", "<|more|>"],
}


def test_added_tokens_outside_the_byte_alphabet_are_matched_whole(tmp_path):
    """transformers spells them in the byte alphabet, where no text finds them, and has fewer of control ones."""
    vocab = BYTE_LEVEL.with_added(**ADDED)
    tokenizer, doubts = read(tmp_path, vocab)
    assert doubts == []
    first = len(BYTE_LEVEL.tokens)
    for offset, text in enumerate([*ADDED["user_defined"], *ADDED["control"]]):
        assert tokenizer(text, add_special_tokens=False).input_ids == [first + offset]
    text = "hello<think>  <｜user｜>naive hello"
    assert tokenizer.decode(tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text
    ours = ModelVocab.build(tokenizer, size=len(vocab.tokens))
    added = [ours.token_bytes[first + offset].decode() for offset in range(7)]
    assert added == [*ADDED["user_defined"], "", ""]
    assert ours.decode(ours.encode("  <｜user｜><｜tool｜>".encode())) == "  <｜user｜><｜tool｜>".encode()


def test_an_ordinary_token_that_an_added_one_hid_comes_back(tmp_path):
    """Two spaces as an added token, and ``ĠĠ`` as an ordinary one, which merges make."""
    plain = replace(
        BYTE_LEVEL.with_added(normal=["ĠĠ", "ĠĠh"]), merges=[*BYTE_LEVEL.merges, "Ġ Ġ", "ĠĠ h"], pre="gpt-2"
    )
    vocab = plain.with_added(user_defined=["  "])
    tokenizer, doubts = read(tmp_path, vocab)
    assert doubts == []
    ids = tokenizer("  h").input_ids
    assert [vocab.tokens[i] for i in ids] == ["  ", "h"]
    assert tokenizer.convert_tokens_to_ids(["ĠĠ", "ĠĠh", "  "]) == [len(vocab.tokens) - 3 + i for i in range(3)]


def test_an_ordinary_token_that_is_labelled_control_stays_ordinary(tmp_path):
    """Some files label tokens so that merges make: no text would find them in another spelling."""
    vocab = replace(BYTE_LEVEL.with_added(control=["你"]), merges=[*BYTE_LEVEL.merges, "ä ½", "ä½ ł"], pre="gpt-2")
    vocab = replace(vocab, tokens=[*vocab.tokens, "ä½"], types=[*vocab.types, NORMAL])
    assert "".join(SPELL[byte] for byte in "你".encode()) == "ä½ł"
    tokenizer, doubts = read(tmp_path, vocab)
    assert doubts == []
    assert tokenizer("你").input_ids == [len(vocab.tokens) - 2]


def test_tokens_that_cannot_be_built_as_listed_are_counted(tmp_path):
    """One text twice has one id only."""
    vocab = BYTE_LEVEL.with_added(normal=["hell", "hello", "e", "l"])
    tokenizer, doubts = read(tmp_path, vocab)
    assert len(doubts) == 1
    # Four ids that the later ones take over, and one that transformers gives to a special token of its own as well.
    assert doubts[0].startswith("5 of the 270 tokens")
    assert tokenizer.convert_tokens_to_ids(["hell", "hello", "e", "l", "<|endoftext|>"]) == [266, 267, 268, 269, 266]
    assert "that the file lists were built otherwise (101 'e', 108 'l', 258 'hell', ...)" in doubts[0]


def test_the_count_is_warned_of_at_every_load(tmp_path, monkeypatch):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "home"))
    write_gguf(tmp_path / "tiny.gguf", vocab=BYTE_LEVEL.with_added(normal=["hell"]))
    for _ in range(2):
        with pytest.warns(
            UserWarning, match="model tiny: 2 of the 267 tokens that the file lists were built otherwise"
        ):
            gguf_convert.converted_folder(tmp_path / "tiny.gguf", "tiny")
    write_gguf(tmp_path / "tiny.gguf", vocab=BYTE_LEVEL.with_added(**ADDED))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        folder = gguf_convert.converted_folder(tmp_path / "tiny.gguf", "tiny")
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == END


@pytest.mark.real
def test_the_demo_models_have_every_token_of_their_files(demo_files):
    """30 of Gemma's 165 user-defined tokens were lost: 40 spaces became 16 + 24 instead of 31 + 9."""
    for name, added in (("smollm2", 17), ("gemma3", 6249 + 165)):
        path, folder = demo_files[name]
        with gguf_convert.read_once(path) as reader:
            listed = gguf_convert.file_tokenizer(reader)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert differing_tokens(tokenizer, listed) == []
        assert len(tokenizer.added_tokens_decoder) == len(listed.added()) == added
        if name == "gemma3":
            ids = tokenizer(" " * 40, add_special_tokens=False).input_ids
            assert [listed.tokens[index] for index in ids] == [" " * 31, " " * 9]
            vocab = ModelVocab.build(tokenizer, size=len(listed.tokens))
            assert vocab.encode(b" " * 40) == ids
