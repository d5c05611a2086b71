"""SpecFuse as published: every segment drafted and scored by reading the whole text again.

Written from the description in arXiv 2412.07380, section 3: each model generates a candidate segment (transformers'
``generate``, with a cache within the call), the candidates are cut to whole words, every model runs the whole text with
each candidate behind it and scores it by the mean probability of its tokens, the best is appended. Nothing is kept
between rounds or between candidates. No model leaves, so that every round does the same work. Kinder than that: the
head is run on the candidate's positions alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from transformers import GenerationConfig

from ensemble_decode.bench.baselines.common import ForwardClocks, only_text
from ensemble_decode.bench.subjects import Event, Spent
from ensemble_decode.members.transformers.loading import LoadedModel
from ensemble_decode.methods.specfuse.trim import trim_word
from ensemble_decode.vocab.common_prefix import common_prefix


class _Session:
    def __init__(self, subject: UncachedSegments, prompts: Sequence[str], tokens: int) -> None:
        self.loaded, self.length = subject.loaded, subject.segment_length
        self.prompt, self.tokens, self.text = prompts[0], tokens, ""
        self.clocks = ForwardClocks([entry.model for entry in self.loaded])
        self.only_text = [only_text(entry) for entry in self.loaded]
        self.fusion = 0.0
        self.drafted = 0

    def __iter__(self) -> Iterator[list[Event]]:
        tokenizer = self.loaded[0].tokenizer
        start = made = len(tokenizer(self.prompt)["input_ids"])
        while made - start < self.tokens:
            with self.clocks.on(), torch.no_grad():
                candidates = list(dict.fromkeys(self._draft(m) for m in range(len(self.loaded))))
                scores = [sum(self._score(m, text) for m in range(len(self.loaded))) for text in candidates]
            self.text += candidates[scores.index(max(scores))]
            now = len(tokenizer(self.prompt + self.text)["input_ids"])
            new, made = max(now - made, 0), now
            yield [Event(time.perf_counter(), 0, new)]

    def _draft(self, m: int) -> str:
        entry = self.loaded[m]
        ids = torch.tensor([entry.tokenizer(self.prompt + self.text)["input_ids"]], device=entry.device)
        settings = GenerationConfig(do_sample=False, max_new_tokens=self.length, pad_token_id=0)
        out = entry.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            logits_processor=self.only_text[m],
        )
        self.drafted += self.length
        # what one more token adds to the text, so that spaces at its beginning are kept
        skip = {"skip_special_tokens": True}
        before, after = entry.tokenizer.decode(ids[0], **skip), entry.tokenizer.decode(out[0], **skip)
        draft = after[len(before) :].rstrip("\ufffd") or " "
        return trim_word(draft.encode()).decode()

    def _score(self, m: int, candidate: str) -> float:
        entry = self.loaded[m]
        before = entry.tokenizer(self.prompt + self.text)["input_ids"]
        ids = entry.tokenizer(self.prompt + self.text + candidate)["input_ids"]
        targets = ids[common_prefix(before, ids) :]
        if not targets:
            return 0.0
        whole = torch.tensor([ids], device=entry.device)
        logits = entry.model(whole, use_cache=False, logits_to_keep=len(targets) + 1).logits[0, :-1]
        began = time.perf_counter()
        places = torch.tensor(targets, device=entry.device).unsqueeze(1)
        mean = float(logits.float().softmax(-1).gather(1, places).mean())
        self.fusion += time.perf_counter() - began
        return mean

    def spent(self) -> Spent:
        return Spent(self.clocks.seconds, self.fusion, drafted=self.drafted, texts=[self.text])


class UncachedSegments:
    """SpecFuse at batch 1 with nothing cached between rounds, nor between the candidates of one."""

    kind = "baseline"
    name = "segments"
    label = "SpecFuse without caches"

    def __init__(self, loaded: Sequence[LoadedModel], segment_length: int = 10) -> None:
        self.loaded, self.segment_length = loaded, segment_length

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run a batch of this size, or None."""
        return None if batch == 1 else "segment scoring without caches is measured at batch 1"

    def start(self, prompts: Sequence[str], tokens: int) -> _Session:
        """A session that writes ``tokens`` tokens behind each prompt."""
        return _Session(self, prompts, tokens)
