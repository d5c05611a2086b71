"""UniTE as published scripts run it: dictionaries of token strings, the whole text tokenized again at every step.

Written from the description in arXiv 2410.03777, sections 3 and 4: at each step every model's top-k tokens go into a
dictionary from string to probability; a string of the union that a model has not among its own is looked up in its
vocabulary, or scored by the first piece of its tokenization; the dictionaries are renormalised and averaged, and the
best string is appended to the text. One model (the first) keeps its KV cache; the others read the whole text again.
Kinder than the scripts: the head is run on the last position alone, and vocabularies are turned into dictionaries once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from ensemble_decode.bench.baselines.common import ForwardClocks, cache_bytes, special_ids
from ensemble_decode.bench.subjects import Event, Spent
from ensemble_decode.members.transformers.body import cache_argument
from ensemble_decode.members.transformers.loading import LoadedModel
from ensemble_decode.vocab.common_prefix import common_prefix


class _Strings:
    """A vocabulary as strings: the printable marks of spaces and line ends replaced, special tokens left out."""

    def __init__(self, tokenizer: Any, size: int, device: torch.device) -> None:
        count = min(len(tokenizer), size)
        pieces = tokenizer.convert_ids_to_tokens(list(range(count)))
        special = special_ids(tokenizer)
        marks = (("Ġ", " "), ("▁", " "), ("Ċ", "\n"), ("ĉ", "\t"), ("<0x0A>", "\n"))
        self.text: list[str] = []
        self.ids: dict[str, int] = {}
        for index, piece in enumerate(pieces):
            for mark, plain in marks:
                piece = piece.replace(mark, plain)
            self.text.append(piece)
            if index not in special:
                self.ids.setdefault(piece, index)
        usable = [index not in special and bool(piece) for index, piece in enumerate(pieces)]
        self.banned = torch.tensor([not ok for ok in usable] + [True] * (size - count), device=device)


class _Session:
    def __init__(self, subject: DictionaryUniTE, prompts: Sequence[str], tokens: int) -> None:
        self.loaded, self.strings, self.top_k = subject.loaded, subject.strings, subject.top_k
        self.prompt, self.tokens, self.text = prompts[0], tokens, ""
        self.clocks = ForwardClocks([entry.model for entry in self.loaded])
        self.fusion = 0.0
        self.cache = DynamicCache()
        self.cache_keyword = cache_argument(self.loaded[0].model, self.loaded[0].name)
        self.cached: list[int] = []

    def __iter__(self) -> Iterator[list[Event]]:
        for _ in range(self.tokens):
            with self.clocks.on(), torch.no_grad():
                logits = [self._logits(m) for m in range(len(self.loaded))]
            began = time.perf_counter()
            self.text += self._choose(logits)
            self.fusion += time.perf_counter() - began
            yield [Event(time.perf_counter(), 0, 1)]

    def _logits(self, m: int) -> torch.Tensor:
        entry = self.loaded[m]
        ids: list[int] = entry.tokenizer(self.prompt + self.text)["input_ids"]
        if m:
            whole = torch.tensor([ids], device=entry.device)
            return entry.model(whole, use_cache=False, logits_to_keep=1).logits[0, -1]
        kept = min(common_prefix(self.cached, ids), len(ids) - 1)
        if kept < len(self.cached):
            self.cache.crop(kept - len(self.cached))  # a negative number is how many go
        rest = torch.tensor([ids[kept:]], device=entry.device)
        out = entry.model(rest, use_cache=True, logits_to_keep=1, **{self.cache_keyword: self.cache})
        self.cached = ids
        return out.logits[0, -1]

    def _choose(self, logits: Sequence[torch.Tensor]) -> str:
        found: list[dict[str, float]] = []
        probs = []
        for m, values in enumerate(logits):
            strings = self.strings[m]
            p = values.float().masked_fill(strings.banned, -float("inf")).softmax(-1)
            top = p.topk(self.top_k)
            found.append({strings.text[i]: q for i, q in zip(top.indices.tolist(), top.values.tolist(), strict=True)})
            probs.append(p)
        union = sorted(set().union(*found))
        total = dict.fromkeys(union, 0.0)
        for m, entry in enumerate(self.loaded):
            scores = {}
            for text in union:
                score = found[m].get(text)
                if score is None:
                    index = self.strings[m].ids.get(text)
                    if index is None:
                        index = entry.tokenizer(text, add_special_tokens=False)["input_ids"][0]
                    score = float(probs[m][index])
                scores[text] = score
            mass = sum(scores.values())
            for text, score in scores.items():
                total[text] += score / mass / len(self.loaded)
        return max(union, key=lambda text: total[text])

    def spent(self) -> Spent:
        return Spent(
            self.clocks.seconds,
            self.fusion,
            cache_bytes=cache_bytes(self.cache),
            ensembled=self.tokens,
            texts=[self.text],
        )


class DictionaryUniTE:
    """UniTE at batch 1 with dictionaries of strings, whole texts tokenized again, and a cache for the first model
    alone."""

    kind = "baseline"
    name = "dictionary"
    label = "UniTE by dictionaries, one cache"

    def __init__(self, loaded: Sequence[LoadedModel], top_k: int = 10) -> None:
        self.loaded, self.top_k = loaded, top_k
        self.strings = [
            _Strings(entry.tokenizer, entry.model.get_output_embeddings().weight.shape[0], entry.device)
            for entry in loaded
        ]

    def refusal(self, batch: int) -> str | None:
        """Why it cannot run a batch of this size, or None."""
        return None if batch == 1 else "the dictionary-based way has no batches"

    def start(self, prompts: Sequence[str], tokens: int) -> _Session:
        """A session that writes ``tokens`` tokens behind each prompt."""
        return _Session(self, prompts, tokens)
