"""One model as the oracle sees it: from all ids so far to the logits of what comes next, by a forward pass over all of them."""

import copy
from collections import OrderedDict

import numpy as np
import torch

from .vocab import END, Vocab


class Model:
    """A Hugging Face causal model and its tokenizer, without any KV cache.

    Works on a copy with eager attention, so that nothing done to the caller's model is seen here. A plain memo from the exact
    id sequence to its logits spares repeated work (`remember` rows at most).
    """

    def __init__(self, model, tokenizer, *, share: bool = False, remember: int = 1000):
        self.model = model if share else copy.deepcopy(model)
        self.model.set_attn_implementation("eager")
        config, generation = model.config, model.generation_config
        eos = generation.eos_token_id
        eos = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self.vocab = Vocab(tokenizer, size=config.vocab_size, eos_ids=eos)
        self.context_length = config.max_position_embeddings
        self._forbidden = sorted(set(range(self.vocab.size)) - set(self.vocab.allowed))
        self._memo: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
        self._remember = remember
        self.forwards = 0

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits of the token after `ids`, float64 [V]; -inf where the id is not allowed."""
        if tuple(ids) not in self._memo:
            self.read(ids, len(ids))
        row = self._memo[tuple(ids)].astype(np.float64)
        row[self._forbidden] = -np.inf
        return row

    def read(self, ids: list[int], start: int) -> None:
        """One forward pass over `ids`, remembering the logits after every prefix of at least `start` ids.

        Attention is causal, so they are the logits that a pass over the prefix alone gives.
        """
        lengths = range(start, len(ids) + 1)
        if all(tuple(ids[:n]) in self._memo for n in lengths):
            return
        self.forwards += 1
        with torch.no_grad():
            out = self.model(torch.tensor([ids]), use_cache=False, logits_to_keep=len(lengths)).logits[0]
        for n, row in zip(lengths, out.float().numpy(), strict=True):
            self._memo[tuple(ids[:n])] = row.copy()
        while len(self._memo) > max(self._remember, len(lengths)):
            self._memo.popitem(last=False)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max()
    return logits - (top + np.log(np.exp(logits - top).sum()))


def best_id(logits: np.ndarray) -> int:
    """The argmax over ids; ties to the smaller id."""
    return int(np.argmax(logits))


def top_ids(logits: np.ndarray, k: int) -> list[int]:
    """The k best allowed ids, value descending, id ascending."""
    allowed = np.flatnonzero(np.isfinite(logits))
    order = np.lexsort((allowed, -logits[allowed]))
    return [int(i) for i in allowed[order[:k]]]


def candidate_of(vocab: Vocab, index: int):
    """The candidate that an allowed id stands for: its bytes, or END."""
    return END if index in vocab.eos_ids else vocab.token_bytes[index]


def end_logit(vocab: Vocab, logits: np.ndarray) -> float:
    """The log-sum-exp of the logits of the model's EOS ids."""
    return float(np.logaddexp.reduce(logits[vocab.eos_ids])) if vocab.eos_ids else -np.inf


def probability(vocab: Vocab, logits: np.ndarray, token) -> float:
    """P_m of one allowed id, or of END."""
    log_p = log_softmax(logits)
    return float(np.exp(end_logit(vocab, log_p) if token is END else log_p[token]))
