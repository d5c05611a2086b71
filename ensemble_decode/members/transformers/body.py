"""A causal model taken apart for the runner: decoder body, LM head, and the cache object that its layers talk to."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ensemble_decode.errors import ModelError
from ensemble_decode.members.transformers import attention
from ensemble_decode.members.transformers.layer_store import LayerShape
from ensemble_decode.members.transformers.packing import Step
from ensemble_decode.members.transformers.rollback_support import ADVICE


class StepCache(Cache):
    """Transformers' cache interface over a ``SlotCache``: new keys and values go where the current ``Step`` says.

    Attributes:
        step: The current step.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.step: Step | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new keys and values.

        Returns:
            The layer's whole stores, of which attention reads the step's rows and key range. With flash-attn, the new
            keys and values, which the kernel appends.
        """
        step = self.step
        assert step is not None
        if step.flash is not None:
            return key_states, value_states
        store = step.stores[layer_idx]
        store.write(key_states, value_states, step.write[store.shape.heads])
        return store.keys, store.values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: a step's rows have different lengths; their positions are always given."""
        return 0


class _Recorder(Cache):
    """Stores nothing; notes what each layer would store, and refuses layers that keep anything but keys and values."""

    def __init__(self, name: str) -> None:
        super().__init__(layers=[])
        self.name = name
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx in self.shapes:
            raise ModelError(f"{self.name}: layer {layer_idx} uses the KV cache more than once per token; {ADVICE}")
        heads, dim = key_states.shape[1], key_states.shape[-1]
        self.shapes[layer_idx] = LayerShape(heads, dim, value_states.shape[-1], key_states.dtype)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self.name} cannot be rolled back: its layers keep {what} beside keys and values; {ADVICE}")

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a convolution state")

    def get_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a convolution state")

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a recurrent state")

    def get_recurrent_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a recurrent state")

    def has_previous_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a convolution or recurrent state")

    def update_indexer(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a key index")


class Body:
    """A model's decoder and head behind two calls: ``hidden(step)`` and ``logits(hidden)``.

    Args:
        model: The model.
        name: What errors call it.

    Attributes:
        decoder: The model without its head.
        head: The LM head.
        cache: Where the decoder's layers put keys and values.
        cache_argument: The keyword under which the decoder takes its cache.

    Raises:
        ModelError: The model has no LM head, an attention that cannot be replaced, or takes no cache.
    """

    def __init__(self, model: PreTrainedModel, name: str = "model"):
        attention.register()
        self.model, self.name = model, name
        self.config = model.config
        self.decoder = model.base_model
        self.head: Any = model.get_output_embeddings()
        what = f"{name} ({type(model).__name__})"
        if self.head is None or self.decoder is model:
            raise ModelError(f"{what} has no LM head; load it as a causal language model")
        if not getattr(model, "_supports_attention_backend", False):
            raise ModelError(
                f"{what} has an attention of its own that cannot be replaced; use a model that goes through the "
                "attention interface of transformers"
            )
        self.cache_argument = cache_argument(self.decoder, what)
        self._scale, self._softcap = _head_post_processing(self.config)
        self.cache = StepCache()

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.head.weight.shape[0]

    @property
    def id_limit(self) -> int:
        """Ids that the embedding knows: 0 to this less 1."""
        embedding: Any = self.model.get_input_embeddings()
        return embedding.weight.shape[0]

    def record_shapes(self) -> list[LayerShape]:
        """What every layer keeps per token, as seen in a forward of one token.

        Raises:
            ModelError: A layer keeps something else, or nothing of its own.
        """
        recorder = _Recorder(self.name)
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        with torch.no_grad():
            self.decoder(input_ids=ids, use_cache=True, **{self.cache_argument: recorder})
        layers = self.config.num_hidden_layers
        missing = sorted(set(range(layers)) - set(recorder.shapes))
        if missing or len(recorder.shapes) != layers:
            raise ModelError(
                f"{self.name}: layers {missing} keep no keys and values of their own (they share another layer's or "
                f"have another kind of state), which the row slots do not support; {ADVICE}"
            )
        return [recorder.shapes[layer] for layer in range(layers)]

    def use_our_attention(self) -> None:
        """Switch the model's attention to ``attention.attend``, for good; called by itself it behaves as under SDPA."""
        self.model.set_attn_implementation(attention.ATTENTION)

    def hidden(self, step: Step) -> torch.Tensor:
        """The decoder's output ``[N, hidden]`` for the step's tokens; writes their keys and values."""
        self.cache.step = step
        # a 4-D mask keeps the models from building their own; attention takes its masks from the step
        out = self.decoder(
            input_ids=step.ids,
            position_ids=step.positions,
            attention_mask=step.no_mask,
            use_cache=True,
            ensemble_step=step,
            **{self.cache_argument: self.cache},
        )
        return out.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits ``[R, V]`` behind hidden states ``[R, hidden]``, with the scaling and soft cap of the family."""
        values = self.head(hidden)
        if self._scale != 1.0:
            values = values * self._scale
        if self._softcap is not None:
            values = torch.tanh(values / self._softcap) * self._softcap
        return values


def cache_argument(module: torch.nn.Module, what: str) -> str:
    """The keyword under which a model, or the decoder in it, takes its cache; releases of transformers differ.

    Args:
        module: The model or decoder.
        what: What the error calls it.

    Raises:
        ModelError: It takes none.
    """
    parameters = inspect.signature(module.forward).parameters
    for argument in ("cache", "past_key_values"):
        if argument in parameters:
            return argument
    raise ModelError(f"{what} takes no cache of keys and values, so its state cannot be rolled back; {ADVICE}")


def _head_post_processing(config: Any) -> tuple[float, float | None]:
    """``(scale, softcap)`` that the family applies to the head's output: Cohere, Granite; Gemma-2 and Gemma-3."""
    scale = 1.0
    if getattr(config, "logit_scale", None) is not None:  # Cohere multiplies
        scale *= float(config.logit_scale)
    if getattr(config, "logits_scaling", None) is not None:  # Granite divides
        scale /= float(config.logits_scaling)
    softcap = getattr(config, "final_logit_softcapping", None)
    return scale, None if softcap is None else float(softcap)
