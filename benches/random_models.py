"""Models with random weights and vocabularies of any size: for measuring how cost grows, not for text."""

from __future__ import annotations

import random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer(size: int, seed: int = 0) -> Any:
    """A byte-level tokenizer of ``size`` tokens whose merges are drawn at random: short strings of letters first."""
    chance = random.Random(seed)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)}
    pieces = [piece for piece in alphabet if piece.isascii() and piece.isalpha()] + ["Ġ"]
    letters, merges = list(pieces), []
    while len(vocab) < size:
        left, right = chance.choice(pieces), chance.choice(letters)
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))
            pieces.append(left + right)
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def model(vocab: int, *, layers: int, hidden: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A Llama with random weights; head and embedding are one matrix."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 192),
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    made = LlamaForCausalLM(config).eval().requires_grad_(False).to(dtype)
    torch.random.set_rng_state(state)
    return made
