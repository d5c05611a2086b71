"""The tokenizers of the two demo models: bytes, candidates, incremental ids and what they cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import texts
from support import tokenizers as tiny
from support.increments import check_edits

from ensemble_decode.members.transformers.loading import load
from ensemble_decode.vocab.aligned import AlignedVocab, ModelVocab
from ensemble_decode.vocab.text import IncrementalTokens

pytestmark = pytest.mark.real
DEMOS = ("demo:smollm2", "demo:gemma3")
_LOADED: dict[str, tuple] = {}


def parts(name: str) -> tuple:
    """Tokenizer, vocabulary."""
    if name not in _LOADED:
        loaded = load(name)
        size = loaded.model.get_output_embeddings().weight.shape[0]
        vocab = ModelVocab.build(loaded.tokenizer, size=size, eos_ids=loaded.eos_ids, name=name)
        _LOADED[name] = loaded.tokenizer, vocab
    return _LOADED[name]


def spellable(vocab: ModelVocab, data: bytes) -> bytes:
    return data.translate(None, bytes(vocab.unspellable))


@pytest.mark.parametrize("name", DEMOS)
@settings(max_examples=60, deadline=None)
@given(data=texts.data)
def test_spelling_gives_the_bytes_back(name, data):
    _, vocab = parts(name)
    data = spellable(vocab, data)
    assert vocab.decode(vocab.encode(data)) == data


@pytest.mark.parametrize("name", DEMOS)
def test_ordinary_text_is_spelled_as_the_tokenizer_does(name):
    tokenizer, vocab = parts(name)
    text = "Hello world!  It's 12345 o'clock\n\n  def f(x):\n\treturn <b>x</b>  # Größe 你好 😀 e\u0301"
    assert vocab.encode(text.encode()) == tokenizer(text, add_special_tokens=False).input_ids
    special = tokenizer.eos_token
    assert tokenizer.eos_token_id not in vocab.encode(f"a{special}b".encode())


def test_bytes_that_smollm2_cannot_spell():
    _, vocab = parts("demo:smollm2")
    expected = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]
    assert sorted(vocab.unspellable) == expected
    assert not parts("demo:gemma3")[1].unspellable


@pytest.mark.parametrize("name", DEMOS)
@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 300), edits=texts.edits)
def test_incremental_ids_equal_encoding_everything(name, start, edits):
    _, vocab = parts(name)
    edits = [edit if isinstance(edit, int) else spellable(vocab, edit) for edit in edits]
    check_edits(vocab, tiny.CORPUS.encode()[:start], edits)


@pytest.mark.parametrize("name", DEMOS)
def test_updates_along_a_long_text_equal_encoding_it(name):
    """What an update costs is held by ``make guard``."""
    _, vocab = parts(name)
    ids = vocab.encode(tiny.CORPUS.encode() * 40)[:4000]
    assert len(ids) == 4000
    kept = IncrementalTokens(vocab)
    data = b""
    for n, index in enumerate(ids, 1):
        data += vocab.token_bytes[index]
        kept.update(data)
        if n % 500 == 0:
            assert kept.ids == vocab.encode(data)


def test_the_demo_models_align_and_load_from_the_cache(tmp_path):
    tokenizers = [parts(name)[0] for name in DEMOS]
    sizes = [parts(name)[1].size for name in DEMOS]
    eos = [parts(name)[1].eos_ids for name in DEMOS]
    for _ in range(2):
        aligned = AlignedVocab.build(tokenizers, sizes=sizes, eos_ids=eos, names=DEMOS, cache_dir=tmp_path)
        space, newline = aligned.cid_of(b" the"), aligned.cid_of(b"\n")
        for m in range(2):
            assert aligned.models[m].token_bytes[aligned.exact_id[m][space]] == b" the"
            assert aligned.models[m].encode(b"\n") == [aligned.exact_id[m][newline]]
        assert aligned.cid_of(b"\x04") is None
