"""The bytes that were read for a tokenizer, held against what the tokenizer itself decodes.

A family that was recognised wrongly shows here, and so does a decoder step that the reading does not know. Text alone
is not enough: a model may emit ids that tokenization never gives, so ids are checked one by one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_decode.errors import TokenizerError
from ensemble_decode.vocab.token_bytes import (
    BYTE_LEVEL,
    METASPACE,
    TokenTable,
    alphabet_bytes,
    is_utf8,
    rust_tokenizer,
    tiktoken_encoding,
)

_AT_ONCE = 32768  # sequences per call: bounds the memory that their texts take
_SAMPLED = 512  # ids to check by a decoder that takes one sequence at a time


@dataclass(frozen=True)
class _Decoder:
    """One of a tokenizer's own ways from ids to text, ``decode``; ``batched``: many sequences cost one call."""

    decode: Callable[[Sequence[list[int]]], list[str]]
    batched: bool


def check_texts(tokenizer: Any, family: str, name: str, spelled: Iterable[tuple[str, list[int]]]) -> None:
    """Decode the ids of texts with the tokenizer and compare.

    Args:
        tokenizer: What the caller passed to `ModelVocab.build`.
        family: The family that it was read as.
        name: What errors call the model.
        spelled: Texts and their ids, which begin at the start of a text.

    Raises:
        TokenizerError: The tokenizer decodes some of the ids to another text.
    """
    pairs = list(spelled)
    for decoder in _decoders(tokenizer):
        for (text, _), found in zip(pairs, decoder.decode([ids for _, ids in pairs]), strict=True):
            if found != text:
                raise TokenizerError(
                    f"{name}: read as {family}, its tokens spell {text!r}, but the tokenizer itself decodes them to "
                    f"{found!r}; its family is not one of those this package reads"
                )


def check_ids(
    tokenizer: Any, table: TokenTable, name: str, pieces: Sequence[bytes], ids: Sequence[int], guard: list[int]
) -> None:
    """Decode single ids with the tokenizer, each between two guards, and compare with their bytes.

    The guards keep the id from the two ends of the text, where decoders may strip a space. Where the text is not valid
    UTF-8, U+FFFD is expected as in ``bytes.decode("utf-8", "replace")``.

    Args:
        tokenizer: What the caller passed to `ModelVocab.build`.
        table: What was read from it.
        name: What errors call the model.
        pieces: The bytes of every id.
        ids: Which ids to check; those without bytes are passed over, and a decoder that takes one sequence at a time is
            given evenly spaced ones.
        guard: The ids of a letter.

    Raises:
        TokenizerError: The tokenizer decodes some id to other text than its bytes.
    """
    checked = [index for index in ids if pieces[index]]
    edge = b"".join(pieces[index] for index in guard)
    for decoder in _decoders(tokenizer):
        asked = checked if decoder.batched else checked[:: len(checked) // _SAMPLED + 1]
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            decoded = decoder.decode([[*guard, index, *guard] for index in some])
            for index, found in zip(some, decoded, strict=True):
                whole = edge + pieces[index] + edge
                if found != whole.decode("utf-8", "replace") and found not in _quirks(table, index, whole):
                    raise TokenizerError(
                        f"{name}: read as {table.family}, its token {index} stands for {pieces[index]!r}, but between "
                        f"{edge.decode()!r} and {edge.decode()!r} the tokenizer itself decodes it to {found!r}; "
                        "its decoder does something that this package does not read"
                    )


def _decoders(tokenizer: Any) -> list[_Decoder]:
    """The tokenizer's own ways from ids to text: the library's, and that of a class around it."""
    rust = rust_tokenizer(tokenizer)
    if rust is None:
        encoding = tiktoken_encoding(tokenizer)
        own: Callable[[list[int]], str] | None = getattr(encoding, "decode", None)
        return [] if own is None else [_Decoder(lambda sequences: [own(ids) for ids in sequences], batched=False)]
    ways = [_Decoder(lambda sequences: rust.decode_batch(list(sequences), skip_special_tokens=False), batched=True)]
    if tokenizer is not rust:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        ways.append(_Decoder(lambda sequences: [tokenizer.decode(i, **options) for i in sequences], batched=False))
    return ways


def _quirks(table: TokenTable, index: int, whole: bytes) -> list[str]:
    """Other texts to which the library may decode an id, between guards, that was read rightly.

    The byte-level decoder undoes the printable alphabet in added tokens too, which stand for their content as it is:
    ``ü`` there becomes the byte 0xFC. Byte fallback gives U+FFFD for every byte of an invalid run of byte pieces, the
    guards included where they are byte pieces.
    """
    if table.family == BYTE_LEVEL and index in table.added:
        undone = alphabet_bytes(table.added[index])
        if undone is not None:
            return [whole.replace(table.added[index].encode(), undone).decode("utf-8", "replace")]
    if table.family == METASPACE and not is_utf8(whole):
        return ["\ufffd" * len(whole)]
    return []
