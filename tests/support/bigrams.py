"""Models whose probabilities are written down: what comes next depends on the last token alone."""

import math
from collections.abc import Mapping

import torch
import transformers as tf

import ensemble_decode as ed
from support import tokenizers
from support.ensembles import ensemble_of
from support.oracle.vocab import END, Vocab

Table = Mapping[str, Mapping[str | None, float]]


def bigram_model(table: Table, tokenizer: str = "bytes") -> tf.PreTrainedModel:
    """A Llama with ``P(next | last) = table[last][next]``, keys being the texts of tokens, or END; other ids share the
    rest.

    Its layers add nothing, its embedding is one-hot and its head holds the logarithms. After a token that the table
    does not name, all ids are alike.
    """
    vocab = Vocab(tokenizers.build(tokenizer), eos_ids=tokenizers.eos_ids(tokenizer))
    width = -(-vocab.size // 8) * 8
    config = tf.LlamaConfig(
        vocab_size=vocab.size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=512,
        rms_norm_eps=1e-12,
        tie_word_embeddings=False,
        eos_token_id=vocab.eos_ids,
    )
    model = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(vocab.size, width))
        head = torch.zeros(vocab.size, width)
        for last, following in table.items():
            named = {
                vocab.eos_ids[0] if text is END else vocab.exact(text.encode()): p for text, p in following.items()
            }
            rest = (1 - sum(named.values())) / (len(vocab.allowed) - len(named))
            column = torch.full((vocab.size,), math.log(rest))
            for index, p in named.items():
                column[index] = math.log(p)
            head[:, vocab.exact(last.encode())] = column / width**0.5
        model.get_output_embeddings().weight.copy_(head)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def bigram_ensemble(*tables: Table, names: tuple[str, ...] | None = None, weights=None) -> ed.Ensemble:
    """One bigram model per table; ``names``: their tokenizers, default single bytes."""
    names = names or ("bytes",) * len(tables)
    models = [bigram_model(table, name) for table, name in zip(tables, names, strict=True)]
    return ensemble_of(models, names, names=None, weight=weights)
