"""A tokenizer reduced to what generated text needs: text in, ids out, nothing added and nothing parsed as special."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import regex  # type: ignore[import-untyped]
import tokenizers

from ensemble_decode.errors import TokenizerError
from ensemble_decode.vocab.token_bytes import TokenTable, component, rust_tokenizer, tiktoken_encoding


class TextEncoder(Protocol):
    """Text to ids by the model's own rules: no BOS, no dummy prefix space, no special tokens in the text."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        ...

    def words(self, text: str) -> tuple[list[int], list[int | None]]:
        """The ids and, for each, the number of the pre-token it comes from."""
        ...


def text_encoder(tokenizer: Any, table: TokenTable, spelled: Callable[[int], bool], name: str) -> TextEncoder:
    """The encoder of generated text for a tokenizer.

    Args:
        tokenizer: What the caller passed to `ModelVocab.build`.
        table: What was read from it.
        spelled: Whether an added token, by its id, may be used; others are left out.
        name: What errors call the model.

    Raises:
        TokenizerError: The tokenizer drops merges at random.
    """
    rust = rust_tokenizer(tokenizer)
    if rust is not None:
        return RustEncoder(rust, table, spelled, name)
    return TiktokenEncoder(tiktoken_encoding(tokenizer), table)


def without_dummy_prefix(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer's or pre-tokenizer's JSON with everything taken out that puts a space before the text."""
    if state is None or state["type"] == "Prepend":
        return None
    state = dict(state)
    for key in ("normalizers", "pretokenizers"):
        if key in state:
            inner = [without_dummy_prefix(part) for part in state[key]]
            state[key] = [part for part in inner if part is not None]
    if "prepend_scheme" in state:
        state["prepend_scheme"] = "never"
    if "add_prefix_space" in state:
        state["add_prefix_space"] = False
    return state


class RustEncoder:
    """A `tokenizers.Tokenizer` that shares the model's vocabulary and merges and leaves the original untouched."""

    def __init__(self, rust: tokenizers.Tokenizer, table: TokenTable, spelled: Callable[[int], bool], name: str):
        if getattr(rust.model, "dropout", None):
            raise TokenizerError(
                f"{name}: its tokenizer drops merges at random (dropout {rust.model.dropout}); expected a tokenizer "
                "that always gives the same ids"
            )
        normalizer = without_dummy_prefix(component(rust.normalizer, name))
        pre_tokenizer = without_dummy_prefix(component(rust.pre_tokenizer, name))
        shell = {
            "version": "1.0",
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        }
        parts = tokenizers.Tokenizer.from_str(json.dumps(shell))
        self._rust = tokenizers.Tokenizer(rust.model)
        self.normalizer: dict[str, Any] | None = normalizer
        self.pre_tokenizer: dict[str, Any] | None = pre_tokenizer
        self.model = type(rust.model).__name__
        self.ignores_merges = bool(getattr(rust.model, "ignore_merges", False))
        self.has_single_word = False
        if parts.normalizer is not None:
            self._rust.normalizer = parts.normalizer
        if parts.pre_tokenizer is not None:
            self._rust.pre_tokenizer = parts.pre_tokenizer
        self.added: dict[int, str] = {}
        plain = []
        for index, token in sorted(rust.get_added_tokens_decoder().items()):
            if token.special or not spelled(index):
                continue
            self.added[index] = token.content
            self.has_single_word |= token.single_word
            # lstrip and rstrip would swallow spaces of the text that the token's bytes do not hold.
            plain.append(
                tokenizers.AddedToken(
                    token.content, single_word=token.single_word, normalized=token.normalized, special=False
                )
            )
        self._rust.add_tokens(plain)  # all in one call: each call builds the automaton that finds them anew
        # Added tokens outside the model's vocabulary may be numbered anew here.
        old_ids = {content: index for index, content in self.added.items()}
        new_ids = {index: old_ids[token.content] for index, token in self._rust.get_added_tokens_decoder().items()}
        self._renumbered = {new: old for new, old in new_ids.items() if new != old}

    def _own_ids(self, ids: list[int]) -> list[int]:
        if not self._renumbered:
            return ids
        return [self._renumbered.get(index, index) for index in ids]

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self._own_ids(self._rust.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, by the library's own batch call."""
        out: list[list[int]] = []
        for start in range(0, len(texts), 32768):  # bounds the memory that the library's own records take
            found = self._rust.encode_batch_fast(list(texts[start : start + 32768]), add_special_tokens=False)
            out.extend(self._own_ids(one.ids) for one in found)
        return out

    def words(self, text: str) -> tuple[list[int], list[int | None]]:
        """The ids and, for each, the number of its pre-token; None for an added token."""
        found = self._rust.encode(text, add_special_tokens=False)
        return self._own_ids(found.ids), found.word_ids


class TiktokenEncoder:
    """A tiktoken encoding; special tokens in the text are spelled with ordinary ones."""

    def __init__(self, encoding: Any, table: TokenTable):
        self._encoding, self._pieces = encoding, table.pieces
        self.pattern: str = encoding._pat_str
        self._compiled = regex.compile(self.pattern)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self._encoding.encode_ordinary(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def words(self, text: str) -> tuple[list[int], list[int | None]]:
        """The ids and, for each, the number of the match of the encoding's pattern that it lies in."""
        ids = self.encode(text)
        ends = []
        end = 0
        for match in self._compiled.finditer(text):
            end += len(match[0].encode())
            ends.append(end)
        words: list[int | None] = []
        at = word = 0
        for index in ids:
            while word < len(ends) and at >= ends[word]:
                word += 1
            words.append(word)
            at += len(self._pieces[index])
        return ids, words
