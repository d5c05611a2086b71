"""What a model may emit is checked against the tokenizer's own decoding, ids that no text gives included."""

import pytest
from support import tokenizers as tiny
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ensemble_decode.errors import TokenizerError
from ensemble_decode.vocab.model import ModelVocab
from ensemble_decode.vocab.token_bytes import printable_alphabet


def byte_level(decoder, extra=(), **options) -> Tokenizer:
    """Every byte, and pieces that no merge leads to, so that no text gives them."""
    pieces = [*printable_alphabet(), *extra]
    rust = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], **options))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoder
    return rust


def metaspace(steps, extra=()) -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x21, 0x7F)), *extra]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    rust = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.decoder = decoders.Sequence(steps)
    return rust


REPLACE, FALLBACK, FUSE = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()


def test_pieces_that_no_text_gives_are_read_and_accepted():
    rust = byte_level(decoders.ByteLevel(), ["Ġzq", "Ãł"])
    vocab = ModelVocab.build(rust)
    assert vocab.token_bytes[256:] == [b" zq", "à".encode()]
    assert vocab.encode(b" zq") == [vocab.exact[bytes([byte])] for byte in b" zq"]
    rust = metaspace([REPLACE, FALLBACK, FUSE, decoders.Strip(" ", 1, 0)], ["▁zq"])
    assert ModelVocab.build(rust).exact[b" zq"] == rust.token_to_id("▁zq")


@pytest.mark.parametrize(
    ("rust", "piece"),
    [
        (byte_level(decoders.Sequence([decoders.ByteLevel(), decoders.Replace("zq", "!")]), ["zq"]), "b'zq'"),
        (byte_level(decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex("q+"), "q")]), ["qq"]), "b'qq'"),
        (metaspace([REPLACE, FALLBACK, FUSE, decoders.Replace("~~", "")], ["~~"]), "b'~~'"),
        (metaspace([REPLACE, FALLBACK, decoders.Strip("~", 1, 0), FUSE], ["~z"]), "b'~'"),
        (metaspace([REPLACE, FALLBACK, FUSE, decoders.Replace(Regex("~+$"), "")], ["~z"]), None),
    ],
)
def test_a_decoder_step_that_only_shows_on_ids_no_text_gives_is_refused(rust, piece):
    """The last case only changes the end of a text: the bytes of an id in its middle are right."""
    if piece is None:
        assert ModelVocab.build(rust, name="odd").family == "metaspace"
        return
    with pytest.raises(TokenizerError, match=r"odd: read as .*its decoder does something") as caught:
        ModelVocab.build(rust, name="odd")
    assert f"stands for {piece}" in str(caught.value)


@pytest.mark.parametrize(
    "rust",
    [
        byte_level(decoders.Sequence([decoders.CTC("<pad>", "|", False), decoders.ByteLevel()])),
        byte_level(decoders.BPEDecoder("</w>")),
        byte_level(decoders.WordPiece("##")),
        byte_level(decoders.Metaspace()),
        byte_level(None),
        metaspace([FALLBACK, FUSE, decoders.Metaspace("_", "never")]),
        metaspace([REPLACE, FALLBACK, decoders.Strip(" ", 1, 0), FUSE]),
    ],
    ids=["ctc", "bpe", "wordpiece", "metaspace", "none", "other marker", "stripped by token"],
)
def test_decoders_of_other_families_are_refused(rust):
    with pytest.raises(TokenizerError, match="odd"):
        ModelVocab.build(rust, name="odd")


@pytest.mark.parametrize(
    "steps",
    [[REPLACE, FALLBACK], [decoders.Metaspace("▁", "never")], [FALLBACK, decoders.Metaspace("▁", "first")]],
    ids=["not fused", "metaspace alone", "metaspace after fallback"],
)
def test_other_ways_to_write_the_metaspace_decoder(steps):
    """Without ``ByteFallback`` the byte pieces stand for their own text, and a text then lacks some bytes."""
    rust = metaspace(steps)
    if FALLBACK not in steps:
        with pytest.raises(TokenizerError, match="no token for"):
            ModelVocab.build(rust)
        return
    vocab = ModelVocab.build(rust)
    ids = vocab.encode("a  bb\n ü".encode())
    assert rust.decode(ids, skip_special_tokens=False) == "a  bb\n ü"


@pytest.mark.parametrize("option", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_marks_of_words_are_refused_by_name(option):
    """As CLIP writes them: "hello</w>"."""
    rust = byte_level(decoders.ByteLevel(), ["hello</w>", "##lo"], **{option: "</w>"})
    wrapped = PreTrainedTokenizerFast(tokenizer_object=rust)
    for given in (rust, wrapped):
        with pytest.raises(TokenizerError, match=f"clip: a BPE tokenizer with {option} '</w>'"):
            ModelVocab.build(given, name="clip")
    with pytest.raises(TokenizerError, match="a WordPiece tokenizer with continuing_subword_prefix '##'"):
        ModelVocab.build(Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1})))


def test_empty_marks_mean_none():
    """As GPT-2's tokenizer.json writes them."""
    rust = byte_level(decoders.ByteLevel(), end_of_word_suffix="", continuing_subword_prefix="")
    assert ModelVocab.build(rust).family == "byte-level"


def test_a_class_around_the_tokenizer_that_decodes_otherwise_is_refused():
    class Upper(PreTrainedTokenizerFast):
        def decode(self, token_ids, *args, **options):
            return super().decode(token_ids, *args, **options).replace("~", "-")

    wrapped = Upper(tokenizer_object=byte_level(decoders.ByteLevel()))
    with pytest.raises(TokenizerError, match=r"stands for b'~'.* decodes it to 'x-x'"):
        ModelVocab.build(wrapped)


def test_cleaning_up_spaces_is_not_part_of_the_decoding():
    """A wrapper may be set to tidy the spaces of whole texts; the bytes of its ids are what they are."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(decoders.ByteLevel()), clean_up_tokenization_spaces=True
    )
    assert ModelVocab.build(wrapped).encode(b"a .") == [wrapped.convert_tokens_to_ids(token) for token in "aĠ."]


def test_added_byte_pieces_stand_for_their_byte_as_the_decoder_has_it():
    """Some conversions list byte pieces among the added tokens."""
    rust = metaspace([REPLACE, FALLBACK, FUSE])
    rust.add_tokens(["<0xE4>", "<tool>"])
    vocab = ModelVocab.build(rust)
    assert vocab.token_bytes[rust.token_to_id("<0xE4>")] == b"\xe4"
    assert vocab.decode(vocab.encode(b"a <0xE4> \xe4<tool>")) == b"a <0xE4> \xe4<tool>"
    assert vocab.encode(b"<tool>") == [rust.token_to_id("<tool>")]


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_family_passes_with_every_id_checked(name):
    assert ModelVocab.build(tiny.build(name), eos_ids=tiny.eos_ids(name)).size == len(tiny.build(name))
