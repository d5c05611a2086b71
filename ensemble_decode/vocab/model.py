"""The vocabulary of one model: bytes of its ids, what it may emit, and how it spells any bytes."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ensemble_decode.errors import TokenizerError
from ensemble_decode.vocab.checks import check_ids, check_texts
from ensemble_decode.vocab.disk_cache import contents_digest
from ensemble_decode.vocab.encoders import TextEncoder, text_encoder
from ensemble_decode.vocab.restart import restart_rule
from ensemble_decode.vocab.spelling import Speller
from ensemble_decode.vocab.token_bytes import TokenTable, is_utf8, read_token_table

_SAMPLES = (
    "Hello, world! It's 12345 o'clock.\n\n  def f(x):\n\treturn x  # naive",
    "Größe, éclair, 你好，世界。 こんにちは 😀 привет \u202bשלום\u202c",
    "a  b   c\r\nd\te\n\n\nf 'll 've 3.14 <b>x</b> {\"k\": [1, 2]}",
)
_SAMPLED_IDS = 64  # ids whose decoding is checked again where their bytes are restored

# A tokenizer may lack these bytes and still be used, as some published ones do: control characters, and bytes that the
# UTF-8 of no assigned character holds. Candidates that hold one are then left out for every model (`AlignedVocab`).
DISPENSABLE = frozenset([*(set(range(0x20)) - {0x09, 0x0A, 0x0D}), 0x7F, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF4, 0x100)])


class Source:
    """A tokenizer and what belongs to its model, before anything is read from it.

    Attributes:
        tokenizer: As the caller passed it.
        name: What errors call the model.
        size: Rows of the head, or None for the tokenizer's own.
        eos_ids: Sorted EOS ids, the tokenizer's own included.
        bos_id: The tokenizer's BOS, or None.
    """

    def __init__(self, tokenizer: Any, size: int | None, eos_ids: Iterable[int], name: str):
        self.tokenizer, self.name = tokenizer, name
        self.size = None if size is None else int(size)
        own = getattr(tokenizer, "eos_token_id", None)
        self.eos_ids = tuple(sorted({*map(int, eos_ids), *([] if own is None else [int(own)])}))
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokenizer's contents, the head's size and the EOS ids."""
        parts = [contents_digest(self.tokenizer, self.name), self.size, self.eos_ids]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ModelVocab:
    """Ids and bytes of one model.

    Attributes:
        size: Rows of the head, ``V_m``.
        token_bytes: ``size`` byte strings, ``b""`` where an id adds no bytes.
        exact: The one id of each byte string that has any.
        eos_ids: Sorted ids that mean END; they have no bytes.
        allowed: bool ``[size]``, the ids with bytes and the EOS ids.
        bos_id: The tokenizer's BOS, or None.
        unspellable: The bytes (of `DISPENSABLE`) that the tokenizer has no token for; `encode` refuses data that holds
            one.
        family: What the tokenizer was read as.
        name: What errors call the model.
    """

    def __init__(
        self,
        source: Source,
        table: TokenTable,
        size: int,
        encoder: TextEncoder,
        canonical: Iterable[int] | None = None,
    ):
        name, eos_ids = source.name, source.eos_ids
        self.name, self.size, self.eos_ids, self.bos_id = name, size, eos_ids, source.bos_id
        self.family = table.family
        pieces = (table.pieces + [b""] * (size - len(table.pieces)))[:size]
        for index in eos_ids:
            pieces[index] = b""
        self.token_bytes = pieces
        self.allowed = np.fromiter(map(bool, pieces), dtype=bool, count=size)
        self.allowed[list(eos_ids)] = True
        self.exact, self.canonical = self._exact_ids(encoder, canonical)
        self.unspellable = frozenset(byte for byte in range(256) if bytes([byte]) not in self.exact)
        missing = sorted(self.unspellable - DISPENSABLE)
        if missing:
            shown = ", ".join(f"0x{byte:02X}" for byte in missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise TokenizerError(
                f"{name}: its {table.family} tokenizer has no token for {len(missing)} of the 256 bytes ({shown}); "
                "expected a tokenizer that can spell any bytes (byte-level, or with byte fallback)"
            )
        self.speller = Speller(encoder, pieces, self.exact, name)
        self.restart = restart_rule(encoder, table)
        self.source = source

    def _exact_ids(self, encoder: TextEncoder, canonical: Iterable[int] | None) -> tuple[dict[bytes, int], list[int]]:
        """The id of each byte string; of several, the one the tokenizer itself produces, else the lowest.

        Also the ids that were so preferred to a lower one; ``canonical``: those ids where they are known.
        """
        # Backwards, so that of several ids the lowest is written last and stays.
        exact = dict(zip(reversed(self.token_bytes), range(self.size - 1, -1, -1), strict=True))
        exact.pop(b"", None)
        canonical = self._preferred(encoder, exact) if canonical is None else list(canonical)
        exact.update((self.token_bytes[index], index) for index in canonical)
        return exact, canonical

    def _preferred(self, encoder: TextEncoder, lowest: dict[bytes, int]) -> list[int]:
        """The ids that the tokenizer itself produces for bytes that a lower id has too."""
        twins: dict[bytes, set[int]] = {}
        for index, piece in enumerate(self.token_bytes):
            if piece and lowest[piece] != index:
                twins.setdefault(piece, set()).add(index)
        pieces = [piece for piece in twins if is_utf8(piece)]
        produced = encoder.encode_batch([piece.decode() for piece in pieces])
        return [own[0] for piece, own in zip(pieces, produced, strict=True) if len(own) == 1 and own[0] in twins[piece]]

    def encode(self, data: bytes) -> list[int]:
        """``T_m(data)``: the model's own tokenization of generated bytes; its bytes are ``data``, always.

        Raises `InputError` where ``data`` holds a byte that the model cannot spell.
        """
        return self.speller.encode(data)

    def encode_many(self, items: Sequence[bytes]) -> list[list[int]]:
        """``T_m`` of each item."""
        return self.speller.encode_many(items)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes that ``ids`` add to the text."""
        return b"".join([self.token_bytes[index] for index in ids])

    def restricted(self, allowed: np.ndarray) -> ModelVocab:
        """The same vocabulary with other ids allowed; bool ``[size]``."""
        other = copy.copy(self)
        other.allowed = allowed
        return other

    def fingerprint(self) -> str:
        """A hash of the tokenizer's contents, the head's size and the EOS ids."""
        return self.source.fingerprint

    @classmethod
    def build(
        cls, tokenizer: Any, size: int | None = None, eos_ids: Iterable[int] = (), name: str = "model 0"
    ) -> ModelVocab:
        """Read a tokenizer.

        Args:
            tokenizer: A fast tokenizer of transformers, a ``tokenizers.Tokenizer`` or a tiktoken encoding.
            size: Rows of the model's head; rows past the tokenizer's ids have no bytes. None: the tokenizer's own size.
            eos_ids: Further EOS ids, as the generation config lists them.
            name: What errors call the model.

        Raises:
            TokenizerError: The family is unknown, a byte cannot be spelled, or the tokenizer decodes its ids to other
                bytes than were read.
        """
        return cls.from_source(Source(tokenizer, size, eos_ids, name))

    @classmethod
    def from_source(cls, source: Source) -> ModelVocab:
        """Build from a tokenizer and what belongs to it."""
        return cls._build(source, read_token_table(source.tokenizer, source.name), None)

    @classmethod
    def restore(cls, source: Source, pieces: list[bytes], canonical: Iterable[int]) -> ModelVocab:
        """Build from what was read before.

        Args:
            source: The tokenizer and what belongs to it.
            pieces: The bytes of every id.
            canonical: The ids that the tokenizer prefers to a lower id with the same bytes.

        Raises:
            TokenizerError: The tokenizer now decodes its ids to other bytes.
        """
        return cls._build(source, read_token_table(source.tokenizer, source.name, pieces), canonical)

    @classmethod
    def _build(cls, source: Source, table: TokenTable, canonical: Iterable[int] | None) -> ModelVocab:
        name, eos, pieces = source.name, source.eos_ids, table.pieces
        size = len(pieces) if source.size is None else source.size
        if eos and (eos[0] < 0 or eos[-1] >= size):
            raise TokenizerError(
                f"{name}: EOS ids {list(eos)}; expected ids from 0 to {size - 1}, the rows of the model's head"
            )
        spelled = {i for i in table.added if i < min(size, len(pieces)) and i not in eos and pieces[i]}
        encoder = text_encoder(source.tokenizer, table, spelled.__contains__, name)
        vocab = cls(source, table, size, encoder, canonical)
        texts = [(sample, vocab.encode(sample.encode())) for sample in _SAMPLES]
        check_texts(source.tokenizer, table.family, name, texts)
        # Bytes that were stored had every id checked when they were read.
        ids = range(size) if canonical is None else range(0, size, size // _SAMPLED_IDS + 1)
        check_ids(source.tokenizer, table, name, vocab.token_bytes, ids, vocab.encode(b"x"))
        return vocab

    def sample_ids(self) -> list[int]:
        """The ids of the sample texts, which tell a tokenizer that changed from the one that was stored."""
        return [index for sample in _SAMPLES for index in self.encode(sample.encode())]
