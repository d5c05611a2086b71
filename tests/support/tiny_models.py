"""Tiny causal language models of many families: random weights, seeded, float32, and yet on speaking terms.

The head knows how often each token follows each byte in the corpus, the embedding tells the last byte: so two models
with different tokenizers often agree on what comes next, text looks like text, and END comes now and then. Everything
else (the layers) is random and makes the rest depend on the context. Ids that no text holds (special tokens, rows
of the head past the tokenizer) get large logits: who forgets to mask them will choose them.
"""

from pathlib import Path

import torch
import transformers as tf

from support import tokenizers
from support.oracle.vocab import Vocab

_BASE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
_GQA = _BASE | {"num_key_value_heads": 2}
_DENSE = {"tie_word_embeddings": False, "max_position_embeddings": 512}

# Sliding windows are short, so that tests reach past them.
_FAMILIES: dict[str, tuple[type, type, dict]] = {
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, _GQA | _DENSE),
    "gpt2": (
        tf.GPT2Config,
        tf.GPT2LMHeadModel,
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96, "n_positions": 512, "tie_word_embeddings": False},
    ),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, _GQA | _DENSE),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, _GQA | _DENSE | {"head_dim": 16}),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, _GQA | _DENSE | {"sliding_window": 12}),
    "gemma2": (
        tf.Gemma2Config,
        tf.Gemma2ForCausalLM,
        _GQA | _DENSE | {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 16},
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        tf.Gemma3ForCausalLM,
        _GQA
        | _DENSE
        | {
            "head_dim": 16,
            "sliding_window": 12,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}
FAMILIES = tuple(_FAMILIES)

# A model family beside each tokenizer, for tests that want one model per tokenizer.
USUAL = {
    "gpt2": "gpt2",
    "llama3": "llama",
    "qwen2": "qwen2",
    "llama2": "mistral",
    "metaspace": "llama",
    "gemma": "gemma3",
    "unigram": "gemma2",
    "lowercase": "gpt2",
    "added": "qwen3",
}


def tiny_model(
    family: str,
    tokenizer: str | int,
    *,
    seed: int = 0,
    padding: int = 0,
    end: float = 1.0,
    spread: float = 1.0,
    noise: float = 1.0,
    **config,
) -> tf.PreTrainedModel:
    """A new tiny model in evaluation mode, float32, on the CPU; the same arguments give the same weights.

    `tokenizer`: a name from `support.tokenizers`, or a vocabulary size (then the head is random and there is no EOS).
    `padding`: rows of the head past the tokenizer's ids. `end`: how readily it ends a text (added to the EOS logits).
    `spread`: factor on all logits. `noise`: how much models differ beyond their tokenizers; at 0.2 most drafts of one
    stand before the others. `config`: overrides of the configuration (`max_position_embeddings=32`).
    """
    config_class, model_class, settings = _FAMILIES[family]
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    named = isinstance(tokenizer, str)
    base = len(tokenizers.build(tokenizer)) if named else tokenizer
    eos = tokenizers.eos_ids(tokenizer) if named else []
    bos = tokenizers.build(tokenizer).bos_token_id if named else None
    made = config_class(
        vocab_size=base + padding,
        initializer_range=0.15,
        eos_token_id=eos or None,
        bos_token_id=bos,
        pad_token_id=None,
        **(settings | config),
    )
    model = model_class(made).eval().to(torch.float32)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        if named:
            vocab = Vocab(tokenizers.build(tokenizer), size=base + padding, eos_ids=eos)
            for name, parameter in model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight", "c_proj.weight")):
                    parameter.mul_(noise)  # what a layer adds
            _speak(embedding, head, vocab, end, 2.2 * spread, noise)
            if family.startswith("gemma"):
                embedding.div_(embedding.shape[1] ** 0.5)  # the model multiplies it again
        else:
            head.normal_(0.0, spread * 3.0 / head.shape[1] ** 0.5)
    torch.random.set_rng_state(torch_state)
    model.generation_config = tf.GenerationConfig(eos_token_id=eos or None, bos_token_id=bos)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def _speak(embedding: torch.Tensor, head: torch.Tensor, vocab: Vocab, end: float, spread: float, noise: float) -> None:
    width = embedding.shape[1]
    # The same directions for every model, whatever its seed.
    generator = torch.Generator().manual_seed(1234)
    direction = torch.nn.functional.normalize(torch.randn(256, width, generator=generator), dim=1)
    own = torch.randn(embedding.shape)
    last = torch.tensor([data[-1] if data else 0 for data in vocab.token_bytes])
    embedding.copy_(0.8 * direction[last] * width**0.5 + 0.3 * noise * own)

    follows = torch.zeros(vocab.size, 256)
    for paragraph in tokenizers.CORPUS.encode().split(b"\n\n"):
        ids = vocab.encode(paragraph)
        for before, after in zip(ids, [*ids[1:], vocab.eos_ids[0]], strict=True):
            follows[after, vocab.token_bytes[before][-1]] += 1
    logits = torch.log1p(8 * follows)
    logits[vocab.eos_ids[0], [ord(c) for c in ".?!}>"]] += end
    own = torch.randn(head.shape) * 0.9 * noise / width**0.5
    head.copy_(spread * (logits @ direction / width**0.5 * 1.2 + own))
    forbidden = sorted(set(range(vocab.size)) - set(vocab.allowed))
    head[forbidden] = torch.randn(len(forbidden), width) * spread


def save_tiny(folder: str | Path, family: str, tokenizer: str, **options) -> Path:
    """A folder with `tiny_model(family, tokenizer, **options)` and its tokenizer, as `from_pretrained` reads it."""
    folder = Path(folder)
    tiny_model(family, tokenizer, **options).save_pretrained(folder)
    tokenizers.build(tokenizer).save_pretrained(folder)
    return folder
