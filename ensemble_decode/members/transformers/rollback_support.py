"""Which models can be rolled back token by token, judged from their configuration and structure."""

from __future__ import annotations

from typing import Any

from ensemble_decode.errors import ModelError

ROLLS_BACK = ("full_attention", "sliding_attention", "attention")
ADVICE = "use a decoder whose layers are all full or sliding-window attention"

# parts of layer type names -> why such a layer cannot be rolled back here
_REASONS = {
    "hybrid": "part of it is a recurrent state, which mixes all earlier tokens and cannot be taken back",
    "conv": "its convolution state keeps only the last inputs and cannot be taken back",
    "linear": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "mamba": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "recurrent": "its recurrent state mixes all earlier tokens and cannot be taken back",
    "chunked": "attention within fixed chunks is not what the row slots keep",
    "indexed": "the key index beside its cache is not kept by the row slots",
}


def context_length(config: Any, name: str = "model") -> int:
    """The longest text in tokens that the model's positions allow.

    Args:
        config: The model's configuration.
        name: What errors call the model.

    Raises:
        ModelError: The configuration names none.
    """
    for attribute in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, attribute, None)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelError(
        f"{name}: {type(config).__name__} names no context length (max_position_embeddings or n_positions)"
    )


def check_model(model: Any, name: str = "model") -> None:
    """Refuse a model whose state cannot be rolled back, judged from its configuration.

    Args:
        model: The model.
        name: What errors call it.

    Raises:
        ModelError: It cannot; the message names the layer type and the reason.
    """
    config = model.config
    what = f"{name} ({type(model).__name__})"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{what} is an encoder-decoder model, which this package does not decode; {ADVICE}")
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    for layer, kind in enumerate(types):
        if kind not in ROLLS_BACK:
            why = next((why for part, why in _REASONS.items() if part in kind), "its state is not known to allow it")
            raise ModelError(f"{what} cannot be rolled back: layer {layer} is of type {kind!r}: {why}; {ADVICE}")
    if getattr(model, "_is_stateful", False):
        why = "it keeps a recurrent state, which mixes all earlier tokens and cannot be taken back"
        raise ModelError(f"{what} cannot be rolled back: {why}; {ADVICE}")
    if getattr(config, "attention_chunk_size", None):
        raise ModelError(f"{what} cannot be rolled back: layer type 'chunked': {_REASONS['chunked']}; {ADVICE}")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise ModelError(f"{what} attends to later tokens, so every cached key would change with each token; {ADVICE}")


def check_windows(config: Any, windows: dict[int, int | None], layers: int, name: str) -> None:
    """Compare the sliding window that each layer's attention was called with against the configuration.

    Args:
        config: The model's configuration.
        windows: Layer to window, None for full attention.
        layers: Number of layers.
        name: What errors call the model.

    Raises:
        ModelError: A layer did not call our attention, or called it with another window.
    """
    missing = sorted(set(range(layers)) - set(windows))
    if missing:
        raise ModelError(
            f"{name}: layers {missing} do not use the attention interface of transformers, so their keys and values "
            f"cannot be read from the row slots; {ADVICE}"
        )
    for layer, kind in enumerate(getattr(config, "layer_types", None) or ()):
        expected = config.sliding_window if kind == "sliding_attention" else None
        if windows[layer] != expected:
            raise ModelError(
                f"{name}: layer {layer} is of type {kind!r} (window {expected}) but asks attention for window "
                f"{windows[layer]}"
            )
