"""What a model weighs: the numbers that the cost model needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ensemble_decode.errors import InputError


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder-only model.

    ``body``: weights of all layers that every token multiplies; the embedding and the head are not among them.
    ``query`` and ``key``: elements of the queries, and of the keys, that one token has in one layer. ``vocab``: rows of
    the head. ``weight_bytes``: bytes per weight (2 for bfloat16, 0.5 for 4 bits); ``cache_bytes``: bytes per element of
    the KV cache. ``tied``: the head is the embedding, so that it is held once.
    """

    name: str
    layers: int
    hidden: int
    query: int
    key: int
    body: int
    vocab: int
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0
    tied: bool = False

    @property
    def head(self) -> int:
        """Weights of the head."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights that are held."""
        return self.body + self.head * (1 if self.tied else 2)

    @property
    def held_bytes(self) -> float:
        """Bytes of all weights."""
        return self.parameters * self.weight_bytes

    @property
    def cache_bytes_per_token(self) -> float:
        """Bytes that one token takes in the KV cache."""
        return 2 * self.layers * self.key * self.cache_bytes

    @classmethod
    def of_config(
        cls, config: Any, *, name: str | None = None, weight_bytes: float = 2.0, cache_bytes: float = 2.0
    ) -> ModelShape:
        """From a transformers config of a dense model with gated feed-forward layers (Llama, Qwen, Gemma, Mistral,
        ...).

        Raises ``InputError`` where the config describes another kind of layer; ``of_model`` counts any model's weights.
        """
        text = config.get_text_config()
        name = name or getattr(config, "name_or_path", "") or str(text.model_type)
        wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
        missing = [field for field in wanted if not isinstance(getattr(text, field, None), int)]
        if missing:
            raise InputError(f"model {name}: its config has no {', '.join(missing)}; use ModelShape.of_model(model)")
        if getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None):
            raise InputError(f"model {name}: the cost model has no experts; dense models only")
        layers, hidden, query, key = _attention(text)
        body = layers * (2 * hidden * query + 2 * hidden * key + 3 * hidden * text.intermediate_size)
        tied = bool(getattr(text, "tie_word_embeddings", False))
        return cls(name, layers, hidden, query, key, body, text.vocab_size, weight_bytes, cache_bytes, tied)

    @classmethod
    def of_model(cls, model: Any, *, name: str | None = None) -> ModelShape:
        """From a loaded transformers model: its weights are counted, and their bytes are those of its dtype."""
        head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        outside = {head.data_ptr(), embedding.data_ptr()}
        body = sum(p.numel() for p in model.parameters() if p.dim() > 1 and p.data_ptr() not in outside)
        layers, hidden, query, key = _attention(model.config.get_text_config())
        size, tied = float(head.element_size()), head.data_ptr() == embedding.data_ptr()
        name = name or str(getattr(model.config, "name_or_path", "") or model.config.model_type)
        return cls(name, layers, hidden, query, key, body, head.shape[0], size, size, tied)


def _attention(text: Any) -> tuple[int, int, int, int]:
    """Layers, hidden size, and the elements of a token's queries and keys in one layer."""
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    keys = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return text.num_hidden_layers, text.hidden_size, text.num_attention_heads * width, keys * width


def _llama_like(name: str, layers: int, hidden: int, heads: int, keys: int, inner: int, vocab: int) -> ModelShape:
    query, key = heads * 128, keys * 128
    body = layers * (2 * hidden * query + 2 * hidden * key + 3 * hidden * inner)
    return ModelShape(name, layers, hidden, query, key, body, vocab)


# From the models' published configs; heads of 128 elements, bfloat16.
KNOWN = {
    "qwen2.5-7b": _llama_like("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064),
    "llama3.1-8b": _llama_like("llama3.1-8b", 32, 4096, 32, 8, 14336, 128256),
    "qwen2.5-72b": _llama_like("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064),
    "llama3.1-70b": _llama_like("llama3.1-70b", 80, 8192, 64, 8, 28672, 128256),
}
