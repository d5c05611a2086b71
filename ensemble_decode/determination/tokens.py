"""What can be said of two models from their vocabularies and texts alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ensemble_decode.errors import InputError
from ensemble_decode.vocab.model import ModelVocab


@dataclass(frozen=True)
class SharedVocabulary:
    """Tokens as byte strings. ``first``, ``second``: how many each model has; ``common``: how many both have."""

    first: int
    second: int
    common: int
    of_smaller: float
    jaccard: float

    @classmethod
    def of(cls, one: ModelVocab, other: ModelVocab) -> SharedVocabulary:
        """What two vocabularies share."""
        a, b = set(one.exact), set(other.exact)
        common = len(a & b)
        return cls(len(a), len(b), common, common / min(len(a), len(b)), common / len(a | b))


def boundaries(vocab: ModelVocab, data: bytes) -> list[int]:
    """Byte offsets at which a token of ``T_m(data)`` starts, and the end of ``data``."""
    return [0, *accumulate(len(vocab.token_bytes[i]) for i in vocab.encode(data))]


def common_words(count: int, language: str = "en") -> list[str]:
    """The ``count`` most frequent words of a language, by wordfreq's list.

    Raises ``InputError`` where wordfreq is not installed or has no list for the language.
    """
    try:
        import wordfreq
    except ImportError as error:
        raise InputError(
            "the tokenization agreement on common words needs wordfreq: pip install 'ensemble-decode[determine]'"
        ) from error
    try:
        return list(wordfreq.top_n_list(language, count))
    except LookupError as error:
        raise InputError(f"wordfreq has no list of words for the language {language!r}: {error}") from error


def word_agreement(one: ModelVocab, other: ModelVocab, words: Sequence[str]) -> float:
    """The share of words, each with the space before it that it has inside a text, that both models cut at the same
    bytes."""
    spaced = [f" {word}".encode() for word in words]
    if not spaced:
        raise InputError("tokenization agreement: no words")
    cuts = []
    for vocab in (one, other):
        cuts.append([list(accumulate(len(vocab.token_bytes[i]) for i in ids)) for ids in vocab.encode_many(spaced)])
    return sum(a == b for a, b in zip(*cuts, strict=True)) / len(spaced)


def unsafe_positions(
    drafter: ModelVocab, verifier: ModelVocab, data: bytes, ids: Sequence[int] | None = None, draft_length: int = 5
) -> tuple[int, int]:
    """Of a text of the drafter's: how many of its token starts are no boundary of the verifier, and how many there are.

    As SAFE meets them where every draft stands: drafts of ``draft_length`` tokens, the verifier tokenizing the text up
    to each draft's end. ``ids``: the tokens that the drafter wrote (default: its tokenization of ``data``).
    """
    pieces = [drafter.token_bytes[i] for i in (drafter.encode(data) if ids is None else ids)]
    pieces = [piece for piece in pieces if piece]  # END has no bytes: it is judged where the text ends
    unsafe = start = 0
    for at in range(0, len(pieces), draft_length):
        draft = pieces[at : at + draft_length]
        end = start + sum(map(len, draft))
        edges = set(boundaries(verifier, data[:end]))
        for piece in draft:
            unsafe += start not in edges
            start += len(piece)
    return unsafe, len(pieces)


def unsafe_share(counts: Iterable[tuple[int, int]]) -> float | None:
    """The share over all texts; None where there was no position."""
    unsafe, positions = (sum(column) for column in zip(*counts, strict=True)) if (counts := list(counts)) else (0, 0)
    return unsafe / positions if positions else None
