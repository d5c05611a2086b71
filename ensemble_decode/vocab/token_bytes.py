"""The family of a tokenizer and the exact bytes that each of its token ids adds to the text.

Everything is read from the tokenizer's own structure (model, normalizer, pre-tokenizer, decoder, added tokens), never
from its name. ``docs/bytes.md`` holds the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from ensemble_decode.errors import TokenizerError

BYTE_LEVEL, METASPACE, TIKTOKEN = "byte-level", "metaspace", "tiktoken"
_FAMILIES = "byte-level BPE, metaspace (SentencePiece) BPE or Unigram with byte fallback, or tiktoken"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass
class TokenTable:
    """What each id of one tokenizer stands for, before any model's head is considered.

    Attributes:
        family: ``"byte-level"``, ``"metaspace"`` or ``"tiktoken"``.
        pieces: The bytes by id, ``b""`` where an id has none.
        marker: The character that stands for a space in the metaspace family, else empty.
        added: The ids of added tokens and their content.
        silent: The ids that exist and have no bytes: special, control and unknown tokens.
    """

    family: str
    pieces: list[bytes]
    marker: str = ""
    added: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)


def printable_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes, mapped back to the bytes (GPT-2's ``bytes_to_unicode``)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    table = {chr(byte): byte for byte in plain}
    table.update({chr(0x100 + position): byte for position, byte in enumerate(rest)})
    return table


_ALPHABET = printable_alphabet()


def alphabet_bytes(text: str) -> bytes | None:
    """The bytes that a text in the printable alphabet stands for; None where a character is outside it."""
    try:
        return bytes([_ALPHABET[char] for char in text])
    except KeyError:
        return None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def component(part: Any, name: str) -> dict[str, Any] | None:
    """The JSON of a normalizer, pre-tokenizer or decoder of the `tokenizers` library; None where there is none.

    Args:
        part: The component, or None.
        name: What errors call the model.

    Raises:
        TokenizerError: It is written in Python.
    """
    if part is None:
        return None
    try:
        state: dict[str, Any] = json.loads(part.__getstate__())
    except Exception as error:
        raise TokenizerError(
            f"{name}: the tokenizer has a component written in Python ({type(part).__name__}), whose effect on bytes "
            f"cannot be read; expected one of: {_FAMILIES}"
        ) from error
    return state


def leaves(state: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The elementary components of a (possibly nested) Sequence, in order."""
    if state is None:
        return
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in state:
            for inner in state[key]:
                yield from leaves(inner)
            return
    yield state


