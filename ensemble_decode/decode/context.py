"""What a method's round works with under one sampling: logits, fusion, and the choices that rows get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch

from ensemble_decode import kernels
from ensemble_decode.decode.forwards import Forwards
from ensemble_decode.decode.sequence import Row
from ensemble_decode.decode.tracing import alone_step, fused_step, gated_step
from ensemble_decode.members.protocol import Logits
from ensemble_decode.members.tree import Tree
from ensemble_decode.methods.base import Choice, Distribution, StepContext, StepRow
from ensemble_decode.sampling import Keys, Sampling, choose_alone
from ensemble_decode.vocab.aligned import AlignedVocab

_TRACED = 10  # candidates shown in the trace where one model chooses alone


class Shared:
    """What contexts on one device have in common: the vocabulary's tables, the weights.

    Args:
        vocab: The aligned vocabulary.
        weights: Of the ensemble, sum 1.
        devices: Every model's.
        device: Where logits go: the primary's.
    """

    def __init__(
        self, vocab: AlignedVocab, weights: Sequence[float], devices: Sequence[torch.device], device: torch.device
    ) -> None:
        self.vocab = vocab
        self.devices = list(devices)
        self.device = device
        self.tensors = vocab.tensors(self.device)
        self.weights = torch.tensor(list(weights), dtype=torch.float32, device=self.device)
        self.eos = [frozenset(v.eos_ids) for v in vocab.models]
        self.allowed = [torch.from_numpy(v.allowed).to(self.device) for v in vocab.models]


class Context(StepContext):
    """The engine as the methods see it, under one sampling; ``StepContext`` says what each member does.

    Args:
        shared: What all contexts share.
        forwards: The models.
        sampling: How tokens are chosen.
    """

    def __init__(self, shared: Shared, forwards: Forwards, sampling: Sampling) -> None:
        self.vocab, self.tensors, self.weights = shared.vocab, shared.tensors, shared.weights
        self.devices, self.device = shared.devices, shared.device
        self.eos, self.allowed = shared.eos, shared.allowed
        self.sampling = sampling
        self._forwards = forwards
        self._settings: dict[tuple[Any, ...], kernels.FuseSettings] = {}

    # -- forwards --------------------------------------------------------------------------------------------------

    def next_logits(self, m: int, rows: Sequence[StepRow]) -> torch.Tensor:
        """Model m's logits of what comes next in each row."""
        return self._forwards.next_logits(m, _own(rows), self.device)

    def extend(
        self, m: int, rows: Sequence[StepRow], ids: Sequence[Sequence[int]], logits: Literal["last"] | list[int]
    ) -> Logits:
        """Forward drafts behind what model m's cache holds."""
        return self._forwards.extend(m, _own(rows), ids, logits, self.device)

    def roll_back(self, m: int, row: StepRow, length: int) -> None:
        """Cut model m's cache of a row to its first ``length`` positions."""
        self._forwards.roll_back(m, cast(Row, row), length)

    def read_trees(self, m: int, rows: Sequence[StepRow], trees: Sequence[Tree]) -> Logits:
        """Model m's logits behind the wanted nodes of each row's tree."""
        return self._forwards.read_trees(m, _own(rows), trees, self.device)

    def keep_paths(
        self, m: int, rows: Sequence[StepRow], trees: Sequence[Tree], paths: Sequence[Sequence[int]]
    ) -> None:
        """Make one path of each row's tree part of model m's cache of the row."""
        self._forwards.keep_paths(m, _own(rows), trees, paths)

    def leave(self, row: StepRow, m: int) -> None:
        """Model m takes no further part in a row."""
        self._forwards.leave(cast(Row, row), m)

    # -- fusion ----------------------------------------------------------------------------------------------------

    @contextmanager
    def time_fusion(self) -> Iterator[None]:
        """Counts the time inside as fusion."""
        began = time.perf_counter()
        yield
        self._forwards.clock.fusion += time.perf_counter() - began

    def seconds(self) -> float:
        """Seconds since this round began."""
        return time.perf_counter() - self._forwards.clock.started

    def settings(
        self, rows: Sequence[StepRow], *, weights: torch.Tensor | None = None, draw: bool = True, **fields: Any
    ) -> kernels.FuseSettings:
        """Settings of a fusion, one per row; kept where nothing in them is random or the caller's own."""
        sampled = draw and not self.sampling.greedy
        key = (len(rows), sampled, *sorted(fields.items()))
        made = self._settings.get(key)
        if made is None:
            filters = {
                "temperature": self.sampling.temperature,
                "sample_top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
                "min_p": self.sampling.min_p,
            }
            made = kernels.FuseSettings.make(
                len(rows),
                len(self.devices),
                self.device,
                weights=self.weights.expand(len(rows), -1),
                **(filters if sampled else {}),
                **fields,
            )
            self._settings[key] = made
        if weights is None and any(row.request.weights is not None for row in _own(rows)):
            weights = self.row_weights(rows)
        if weights is not None:
            made = made._replace(weights=weights)
        if sampled:
            keys = self.sampling_keys(rows)
            made = made._replace(seed=keys.seeds, row=keys.rows, step=keys.steps)
        return made

    def row_weights(self, rows: Sequence[StepRow]) -> torch.Tensor:
        """The weights of each row: the ensemble's, unless its request has its own."""
        own = [row.request.weights for row in _own(rows)]
        if all(weights is None for weights in own):
            return self.weights.expand(len(own), -1)
        shared = self.weights.tolist()
        return torch.tensor([shared if w is None else list(w) for w in own], dtype=torch.float32, device=self.device)

    def sampling_keys(self, rows: Sequence[StepRow], ahead: Sequence[int] | None = None) -> Keys:
        """The random generator's keys, one per row."""
        own = _own(rows)
        seeds = [(self.sampling.seed or 0) if row.request.seed is None else row.request.seed for row in own]
        numbers = [row.request.seed_row for row in own]
        steps = [row.length + a for row, a in zip(own, ahead or [0] * len(own), strict=True)]
        return Keys(*(torch.tensor(x, dtype=torch.int64, device=self.device) for x in (seeds, numbers, steps)))

    # -- choices ---------------------------------------------------------------------------------------------------

    def top_alone(self, m: int, logits: torch.Tensor, rows: Sequence[StepRow]) -> kernels.TopkStats:
        """Model m's most probable ids."""
        k = _TRACED if any(row.traced for row in rows) else 1
        with self.time_fusion():
            return kernels.topk_stats(logits, k, self.tensors.allowed[m].to(logits.device))

    def choose(
        self, m: int, rows: Sequence[StepRow], logits: torch.Tensor, ahead: Sequence[int]
    ) -> list[Choice | None]:
        """Model m's own choice from each row of ``logits``."""
        tops = self.top_alone(m, logits, ())
        with self.time_fusion():
            ids = tops.ids[:, 0].long()
            if not self.sampling.greedy:
                ids = choose_alone(logits, self.tensors.allowed[m], self.sampling, self.sampling_keys(rows, ahead))
            chosen = logits.gather(1, ids.clamp_min(0).unsqueeze(1)).squeeze(1).float()
            probs = (chosen - tops.logsumexp).exp()
            if len(self.eos[m]) > 1:
                eos = self.tensors.eos_ids[m].to(logits.device).long()
                mass = (logits[:, eos].float() - tops.logsumexp.unsqueeze(1)).exp().sum(1)
                probs = torch.where((ids.unsqueeze(1) == eos).any(1), mass, probs)
            facts = zip(ids.tolist(), probs.tolist(), tops.flags.tolist(), strict=True)
        return [None if flags or token < 0 else Choice(token, prob) for token, prob, flags in facts]

    def commit_alone(self, m: int, rows: Sequence[StepRow], logits: torch.Tensor, tops: kernels.TopkStats) -> None:
        """Give each row model m's own choice."""
        with self.time_fusion():
            ids = tops.ids[:, 0].tolist()
            flags = tops.flags.tolist()
        if not self.sampling.greedy:
            ids = self._sample(m, rows, logits)
        model = self.vocab.models[m]
        for i, (row, token, flag) in enumerate(zip(_own(rows), ids, flags, strict=True)):
            if flag or token < 0:
                row.fail(self._why(i, row, [logits], [m]))
                continue
            if row.traced:
                row.trace.append(alone_step(model, tops, logits[i], i, token))
            row.stats.agreed[m] += 1
            if token in self.eos[m]:
                row.end(token)
            else:
                row.append_tokens([token], [model.token_bytes[token]])

    def commit(
        self,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        fused: kernels.FuseStep,
        *,
        chosen: Sequence[int] | None = None,
        whole: Callable[[], Distribution] | None = None,
    ) -> None:
        """Give each row the token that a fusion chose."""
        with self.time_fusion():
            columns = [fused.cid, fused.primary_id, fused.flags, fused.ensembled, fused.sharpened, *fused.top_cid]
            table = torch.stack([c.to(torch.int64) for c in columns], dim=1).tolist()
        if chosen is not None:
            for i, cid in enumerate(chosen):
                table[i][0], table[i][1] = cid, self._emitted(cid, logits[0][i])
        elif not self.sampling.greedy:
            self._sample_alone(rows, logits[0], table)
        end, pieces = self.vocab.size - 1, self.vocab.models[0].token_bytes
        shown: Distribution | None = None
        for i, (row, facts) in enumerate(zip(_own(rows), table, strict=True)):
            cid, token, flags, ensembled, sharpened, *tops = facts
            if flags or cid < 0:
                row.fail(self._why(i, row, logits))
                continue
            if row.traced and ensembled:
                if whole is not None and shown is None and cid not in fused.cids[i]:
                    shown = whole()
                row.trace.append(fused_step(self.vocab, fused, i, cid, token, shown))
            elif row.traced:
                own = logits[0][i : i + 1]
                row.trace.append(gated_step(self.vocab, fused, self.top_alone(0, own, [row]), own[0], i, token))
            row.stats.sharpened += bool(sharpened)
            for m, top in enumerate(tops):
                row.stats.agreed[m] += top == cid
            if cid == end:
                row.end(token if token >= 0 else None, ensembled=bool(ensembled))
            else:
                row.append_tokens([token], [pieces[token]], ensembled=bool(ensembled))

    def fail(self, row: StepRow, m: int, logits: torch.Tensor) -> None:
        """End a row that nothing can be chosen for, with the reason."""
        own = cast(Row, row)
        own.fail(self._why(0, own, [logits.unsqueeze(0)], [m]))

    def _emitted(self, cid: int, logits: torch.Tensor) -> int:
        """The primary's id for a candidate, −1 where it has none; END: its EOS id of the largest logit."""
        if cid == self.vocab.size - 1:
            ids = self.tensors.eos_ids[0].long()
            return int(ids[logits[ids].argmax()]) if len(ids) else -1
        exact = int(self.tensors.exact_id[0][cid])
        return exact if exact >= 0 else int(self.tensors.piece_id[0][cid])

    def _sample_alone(self, rows: Sequence[StepRow], logits: torch.Tensor, table: list[list[int]]) -> None:
        """Where a gate stayed closed the primary samples alone: its token and candidate take the fusion's place."""
        alone = [i for i, (_, _, flags, ensembled, *_) in enumerate(table) if not ensembled and not flags]
        if alone:
            sampled = self._sample(0, [rows[i] for i in alone], logits[alone])
            for i, token in zip(alone, sampled, strict=True):
                table[i][0], table[i][1] = int(self.tensors.to_cid[0][token]), token

    def _sample(self, m: int, rows: Sequence[StepRow], logits: torch.Tensor) -> list[int]:
        with self.time_fusion():
            return choose_alone(logits, self.tensors.allowed[m], self.sampling, self.sampling_keys(rows)).tolist()

    def _why(self, i: int, row: Row, logits: Sequence[torch.Tensor], models: Sequence[int] | None = None) -> str:
        """Why nothing can be chosen in row i of these logits."""
        for m, values in zip(models or row.models, logits, strict=True):
            name, x = self.vocab.models[m].name, values[i]
            if bool(x.isnan().any()):
                return f"model {m} ({name}) gave NaN logits after {row.total(m)} tokens; check its dtype and weights"
            if not bool((x[self.allowed[m]] > -float("inf")).any()):
                return f"model {m} ({name}) gave no finite logit to any allowed token after {row.total(m)} tokens"
        return "no candidate has a positive probability"


def _own(rows: Sequence[StepRow]) -> Sequence[Row]:
    """The rows that a method was given, and gives back, are the engine's."""
    return cast("Sequence[Row]", rows)
