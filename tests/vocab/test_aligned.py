"""One model's vocabulary and spelling, and the candidates of several models, against slow and obvious counterparts."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support import texts
from support import tokenizers as tiny
from tokenizers import Tokenizer

from ensemble_decode.errors import InputError
from ensemble_decode.vocab.aligned import AlignedVocab, ModelVocab, bitmask, prefix_ranges
from ensemble_decode.vocab.model import DISPENSABLE
from ensemble_decode.vocab.token_bytes import printable_alphabet

_BUILT: dict[str, ModelVocab] = {}


def vocab_of(name: str) -> ModelVocab:
    if name not in _BUILT:
        _BUILT[name] = ModelVocab.build(tiny.build(name), eos_ids=tiny.eos_ids(name), name=name)
    return _BUILT[name]


@pytest.mark.parametrize("name", tiny.NAMES)
@settings(max_examples=60, deadline=None)
@given(data=texts.data)
def test_spelling_gives_the_bytes_back(name, data):
    vocab = vocab_of(name)
    ids = vocab.encode(data)
    assert vocab.decode(ids) == data
    assert not set(ids) & set(vocab.eos_ids)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2", "gemma"])
@pytest.mark.parametrize("text", ["Hello, world!  It's 1234\n\n  def f():", " the quick 你好，Müller", "\n\n\na  b"])
def test_ordinary_text_is_spelled_as_the_tokenizer_does(name, text):
    """These tokenizers put nothing in front of a text, so their own call is the whole truth."""
    assert vocab_of(name).encode(text.encode()) == tiny.build(name)(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("name", ["llama2", "metaspace", "unigram"])
def test_no_dummy_prefix_space(name):
    vocab, tokenizer = vocab_of(name), tiny.build(name)
    assert tokenizer.convert_ids_to_tokens(tokenizer("the", add_special_tokens=False).input_ids)[0].startswith("▁")
    assert vocab.decode(vocab.encode(b"the")) == b"the"
    assert vocab.encode(b" the")[0] == tokenizer.convert_tokens_to_ids("▁the")


@pytest.mark.parametrize("name", tiny.NAMES)
def test_the_callers_tokenizer_is_left_as_it_was(name):
    tokenizer = tiny.BUILDERS[name]()
    before, prompt = tokenizer.backend_tokenizer.to_str(), tokenizer("a </s> b<|im_end|>").input_ids
    ModelVocab.build(tokenizer, eos_ids=tiny.eos_ids(name)).encode(b"a </s> b")
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer("a </s> b<|im_end|>").input_ids == prompt


@pytest.mark.parametrize("name", tiny.NAMES)
def test_case_15_re_encoding_a_growing_text_adds_no_bos(name):
    vocab = vocab_of(name)
    text = b""
    for _ in range(20):
        text += b" one more"
        assert vocab.bos_id not in vocab.encode(text) or vocab.bos_id is None


@pytest.mark.parametrize("name", tiny.NAMES)
def test_special_strings_in_a_text_are_text(name):
    tokenizer = tiny.build(name)
    for special in tokenizer.all_special_tokens:
        ids = vocab_of(name).encode(f"a{special} b".encode())
        assert tokenizer.convert_tokens_to_ids(special) not in ids
        assert vocab_of(name).decode(ids) == f"a{special} b".encode()


@pytest.mark.parametrize("name", tiny.NAMES)
def test_invalid_bytes_and_unfinished_tails_are_single_byte_tokens(name):
    vocab = vocab_of(name)
    ids = vocab.encode("é".encode() + b"\xff\xe4\xbd" + b"a" + "你".encode()[:2])
    spelled = [vocab.token_bytes[index] for index in ids]
    assert spelled[-3:] == [b"a", b"\xe4", b"\xbd"]
    assert spelled[-6:-3] == [b"\xff", b"\xe4", b"\xbd"]
    assert ids[:-6] == vocab.encode("é".encode())


def test_what_a_normalizer_changes_is_spelled_by_longest_match_and_nothing_else_is():
    """NFC would join ``e`` and U+0301; the words around keep the tokenizer's own ids."""
    vocab = vocab_of("qwen2")
    ids = vocab.encode("the quick e\u0301 quick".encode())
    left, right = vocab.encode(b"the quick "), vocab.encode(b" quick")
    assert ids[: len(left)] == left
    assert ids[-len(right) :] == right
    middle = ids[len(left) : -len(right)]
    assert middle == vocab.speller.longest_match("e\u0301".encode())
    assert vocab.decode(middle) == "e\u0301".encode()


