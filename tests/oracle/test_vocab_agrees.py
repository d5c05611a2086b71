"""Two readings of every tokenizer, the package's and the oracle's, written apart: same bytes, same ids."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tokenizers
from support.oracle.vocab import Vocab

import ensemble_decode as ed

ADVERSARIAL = [
    "Straße, Größe, naïve café re\u0301sume\u0301, A\u030angstro\u0308m",
    "STRASSE İstanbul ΑΒΓ",
    "你好,世界。 한국어 \u1112\u1161\u11ab العربية עברית हिन्दी ไทย",
    "👨‍👩‍👧 🇩🇪 👍🏽 ❤️ \u200b\u200d\ufeff\u00a0",
    "a  b   c    d\t\te\r\nf\n\n\ng \n \n",
    "    def f(x):\n        return x**2  # comment\n",
    "x" * 200 + " " * 50 + "\n" * 20,
    "▁ ▁▁ ▁▁▁ <0x41> <0xE4> Ġ Ċ ĠĠ",
    "<s></s><unk><pad><bos><eos><|endoftext|><|im_start|><|eot_id|><think></think><tool><strong>",
    " <strip> word words sword word<strip>  x",
    "3.14159 1,000,000 0x1F 12345678",
    "\x00\x01\x7f\x80\x9f",
    "\U0010ffff\ue000\ufffd\ufffe",
    "don't we'll I'M they'd",
]
BYTES = [
    b"\xff",
    b"\xe4\xbd",
    b"abc\xe4\xbd\xa0\xe4",
    b"\xe4\xbd\xe4\xbd\xa0",
    b"a\x80\x81b\xc0\xafc\xed\xa0\x80d",
    b"\xf0\x9f\x98\x80\xf0\x9f\x98 \xf0\x9f",
    b" \xff \xfe ",
    b"\xcc\x81e\xcc\x81\xcc",
]


@cache
def both(name: str) -> tuple[Vocab, ed.ModelVocab]:
    tokenizer, eos = tokenizers.build(name), tokenizers.eos_ids(name)
    size = len(tokenizer) + 5
    return Vocab(tokenizer, size, eos), ed.ModelVocab.build(tokenizer, size, eos)


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_token_bytes_and_allowed_ids(name):
    mine, theirs = both(name)
    assert mine.token_bytes == theirs.token_bytes
    assert mine.allowed == theirs.allowed.nonzero()[0].tolist()
    assert mine.eos_ids == list(theirs.eos_ids)


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_tokenization_of_adversarial_text(name):
    mine, theirs = both(name)
    for data in [text.encode() for text in ADVERSARIAL] + BYTES:
        for end in range(max(0, len(data) - 5), len(data) + 1):
            assert mine.encode(data[:end]) == theirs.encode(data[:end]), data[:end]


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_candidates(name):
    """Exact ids and first pieces, in the aligned vocabulary with another family."""
    other = "gemma" if name != "gemma" else "qwen2"
    mine = [both(name)[0], both(other)[0]]
    aligned = ed.AlignedVocab.build([both(name)[1], both(other)[1]], cache_dir=None)
    every = sorted({data for vocab in mine for data in vocab.token_bytes if data})
    assert [aligned.bytes_of(cid) for cid in range(aligned.size - 1)] == every
    for m, vocab in enumerate(mine):
        exact = [-1 if (index := vocab.exact(data)) is None else index for data in every]
        assert aligned.exact_id[m][:-1].tolist() == exact
        assert aligned.piece_id[m][:-1].tolist() == [vocab.first_piece(data) for data in every]


pieces = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=4).map(str.encode),
    st.sampled_from(
        [text.encode() for text in (" ", "  ", "\n\n", "the", "e\u0301", "▁", "</s>", "<strong>", "word", "Ü")]
    ),
    st.binary(max_size=3),
)


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(tokenizers.NAMES), data=st.lists(pieces, max_size=12).map(b"".join))
def test_tokenization_of_any_bytes(name, data):
    mine, theirs = both(name)
    ids = mine.encode(data)
    assert mine.bytes_of(ids) == data
    assert ids == theirs.encode(data)


@pytest.mark.real
@pytest.mark.parametrize("demo", ["demo:smollm2", "demo:gemma3"])
def test_demo_tokenizers(demo):
    from ensemble_decode.members.transformers.loading import load

    loaded = load(demo, device="cpu", dtype="bfloat16")
    size = loaded.model.config.vocab_size
    mine = Vocab(loaded.tokenizer, size, loaded.eos_ids)
    theirs = ed.ModelVocab.build(loaded.tokenizer, size, loaded.eos_ids)
    assert mine.token_bytes == theirs.token_bytes
    assert mine.allowed == theirs.allowed.nonzero()[0].tolist()
    assert mine.eos_ids == list(theirs.eos_ids)
    known = [all(mine.exact(bytes([b])) is not None for b in data) for data in BYTES]
    texts = [text.encode() for text in ADVERSARIAL if not set(text.encode()) & set(range(9))]
    texts += [data for data, spelled in zip(BYTES, known, strict=True) if spelled] + [tokenizers.CORPUS.encode()]
    missing = [b for b in range(256) if mine.exact(bytes([b])) is None]
    for data in texts:
        if not set(data) & set(missing):
            assert mine.encode(data) == theirs.encode(data), data
