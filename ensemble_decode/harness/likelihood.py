"""The log-likelihood of a continuation under an ensemble: the chain of E over the primary's tokens of it.

At each of the primary's tokens every model has read the prompt and its own tokenization of the continuation so far, as
in decoding, and E is the method's distribution there, its union joined by the token asked for. Everything is summed as
logarithms in float64, so that no probability is rounded to 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ensemble_decode import kernels
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.errors import ContextError, InputError
from ensemble_decode.members.tree import Tree
from ensemble_decode.methods import SAFE, GaC, Single, UniTE
from ensemble_decode.methods.gates import GATE_NAMES
from ensemble_decode.vocab.common_prefix import common_prefix

_BLOCK = 64  # positions of a row whose logits are in memory at a time


@dataclass(frozen=True)
class Scored:
    """One continuation. ``contexts[m]``: model m's ids before it, at least one. ``targets``: the primary's ids of it.

    ``lead``: bytes that the primary's context holds and the other models' contexts do not (half a character at the
    join).
    """

    contexts: list[list[int]]
    targets: list[int]
    lead: bytes = b""


def chain_method(method: Any) -> Any:
    """The method whose E the chain takes: ``SAFE`` takes its base's, without sharpening. Raises ``InputError`` for
    SpecFuse."""
    if isinstance(method, SAFE):
        method = method.base
    if not isinstance(method, (Single, UniTE, GaC)):
        raise InputError(
            f"log-likelihoods are not defined for {type(method).__name__}, which scores whole segments; use "
            "method=unite, gac, safe or single"
        )
    if isinstance(method, UniTE) and method.aggregate == "geometric" and method.oov == "exclude":
        raise InputError(
            "log-likelihoods: a geometric mean with oov=exclude gives probability 0 to every token that some "
            "model lacks; use "
            "oov=first_piece, or the arithmetic mean"
        )
    return method


def score(ensemble: Ensemble, method: Any, rows: Sequence[Scored]) -> list[tuple[float, bool]]:
    """Per row the log-probability of all its targets, in nats, and whether greedy decoding would write them.

    All rows run in shared forwards. Raises ``ContextError`` where a continuation does not fit a model's context.
    """
    method = chain_method(method)
    used = list(method.models(len(ensemble.runners)))
    primary = used[0] if isinstance(method, Single) else 0
    readers = {m: _Reader(ensemble, m, primary, rows) for m in used}
    totals, greedy = [0.0] * len(rows), [True] * len(rows)
    try:
        for start in range(0, max((len(row.targets) for row in rows), default=0), _BLOCK):
            places = [(r, j) for r, row in enumerate(rows) for j in range(start, min(start + _BLOCK, len(row.targets)))]
            logits = {m: reader.read(places) for m, reader in readers.items()}
            asked = torch.tensor([rows[r].targets[j] for r, j in places])
            for (r, _), value, same in zip(places, *_step(ensemble, method, logits, asked), strict=True):
                totals[r] += value
                greedy[r] &= same
    finally:
        for reader in readers.values():
            reader.close()
    return list(zip(totals, greedy, strict=True))


class _Reader:
    """One model's logits before each of the primary's tokens of every row."""

    def __init__(self, ensemble: Ensemble, m: int, primary: int, rows: Sequence[Scored]) -> None:
        self.runner, self.vocab = ensemble.runners[m], ensemble.vocab.models[m]
        self.device = ensemble.runners[primary].device
        pieces = ensemble.vocab.models[primary].token_bytes
        self.own = m == primary
        self.rows, self.contexts = rows, list[list[int]]()
        self.offsets: list[list[int]] = []
        self.data: list[bytes] = []
        for row in rows:
            data, offsets = bytearray(row.lead), list[int]()
            for token in row.targets:
                offsets.append(len(data))
                data += pieces[token]
            self.data.append(bytes(data))
            self.offsets.append(offsets)
            self.contexts.append(self._fitting(row.contexts[m], len(self._after(len(self.data) - 1, len(offsets) - 1))))
        self.slots = [self.runner.acquire() for _ in rows]
        self.held: list[list[int]] = [[] for _ in rows]

    def _fitting(self, context: list[int], following: int) -> list[int]:
        """The end of a context that leaves room for ``following`` ids, as the harness cuts it."""
        room = self.runner.context_length - following
        if room < 1:
            raise ContextError(
                f"{self.vocab.name}: a continuation of {following} tokens leaves no room for what precedes it "
                f"in a context of {self.runner.context_length}"
            )
        return context[-room:]

    def _after(self, r: int, j: int) -> list[int]:
        """This model's ids of row r's continuation before its token j."""
        if self.own:
            return self.rows[r].targets[:j]
        return self.vocab.encode(self.data[r][: self.offsets[r][j]])

    def read(self, places: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Logits ``[len(places), V_m]`` on the primary's device."""
        paths: dict[int, list[list[int]]] = {}
        for r, j in places:
            paths.setdefault(r, []).append(self.contexts[r] + self._after(r, j))
        slots, fresh, trees, wanted = [], [], [], []
        for r, whole in paths.items():
            # the cache holds what all paths of the block share, less the last id of the shortest
            fork = min(min(common_prefix(whole[0], path), len(path) - 1) for path in whole)
            kept = min(common_prefix(self.held[r], whole[0][:fork]), fork)
            self.runner.rollback(self.slots[r], kept)
            slots.append(self.slots[r])
            fresh.append(whole[0][kept:fork])
            self.held[r] = whole[0][:fork]
            tree = Tree()
            wanted.append([tree.want(tree.add(fork, path[fork:])[-1]) for path in whole])
            trees.append(tree)
        self.runner.extend(slots, fresh, "none")
        out = self.runner.read_trees(slots, trees)
        at = [first + place for first, row in zip(out.starts, wanted, strict=False) for place in row]
        return out.values[torch.tensor(at, device=out.values.device)].to(self.device)

    def close(self) -> None:
        for slot in self.slots:
            self.runner.release(slot)