def rust_tokenizer(tokenizer: Any) -> tokenizers.Tokenizer | None:
    """The `tokenizers.Tokenizer` behind what the caller passed, or None."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return tokenizer
    inner = getattr(tokenizer, "backend_tokenizer", None)
    return inner if isinstance(inner, tokenizers.Tokenizer) else None


def tiktoken_encoding(tokenizer: Any) -> Any | None:
    """The tiktoken ``Encoding`` (or an object with the same parts) behind what the caller passed, or None.

    Python-side tokenizers that wrap tiktoken keep it in ``.tokenizer`` or ``.model``.
    """
    for candidate in (tokenizer, getattr(tokenizer, "tokenizer", None), getattr(tokenizer, "model", None)):
        if hasattr(candidate, "_mergeable_ranks") and hasattr(candidate, "encode_ordinary"):
            return candidate
    return None


def read_token_table(tokenizer: Any, name: str, pieces: list[bytes] | None = None) -> TokenTable:
    """Recognise the tokenizer's family and read the bytes of every id.

    Args:
        tokenizer: A fast tokenizer of transformers, a ``tokenizers.Tokenizer`` or a tiktoken encoding.
        name: What errors call the model.
        pieces: The bytes of every id, where they are known from before.

    Raises:
        TokenizerError: The family is not known; the message says what was found.
    """
    rust = rust_tokenizer(tokenizer)
    if rust is not None:
        special = set(getattr(tokenizer, "all_special_ids", ()) or ())
        return _read_rust(rust, special, name, pieces)
    encoding = tiktoken_encoding(tokenizer)
    if encoding is not None:
        return _read_tiktoken(encoding)
    raise TokenizerError(
        f"{name}: {type(tokenizer).__name__} is not a tokenizer whose bytes can be read; expected a fast tokenizer of "
        f"transformers, a tokenizers.Tokenizer or a tiktoken encoding of one of these families: {_FAMILIES}"
    )


def _family(rust: tokenizers.Tokenizer, name: str) -> tuple[str, str]:
    """The family and, for metaspace, the character that stands for a space."""
    model = type(rust.model).__name__
    for option in ("end_of_word_suffix", "continuing_subword_prefix"):
        if mark := getattr(rust.model, option, None):
            raise TokenizerError(
                f"{name}: a {model} tokenizer with {option} {mark!r} is of no known family: its tokens hold a mark "
                f"that its texts do not, so they have no exact bytes; expected {_FAMILIES}"
            )
    normal = list(leaves(component(rust.normalizer, name)))
    pre = list(leaves(component(rust.pre_tokenizer, name)))
    decoder = list(leaves(component(rust.decoder, name)))
    types = {part["type"] for part in (*normal, *pre, *decoder)}
    if model == "BPE" and "ByteLevel" in types:
        return BYTE_LEVEL, ""
    markers = {part["replacement"] for part in (*pre, *decoder) if part["type"] == "Metaspace"}
    markers |= {part["content"] for part in normal if part["type"] == "Replace" and part["pattern"] == {"String": " "}}
    if model in ("BPE", "Unigram") and len(markers) == 1 and len(marker := markers.pop()) == 1:
        return METASPACE, marker
    found = ", ".join(sorted(types)) or "no normalizer, pre-tokenizer or decoder"
    raise TokenizerError(f"{name}: a {model} tokenizer with {found} is of no known family; expected {_FAMILIES}")


def _read_rust(rust: tokenizers.Tokenizer, special: set[int], name: str, known: list[bytes] | None) -> TokenTable:
    family, marker = _family(rust, name)
    added = rust.get_added_tokens_decoder()
    contents = {index: token.content for index, token in added.items()}
    silent = special | {index for index, token in added.items() if token.special}
    unknown = getattr(rust.model, "unk_token", None)
    if unknown is not None and (index := rust.token_to_id(unknown)) is not None:
        silent.add(index)
    if known is not None:
        return TokenTable(family, known, marker, contents, silent)
    vocab = rust.get_vocab(with_added_tokens=False)
    pieces = [b""] * (1 + max([*vocab.values(), *added.keys()], default=-1))
    if family == BYTE_LEVEL:
        for text, index in vocab.items():
            undone = alphabet_bytes(text)
            # The decoder of this family, too, passes a token with other characters through as it stands.
            pieces[index] = text.encode() if undone is None else undone
        for index, content in contents.items():
            pieces[index] = content.encode()
    else:
        fallback = any(part["type"] == "ByteFallback" for part in leaves(component(rust.decoder, name)))
        for text, index in [*vocab.items(), *((content, index) for index, content in contents.items())]:
            byte = _BYTE_PIECE.fullmatch(text) if fallback else None
            pieces[index] = bytes([int(byte[1], 16)]) if byte else text.replace(marker, " ").encode()
    for index in silent:
        if index < len(pieces):
            pieces[index] = b""
    return TokenTable(family, pieces, marker, contents, silent)


def _read_tiktoken(encoding: Any) -> TokenTable:
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    special: dict[str, int] = getattr(encoding, "_special_tokens", {})
    pieces = [b""] * (1 + max([*ranks.values(), *special.values()]))
    for piece, index in ranks.items():
        pieces[index] = piece
    contents = {index: text for text, index in special.items()}
    return TokenTable(TIKTOKEN, pieces, "", contents, set(contents))
