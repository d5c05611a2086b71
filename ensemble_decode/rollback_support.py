"""Which models can be rolled back token by token, judged from their configuration and structure."""

from __future__ import annotations

from typing import Any

from ensemble_decode.errors import ModelError

ROLLS_BACK = {"full_attention", "sliding_attention"}

_WHY = {
    "linear_attention": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "conv": "its convolution state keeps only the last inputs and cannot be taken back",
    "mamba": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "recurrent": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "hybrid": "part of it is a recurrent state, which cannot be taken back",
    "chunked_attention": "attention in fixed chunks is not supported by the row slots",
    "indexed_attention": "its key index is not kept by the row slots",
}


def context_length(config: Any) -> int:
    """The longest text in tokens that the model's positions allow."""
    for attribute in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, attribute, None)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelError(f"{type(config).__name__} names no context length (max_position_embeddings or n_positions)")


def check_model(model: Any, name: str = "model") -> None:
    """Refuse with ``ModelError`` a model whose state cannot be rolled back, naming the layer and the reason."""
    config = model.config
    what = f"{name} ({type(model).__name__})"
    right = "use a decoder whose layers are all full or sliding-window attention"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{what} is an encoder-decoder model; {right}")
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    for layer, kind in enumerate(types):
        if kind in ROLLS_BACK or kind == "attention":
            continue
        why = next((reason for key, reason in _WHY.items() if key in kind), "its state cannot be taken back")
        raise ModelError(f"{what}: layer {layer} is of type {kind!r}: {why}; {right}")
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{what} keeps a recurrent state, which mixes all earlier tokens and cannot be taken back; {right}"
        )
    if getattr(config, "attention_chunk_size", None):
        raise ModelError(f"{what}: {_WHY['chunked_attention']}; {right}")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise ModelError(f"{what} attends to later tokens, so cached keys would change with every token; {right}")
