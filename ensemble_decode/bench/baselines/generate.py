"""transformers' own ``generate``: each model alone, and assisted generation across tokenizers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from ensemble_decode.bench.baselines.common import ForwardClocks, cache_bytes, only_text
from ensemble_decode.bench.subjects import Event, Spent
from ensemble_decode.members.transformers.loading import LoadedModel


class _Watch(StoppingCriteria):
    """Never stops; notes when tokens were added."""

    def __init__(self, length: int) -> None:
        self.length, self.events = length, list[Event]()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rows, length = input_ids.shape
        now = time.perf_counter()
        self.events += [Event(now, row, length - self.length) for row in range(rows)]
        self.length = length
        return torch.zeros(rows, dtype=torch.bool, device=input_ids.device)


class _Session:
    """Generates all at once, for ``generate`` cannot be left alone half-way."""

    def __init__(
        self, loaded: Sequence[LoadedModel], main: int, extra: dict[str, Any], prompts: Sequence[str], tokens: int
    ) -> None:
        self.loaded, self.main, self.extra, self.prompts, self.tokens = loaded, main, extra, prompts, tokens
        self.clocks = ForwardClocks([entry.model for entry in loaded])
        self._spent = Spent([0.0] * len(loaded))

    def __iter__(self) -> Iterator[list[Event]]:
        entry = self.loaded[self.main]
        ids = [entry.tokenizer(prompt)["input_ids"] for prompt in self.prompts]
        width = max(map(len, ids))
        batch = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=entry.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=entry.device)
        watch = _Watch(width)
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=self.tokens, pad_token_id=0, return_dict_in_generate=True
        )
        with self.clocks.on():
            out = entry.model.generate(
                batch,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=only_text(entry),
                stopping_criteria=StoppingCriteriaList([watch]),
                **self.extra,
            )
        texts = entry.tokenizer.batch_decode(out.sequences[:, width:])
        held = out["cache"] if "cache" in out else out["past_key_values"]
        self._spent = Spent(self.clocks.seconds, cache_bytes=cache_bytes(held), texts=texts)
        yield watch.events

    def spent(self) -> Spent:
        return self._spent


class TransformersGenerate:
    """One model alone through ``generate``: greedy, its own KV cache, prompts padded on the left."""

    kind = "baseline"

    def __init__(self, loaded: Sequence[LoadedModel], model: int) -> None:
        self.loaded, self.model = loaded, model
        self.name, self.label = f"generate-{model}", f"transformers generate, {loaded[model].name} alone"

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run a batch of this size, or None."""
        return None

    def start(self, prompts: Sequence[str], tokens: int) -> _Session:
        """A session that writes ``tokens`` tokens behind each prompt."""
        return _Session(self.loaded, self.model, {}, prompts, tokens)


class AssistedGenerate:
    """``generate(assistant_model=..., tokenizer=..., assistant_tokenizer=...)``: the largest model writes, the smallest
    drafts for it.

    Its text is the largest model's own: this is no ensemble, only the nearest thing to draft-and-verify across
    tokenizers.
    """

    kind = "baseline"

    def __init__(self, loaded: Sequence[LoadedModel]) -> None:
        sizes = [sum(p.numel() for p in entry.model.parameters()) for entry in loaded]
        self.loaded = loaded
        self.main, self.helper = sizes.index(max(sizes)), sizes.index(min(sizes))
        self.name = "assisted"
        self.label = (
            f"transformers assisted generation: {loaded[self.main].name} writes, {loaded[self.helper].name} drafts"
        )

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run a batch of this size, or None."""
        if len(self.loaded) != 2 or self.main == self.helper:
            return "assisted generation takes two models, one larger than the other"
        return None if batch == 1 else "assisted generation of transformers runs at batch 1 only"

    def start(self, prompts: Sequence[str], tokens: int) -> _Session:
        """A session that writes ``tokens`` tokens behind each prompt."""
        main, helper = self.loaded[self.main], self.loaded[self.helper]
        extra: dict[str, Any] = {"assistant_model": helper.model}
        if main.model.config.get_text_config().vocab_size != helper.model.config.get_text_config().vocab_size:
            extra |= {"tokenizer": main.tokenizer, "assistant_tokenizer": helper.tokenizer}
        return _Session(self.loaded, self.main, extra, prompts, tokens)