def test_the_metaspace_marker_itself_is_spelled_in_bytes():
    vocab = vocab_of("gemma")
    assert [vocab.token_bytes[i] for i in vocab.encode("a▁b".encode())] == [b"a", b"\xe2", b"\x96", b"\x81", b"b"]


def test_added_tokens_do_not_swallow_spaces():
    tokenizer = tiny.build("added")
    vocab = vocab_of("added")
    strip = tokenizer.convert_tokens_to_ids("<strip>")
    assert tokenizer("a <strip> b").input_ids.count(strip) == 1
    assert vocab.decode(vocab.encode(b"a <strip> b")) == b"a <strip> b"
    assert strip in vocab.encode(b"a <strip> b")


def test_of_twins_the_tokenizers_own_choice_is_the_exact_id():
    """``<0x41>`` and the piece ``A`` have the same bytes."""
    for name in ("llama2", "metaspace", "gemma"):  # byte pieces before and after the others
        vocab, tokenizer = vocab_of(name), tiny.build(name)
        piece, byte = (tokenizer.convert_tokens_to_ids(text) for text in ("e", "<0x65>"))
        assert vocab.token_bytes[piece] == vocab.token_bytes[byte] == b"e"
        assert vocab.exact[b"e"] == piece == vocab.encode(b"e")[0]
        newline = tokenizer.convert_tokens_to_ids("<0x0A>")
        assert vocab.exact[b"\n"] == newline


@pytest.mark.parametrize("name", tiny.NAMES)
def test_batched_spelling_equals_one_by_one(name):
    vocab = vocab_of(name)
    items = [text.encode() for text in texts.FRAGMENTS] + texts.INVALID
    assert vocab.encode_many(items) == [vocab.encode(item) for item in items]


def test_case_20_every_eos_id_means_end():
    for name in ("llama3", "qwen2", "gemma"):
        vocab = vocab_of(name)
        assert vocab.eos_ids == tuple(tiny.eos_ids(name))
        assert len(vocab.eos_ids) == 2
        aligned = AlignedVocab.build([vocab], cache_dir=None)
        assert [aligned.to_cid[0][index] for index in vocab.eos_ids] == [aligned.size - 1] * 2
        assert aligned.tensors().eos_ids[0].tolist() == list(vocab.eos_ids)


def test_an_eos_token_with_text_is_end_and_its_text_is_spelled_otherwise():
    tokenizer = tiny.build("qwen2")
    think = tokenizer.convert_tokens_to_ids("<think>")
    vocab = ModelVocab.build(tokenizer, eos_ids=[think])
    assert vocab.token_bytes[think] == b""
    assert vocab.allowed[think]
    assert vocab.decode(vocab.encode(b"a<think>")) == b"a<think>"
    assert think not in vocab.encode(b"a<think>")


# Several models


@pytest.fixture(scope="module")
def aligned() -> AlignedVocab:
    return AlignedVocab.build([vocab_of(name) for name in ("gpt2", "gemma", "qwen2", "unigram")], cache_dir=None)


def test_candidates_are_every_allowed_byte_string_in_order_and_end_last(aligned):
    every = {piece for model in aligned.models for piece in model.token_bytes if piece}
    assert [aligned.bytes_of(cid) for cid in range(aligned.size)] == [*sorted(every), b""]
    assert aligned.cid_of(b"") is None
    assert aligned.cid_of(b"no such candidate") is None
    assert aligned.bytes_of(aligned.space_cid) == b" "
    with pytest.raises(InputError, match=f"candidate id {aligned.size} does not exist"):
        aligned.bytes_of(aligned.size)


def test_maps_equal_their_definitions(aligned):
    for m, model in enumerate(aligned.models):
        for index in range(model.size):
            cid = aligned.to_cid[m][index]
            if index in model.eos_ids:
                assert cid == aligned.size - 1
            elif model.token_bytes[index]:
                assert aligned.bytes_of(cid) == model.token_bytes[index]
            else:
                assert cid == -1
                assert not model.allowed[index]
        for cid in range(aligned.size - 1):
            data = aligned.bytes_of(cid)
            ids = [index for index in [aligned.exact_id[m][cid]] if index >= 0]
            assert bool(ids) == (data in model.token_bytes)
            if ids:
                assert model.token_bytes[ids[0]] == data
            assert aligned.piece_id[m][cid] == (ids or model.encode(data))[0]


