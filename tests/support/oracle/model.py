"""One model as the oracle sees it: all ids so far in, logits of what comes next out."""

import copy
from collections import OrderedDict

import numpy as np
import torch

from .vocab import END, Vocab


class Model:
    """A Hugging Face causal model and its tokenizer, without any KV cache.

    Works on a copy with eager attention, so that nothing done to the caller's model is seen here. A plain memo from the
    exact id sequence to its logits spares repeated work (`remember` rows at most).
    """

    def __init__(self, model, tokenizer, *, share: bool = False, remember: int = 1000):
        self.model = model if share else copy.deepcopy(model)
        if not share:
            for module in self.model.modules():  # the package may have given the caller's linear layers its own forward
                vars(module).pop("forward", None)
        self.model.set_attn_implementation("eager")
        config, generation = model.config, model.generation_config
        eos = generation.eos_token_id
        eos = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self.vocab = Vocab(tokenizer, size=config.vocab_size, eos_ids=eos)
        self.context_length = config.max_position_embeddings
        self._unspellable: frozenset[int] = frozenset()
        self._forbid(frozenset())
        self._memo: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
        self._remember = remember
        self.forwards = 0

    def _forbid(self, unspellable: frozenset[int]) -> None:
        """Mask ids without bytes (other than EOS), and those that hold a byte that some model cannot spell."""
        pieces = self.vocab.token_bytes
        allowed = [i for i in self.vocab.allowed if not unspellable.intersection(pieces[i])]
        self._forbidden = sorted(set(range(self.vocab.size)) - set(allowed))
        self._unspellable = unspellable

    def allowed_bytes(self) -> dict[bytes, int]:
        """The exact id of every byte string that this model may write."""
        exact = self.vocab.exact_ids()
        return {data: i for data, i in exact.items() if not self._unspellable.intersection(data)}

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


def align(models: list[Model]) -> list[Model]:
    """Models that write together: a byte that one of them has no token for is not allowed in any."""
    missing = [b for b in range(256) if any(model.vocab.exact(bytes([b])) is None for model in models)]
    for model in models:
        model._forbid(frozenset(missing))
    return models


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max()
    return logits - (top + np.log(np.exp(logits - top).sum()))


def top_ids(logits: np.ndarray, k: int) -> list[int]:
    """The k best allowed ids, value descending, id ascending."""
    k = min(k, int(np.isfinite(logits).sum()))
    if k == 0:
        return []
    kth = np.partition(logits, len(logits) - k)[len(logits) - k]
    first = np.flatnonzero(logits >= kth)  # k of them, or more where the k-th value is tied
    return [int(i) for i in first[np.lexsort((first, -logits[first]))][:k]]


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
