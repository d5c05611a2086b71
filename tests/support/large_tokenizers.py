"""Synthetic tokenizers as large as published ones, for what must not be done once per token."""

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ensemble_decode.vocab.token_bytes import printable_alphabet
from support.tokenizers import QWEN2_REGEX


def grown(pieces: list[str], size: int, joinable: set[str], seed: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """``pieces``, and joined pairs of them until there are ``size``; with the merges that make each."""
    rng = random.Random(seed)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    parts = [piece for piece in pieces if piece in joinable]
    merges = []
    while len(vocab) < size:
        pair = rng.choice(parts), rng.choice(parts)
        joined = pair[0] + pair[1]
        if joined not in vocab and len(joined) <= 16:
            vocab[joined] = len(vocab)
            merges.append(pair)
            parts.append(joined)
    return vocab, merges


def _wrapped(rust: Tokenizer, added: int, special: int, **names: str) -> PreTrainedTokenizerFast:
    rust.add_special_tokens([f"<|special {index}|>" for index in range(special)])
    rust.add_tokens([AddedToken(f"<unused {index}>", normalized=False) for index in range(added)])
    return PreTrainedTokenizerFast(tokenizer_object=rust, clean_up_tokenization_spaces=False, **names)


def metaspace(size: int, added: int) -> PreTrainedTokenizerFast:
    """Byte pair encoding with byte fallback, in Gemma's way; ``added`` of its ``size`` ids are added tokens."""
    letters = ["▁", *(chr(code) for code in [*range(0x21, 0x7F), *range(0xA1, 0x180)])]
    specials = ["<pad>", "</s>", "<s>", "<unk>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab, merges = grown(pieces, size - added, set(letters), seed=1)
    rust = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    rust.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    rust.add_special_tokens(specials)
    return _wrapped(rust, added, 0, eos_token="</s>", bos_token="<s>", unk_token="<unk>", pad_token="<pad>")


def byte_level(size: int, added: int) -> PreTrainedTokenizerFast:
    """Byte-level byte pair encoding in Qwen's way; ``added`` of its ``size`` ids are added, half of those special."""
    letters = list(printable_alphabet())
    vocab, merges = grown(letters, size - added, set(letters), seed=2)
    rust = Tokenizer(models.BPE(vocab, merges))
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rust.decoder = decoders.ByteLevel()
    return _wrapped(rust, added - added // 2, added // 2, eos_token="<|special 0|>")
