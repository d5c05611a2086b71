"""The tokenizer of a GGUF file, with the pre-tokenizer that the file names and every token that it lists.

A GGUF file names the way its text is split before the merges (``tokenizer.ggml.pre``). transformers builds some of them
and silently takes GPT-2's for the rest, which gives other ids than the original tokenizer: SmolLM2's splits every digit
off. What transformers builds also lacks added tokens: those that it has to spell otherwise in the vocabulary (Gemma's
runs of spaces, anything outside the byte alphabet). They are put back here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ensemble_decode.vocab.token_bytes import alphabet_bytes, printable_alphabet

# Split like GPT-2, after every digit has been split off on its own.
_DIGITS_THEN_GPT2 = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# Split like GPT-2: what transformers builds where it knows nothing better.
_GPT2 = frozenset(
    {"gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-es", "jina-de", "gigachat", "trillion"}
)
_CONTROL, _USER_DEFINED = 3, 4  # GGUF's numbers of the types of tokens


@dataclass(frozen=True)
class FileTokenizer:
    """What a GGUF file says about its tokenizer.

    Attributes:
        model: ``tokenizer.ggml.model``, None where the file has none.
        pre: ``tokenizer.ggml.pre``, None where the file has none.
        tokens: ``tokenizer.ggml.tokens``, by id.
        types: ``tokenizer.ggml.token_type``, by id; empty where the file has none.
        merges: ``tokenizer.ggml.merges``, two tokens and a space each; empty where the file has none.
    """

    model: str | None
    pre: str | None
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]

    @property
    def byte_level(self) -> bool:
        """Whether the tokens are written in the printable alphabet of byte-level BPE."""
        return self.model == "gpt2"

    def added(self) -> dict[int, bool]:
        """The ids of the tokens that are matched whole in a text, and whether each is special.

        In a byte-level file, a token of type control that some merge makes is an ordinary one, mislabelled.
        """
        kinds = enumerate(self.types)
        found = {index: kind == _CONTROL for index, kind in kinds if kind in (_CONTROL, _USER_DEFINED)}
        if not self.byte_level:
            return found
        made = {merge.replace(" ", "", 1) for merge in self.merges}
        return {i: special for i, special in found.items() if not (special and in_alphabet(self.tokens[i]) in made)}


def load_gguf_tokenizer(path: Path, file: FileTokenizer) -> tuple[Any, list[str]]:
    """The tokenizer of a GGUF file.

    Args:
        path: The file, in a folder that holds nothing else that transformers reads.
        file: What it says about its tokenizer.

    Returns:
        The tokenizer, and warnings about it: where the pre-tokenizer is not known here, ids may differ from the
        original tokenizer's.
    """
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    restore_added_tokens(tokenizer, file)
    if not file.byte_level:  # SentencePiece vocabularies are not split by `pre`
        return tokenizer, []
    if file.pre in _DIGITS_THEN_GPT2:
        _split_digits(tokenizer)
    elif file.pre not in _GPT2 and file.pre not in GGUF_PRE_TOKENIZER_SPLITS:
        return tokenizer, [
            f"the pre-tokenizer {file.pre!r} (tokenizer.ggml.pre) is not known; text is split as GPT-2 splits it; ids "
            f"may differ from the original tokenizer's, most likely around digits, punctuation, accents and runs of "
            f"spaces. The original model's folder or hub id gives exact ids."
        ]
    return tokenizer, []


def doubts_of_saved(folder: Path, file: FileTokenizer) -> list[str]:
    """A warning that counts the tokens which a saved tokenizer does not have as its GGUF file lists them, if any.

    Args:
        folder: Where the tokenizer was saved; it is read as models are loaded.
        file: What the GGUF file says about its tokenizer.
    """
    from transformers import AutoTokenizer

    lost = differing_tokens(AutoTokenizer.from_pretrained(folder), file)
    if not lost:
        return []
    shown = ", ".join(f"{index} {file.tokens[index]!r}" for index in lost[:3]) + (", ..." if len(lost) > 3 else "")
    return [
        f"{len(lost)} of the {len(file.tokens)} tokens that the file lists were built otherwise ({shown}); texts that "
        f"hold them get other ids than the original tokenizer's. The original model's folder or hub id gives exact ids."
    ]


def restore_added_tokens(tokenizer: Any, file: FileTokenizer) -> None:
    """Add every token that the file says is matched whole and that ``tokenizer`` has only under another spelling.

    The token takes the place of the other spelling in the vocabulary, so that it keeps its id. Merges with that
    spelling go: where added tokens are matched first, they are never reached. An ordinary token that the other spelling
    hid comes back.

    Args:
        tokenizer: A fast tokenizer of transformers; changed in place.
        file: What the GGUF file says about its tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer

    backend = tokenizer.backend_tokenizer
    known = backend.get_added_tokens_decoder()
    lost = {
        index: special
        for index, special in file.added().items()
        if index not in known or known[index].content != file.tokens[index]
    }
    if not lost:
        return
    state = json.loads(backend.to_str())
    state["model"] = _respelled(state["model"], file, lost)
    state["added_tokens"] = []
    backend.model = Tokenizer.from_str(json.dumps(state)).model
    for special in (True, False):
        tokenizer.add_tokens(
            [
                AddedToken(file.tokens[index], normalized=False, special=special)
                for index in sorted(lost)
                if lost[index] == special
            ],
            special_tokens=special,
        )


def differing_tokens(tokenizer: Any, file: FileTokenizer) -> list[int]:
    """The ids that a tokenizer does not have as the file lists them.

    Args:
        tokenizer: A fast tokenizer of transformers.
        file: What the GGUF file says about its tokenizer.

    Returns:
        Sorted ids whose text, or whose being matched whole, differs.
    """
    backend = tokenizer.backend_tokenizer
    built = backend.get_vocab()
    holders = Counter(built.values())  # where a vocabulary has gaps, transformers may give an id to two tokens
    known = backend.get_added_tokens_decoder()
    added = file.added()
    different = []
    for index, token in enumerate(file.tokens):
        if index in added:
            same = index in known and known[index].content == token and known[index].special == added[index]
        else:
            same = built.get(_spelled(token, file)) == index and holders[index] == 1
        if not same:
            different.append(index)
    return different


def in_alphabet(text: str) -> str:
    """A text in the printable alphabet of byte-level BPE."""
    spelled = {byte: char for char, byte in printable_alphabet().items()}
    return "".join(spelled[byte] for byte in text.encode())


def _spelled(token: str, file: FileTokenizer) -> str:
    """How the vocabulary spells a token that is not an added one."""
    if file.byte_level:
        return token if alphabet_bytes(token) is not None else in_alphabet(token)
    return token


def _respelled(model: dict[str, Any], file: FileTokenizer, lost: Iterable[int]) -> dict[str, Any]:
    """The JSON of a tokenizer's model with the ``lost`` ids spelled as the file has them."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: a piece and its score, by id
        for index in lost:
            vocab[index][0] = file.tokens[index]
        return model
    spelling = {index: token for token, index in vocab.items()}
    spelling |= {index: file.tokens[index] for index in lost}
    taken = set(spelling.values())
    for index, token in enumerate(file.tokens):
        if index not in spelling and (token := _spelled(token, file)) not in taken:
            spelling[index] = token
    vocab = {token: index for index, token in sorted(spelling.items())}
    merges = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= vocab.keys()]
    return model | {"vocab": vocab, "merges": merges}


def _split_digits(tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
