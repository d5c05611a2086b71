"""What two tokenizers share, on tokenizers whose pieces are written down."""

import pytest
from support import tokenizers

import ensemble_decode as ed
from ensemble_decode.determination.tokens import (
    SharedVocabulary,
    boundaries,
    common_words,
    unsafe_positions,
    unsafe_share,
    word_agreement,
)
from ensemble_decode.errors import InputError

WORDS = ["the", "press", "printing", "of", "Größe", "qzx"]


@pytest.fixture(scope="module")
def vocabs():
    return {
        name: ed.ModelVocab.build(tokenizers.build(name), name=name) for name in ("gpt2", "llama3", "gemma", "bytes")
    }


def test_a_vocabulary_with_itself(vocabs):
    for vocab in vocabs.values():
        shared = SharedVocabulary.of(vocab, vocab)
        assert (shared.of_smaller, shared.jaccard, shared.common) == (1, 1, shared.first)
        assert word_agreement(vocab, vocab, WORDS) == 1


def test_bytes_beside_a_larger_vocabulary(vocabs):
    shared = SharedVocabulary.of(vocabs["bytes"], vocabs["gpt2"])
    assert (shared.first, shared.common, shared.of_smaller) == (256, 256, 1.0)
    assert shared.jaccard == pytest.approx(256 / shared.second)


def test_agreement_is_the_share_of_equal_boundaries(vocabs):
    one, other = vocabs["gpt2"], vocabs["gemma"]
    by_hand = [boundaries(one, f" {w}".encode()) == boundaries(other, f" {w}".encode()) for w in WORDS]
    assert 0 < sum(by_hand) < len(WORDS)
    assert word_agreement(one, other, WORDS) == sum(by_hand) / len(WORDS)


def test_frequent_words():
    words = common_words(1000)
    assert len(words) == len(set(words)) == 1000
    assert words[0] == "the"
    with pytest.raises(InputError, match="xx"):
        common_words(10, "xx")


def test_unsafe_positions_against_every_boundary_by_hand(vocabs):
    data = "The printing press was built in Größe, 12345 of them.".encode()
    one, other = vocabs["gpt2"], vocabs["llama3"]
    ids = one.encode(data)
    for length in (1, 3, 5, 100):
        unsafe = start = 0
        for j, token in enumerate(ids):
            end = len(one.decode(ids[: (j // length + 1) * length]))
            edges, at = {0}, 0
            for piece in other.encode(data[:end]):
                at += len(other.token_bytes[piece])
                edges.add(at)
            unsafe += start not in edges
            start += len(one.token_bytes[token])
        assert unsafe_positions(one, other, data, None, length) == (unsafe, len(ids))
    assert unsafe_positions(vocabs["bytes"], one, data)[0] > 10
    assert unsafe_positions(one, vocabs["bytes"], data)[0] == 0
    assert unsafe_positions(one, one, data)[0] == 0


def test_end_is_no_position(vocabs):
    vocab = vocabs["gpt2"]
    ids = [*vocab.encode(b"The press"), vocab.eos_ids[0]]
    assert unsafe_positions(vocab, vocabs["bytes"], b"The press", ids) == (0, len(ids) - 1)


def test_share():
    assert unsafe_share([(1, 4), (0, 4)]) == 0.125
    assert unsafe_share([]) is None
    assert unsafe_share([(0, 0)]) is None