def test_prefix_ranges_equal_brute_force(aligned):
    rng = np.random.default_rng(0)
    for y in [aligned.space_cid, *rng.integers(0, aligned.size, 60)]:
        start = aligned.bytes_of(y)
        inside = [x for x in range(aligned.size) if y < x < aligned.prefix_end[y]]
        longer = [x for x in range(aligned.size - 1) if x != y and aligned.bytes_of(x).startswith(start)]
        assert inside == (longer if y != aligned.size - 1 else [])


@settings(max_examples=100, deadline=None)
@given(items=texts.st.sets(texts.st.binary(min_size=1, max_size=4), max_size=40))
def test_prefix_ranges_of_any_strings(items):
    ordered = sorted(items)
    for y, end in enumerate(prefix_ranges(ordered)):
        assert list(range(y + 1, end)) == [
            x for x, item in enumerate(ordered) if x != y and item.startswith(ordered[y])
        ]


def test_tensors_have_the_promised_types(aligned):
    tensors = aligned.tensors()
    assert tensors is aligned.tensors("cpu")
    assert (tensors.size, tensors.space_cid) == (aligned.size, aligned.space_cid)
    arrays = [tensors.prefix_end, *tensors.to_cid, *tensors.exact_id, *tensors.piece_id, *tensors.allowed]
    assert {array.dtype for array in [*arrays, *tensors.eos_ids]} == {torch.int32}
    for m, model in enumerate(aligned.models):
        assert tensors.allowed[m].shape == (1, -(-model.size // 32))
        words = tensors.allowed[m][0].numpy().view(np.uint32)
        bits = [bool(words[i // 32] >> np.uint32(i % 32) & np.uint32(1)) for i in range(model.size)]
        assert bits == model.allowed.tolist()


def test_bitmask_uses_the_sign_bit_and_leaves_the_padding_clear():
    assert bitmask(np.array([False] * 31 + [True, True])).tolist() == [-(2**31), 1]


def test_a_byte_that_one_model_cannot_spell_is_left_out_for_all():
    """As SmolLM2's tokenizer, which has no token for some control characters and for bytes that no text holds."""
    full, tokenizer = vocab_of("gpt2"), tiny.build("gpt2")
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    gone = [0x04, 0x13, 0xC0, 0xF1, 0xFF]
    alphabet = {byte: char for char, byte in printable_alphabet().items()}
    for byte in gone:
        del description["model"]["vocab"][alphabet[byte]]
    poor = ModelVocab.build(Tokenizer.from_str(json.dumps(description)), name="poor")
    assert poor.unspellable == set(gone)
    assert poor.unspellable <= DISPENSABLE
    with pytest.raises(InputError, match="poor cannot spell byte 0x04"):
        poor.encode(b"a\x04")
    both = AlignedVocab.build([full, poor], cache_dir=None)
    for byte in gone:
        assert both.cid_of(bytes([byte])) is None
        index = full.exact[bytes([byte])]
        assert both.to_cid[0][index] == -1
        assert not both.models[0].allowed[index]
        assert full.allowed[index]
    assert both.cid_of(b"\x05") is not None


def test_case_13_padded_heads_of_one_tokenizer_have_the_same_ids_for_every_candidate():
    tokenizer = tiny.build("qwen2")
    size = len(tokenizer)
    kw = {"eos_ids": [tiny.eos_ids("qwen2")] * 2, "cache_dir": None}
    padded = AlignedVocab.build([tokenizer, tokenizer], sizes=[size + 5, size + 100], **kw)
    assert padded.to_cid[0].tolist() == padded.to_cid[1][: size + 5].tolist()
    assert padded.exact_id[0].tolist() == padded.exact_id[1].tolist()
    assert padded.piece_id[0].tolist() == padded.piece_id[1].tolist()
    assert (padded.to_cid[1][size:] == -1).all()
    other = tiny.BUILDERS["qwen2"]()
    other.add_tokens(["<one more>"])
    longer = AlignedVocab.build([tokenizer, other], sizes=[size + 5, size + 100], **kw)
    assert longer.exact_id[0][longer.cid_of(b"<one more>")] == -1
    kw["eos_ids"] = [[], tiny.eos_ids("qwen2")]
    ends = AlignedVocab.build([tokenizer, tokenizer], sizes=[size, size], **kw)
    assert [len(model.eos_ids) for model in ends.models] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tokenizers": []}, "at least one tokenizer"),
        ({"tokenizers": ["x"], "sizes": [1, 2]}, "sizes has 2 entries for 1 tokenizers"),
        ({"tokenizers": ["x"], "names": []}, "names has 0 entries"),
        ({"tokenizers": ["x"], "eos_ids": [[], []]}, "eos_ids has 2 entries"),
    ],
)
def test_wrong_counts_are_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        AlignedVocab.build(**arguments)