def _step(
    ensemble: Ensemble, method: Any, logits: dict[int, torch.Tensor], asked: torch.Tensor
) -> tuple[list[float], list[bool]]:
    """At each place the log-probability of the token asked for, and whether it would be chosen."""
    if isinstance(method, Single):
        (own,) = logits.values()
        asked = asked.to(own.device)
        # over all rows of the head, as the harness's own models: special ids are not masked
        known = torch.log_softmax(own.float(), -1).gather(1, asked[:, None])[:, 0]
        return known.double().tolist(), (own.argmax(-1) == asked).tolist()
    every = [logits[m] for m in range(len(ensemble.runners))]
    device = every[0].device
    tensors, asked = ensemble.vocab.tensors(device), asked.to(device)
    cid = tensors.to_cid[0].long()[asked]
    weights = torch.tensor(ensemble.weights, dtype=torch.float64, device=device)
    if isinstance(method, GaC):
        gate = {"gate": "max_prob", "gate_threshold": method.threshold} if method.threshold < 1 else {}
        settings = _settings(ensemble, every, **gate)
        fused = kernels.fuse_full(every, tensors, settings, 10)
        value = _log_full(every, tensors, cid, weights)
    else:
        gate = (
            {}
            if method.gate is None
            else {"gate": GATE_NAMES[type(method.gate)], "gate_threshold": method.gate.threshold}
        )
        settings = _settings(ensemble, every, top_k=method.top_k, oov=method.oov, aggregate=method.aggregate, **gate)
        fused = kernels.fuse_step(every, tensors, settings, method.top_k)
        value = _log_union(every, tensors, method, asked, cid, weights)
    first = kernels.topk_stats(every[0], 1, tensors.allowed[0])
    alone = _of_candidate(every[0], tensors, 0, cid, tensors.exact_id[0]) - first.logsumexp.double()
    value = torch.where(fused.ensembled, value, alone)
    return value.tolist(), (fused.cid.long() == cid).tolist()


def _settings(ensemble: Ensemble, logits: Sequence[torch.Tensor], **fields: Any) -> kernels.FuseSettings:
    rows, device = len(logits[0]), logits[0].device
    weights = torch.tensor(ensemble.weights, dtype=torch.float32, device=device).expand(rows, -1)
    return kernels.FuseSettings.make(rows, len(logits), device, weights=weights, **fields)


def _of_candidate(
    logits: torch.Tensor, tensors: kernels.VocabTensors, m: int, cid: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Model m's score of one candidate a row, float64 ``[R]``; END by all EOS ids."""
    scores = kernels.gather_candidates(logits, cid[:, None].int(), ids, tensors.eos_ids[m], tensors.allowed[m])
    return scores[:, 0].double()


def _log_full(
    logits: Sequence[torch.Tensor], tensors: kernels.VocabTensors, cid: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """log E of GaC: the weighted mean of probabilities, a model without the candidate counting 0."""
    parts = []
    for m, values in enumerate(logits):
        own = _of_candidate(values, tensors, m, cid, tensors.exact_id[m])
        parts.append(weights[m].log() + own - kernels.topk_stats(values, 1, tensors.allowed[m]).logsumexp.double())
    return torch.stack(parts).logsumexp(0)


def _log_union(
    logits: Sequence[torch.Tensor],
    tensors: kernels.VocabTensors,
    method: UniTE,
    asked: torch.Tensor,
    cid: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """log E of UniTE over the union of every model's top k and the token asked for."""
    tops = [kernels.topk_stats(v, method.top_k, tensors.allowed[m]).ids for m, v in enumerate(logits)]
    cids, _ = kernels.union_topk([*tops, asked[:, None].int()], [*tensors.to_cid, tensors.to_cid[0]])
    ids = tensors.piece_id if method.oov == "first_piece" else tensors.exact_id
    columns = []
    for m, values in enumerate(logits):
        scores = kernels.gather_candidates(values, cids, ids[m], tensors.eos_ids[m], tensors.allowed[m]).double()
        columns.append(torch.log_softmax(scores, -1))
    q = torch.stack(columns)  # [M, R, U]
    counts = (weights > 0)[:, None, None] & ~q.isnan()  # a model that scores nothing of the union has no say there
    shares = torch.where(counts, weights[:, None, None], 0.0)
    shares = shares / shares.sum(0, keepdim=True)
    if method.aggregate == "arithmetic":
        e = (torch.where(counts, q, -math.inf) + shares.log()).logsumexp(0)
    else:
        e = torch.where(counts, q * shares, 0.0).sum(0)
        e = torch.where(cids >= 0, e, -math.inf)
        e = e - e.logsumexp(-1, keepdim=True)
    return e.gather(1, (cids.long() == cid[:, None]).int().argmax(-1, keepdim=True))[:, 0]
