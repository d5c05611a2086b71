"""What the baselines share: models prepared as the runners prepare them, and clocks on their forwards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ensemble_decode.members.transformers.few_rows import helps, use_few_rows_linear
from ensemble_decode.members.transformers.loading import LoadedModel


def prepare(loaded: Sequence[LoadedModel]) -> None:
    """The linear layers that the runners use on this CPU; no EOS, as in ``endless``. To be called once on models loaded
    anew."""
    for entry in loaded:
        if helps(entry.model.dtype, entry.device):
            use_few_rows_linear(entry.model)
        entry.model.generation_config.eos_token_id = None
        entry.model.generation_config.pad_token_id = 0


class ForwardClocks:
    """Seconds inside each model's forward while it is on. On a GPU the device is waited for at both ends."""

    def __init__(self, models: Sequence[Any]) -> None:
        self.models, self.seconds = list(models), [0.0] * len(models)

    @contextmanager
    def on(self) -> Iterator[None]:
        """The hooks are in place inside."""
        handles = [handle for m, model in enumerate(self.models) for handle in self._hook(m, model)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, m: int, model: Any) -> list[Any]:
        began = [0.0]

        def now() -> float:
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            return time.perf_counter()

        def before(*_: Any) -> None:
            began[0] = now()

        def after(*_: Any) -> None:
            self.seconds[m] += now() - began[0]

        return [model.register_forward_pre_hook(before), model.register_forward_hook(after)]


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that are no text: every token its tokenizer calls special, whatever its role."""
    return {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}


class OnlyText(LogitsProcessor):
    """Lets ``generate`` write neither special tokens nor rows of the head that no token has: texts without an end."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.size = size
        self.banned = torch.tensor(sorted(special_ids(tokenizer) | set(range(len(tokenizer), size))))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores with every end masked."""
        if scores.shape[-1] == self.size:  # assisted generation asks for the drafting model's logits too
            scores[:, self.banned.to(scores.device)] = -float("inf")
        return scores


def only_text(entry: LoadedModel) -> LogitsProcessorList:
    """``OnlyText`` as ``generate`` takes it."""
    return LogitsProcessorList([OnlyText(entry.tokenizer, entry.model.get_output_embeddings().weight.shape[0])])


def cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values in a transformers cache."""
    held = [t for layer in cache.layers for t in (layer.keys, layer.values) if t is not None]
    return sum(t.numel() * t.element_size() for t in held)
