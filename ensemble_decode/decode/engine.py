"""What a method's round works with: logits of shared forwards, fusion, choices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from ensemble_decode import kernels
from ensemble_decode.decode.riders import Riders
from ensemble_decode.decode.scheduler import Scheduler
from ensemble_decode.decode.sequence import Row
from ensemble_decode.decode.tracing import alone_step, fused_step
from ensemble_decode.members.protocol import Logits, Member
from ensemble_decode.members.tree import Tree
from ensemble_decode.sampling import Keys, Sampling, choose_alone
from ensemble_decode.vocab.aligned import AlignedVocab

if TYPE_CHECKING:
    from ensemble_decode.methods import Method

_TRACED = 10  # candidates shown in the trace where one model chooses alone


class Choice(NamedTuple):
    """What one model alone would write next, and its probability (END: of all its EOS ids together)."""

    id: int
    prob: float


@dataclass
class Clock:
    """Seconds of one round so far: each model's forwards, and fusion (its one transfer to the host included)."""

    forward: list[float]
    fusion: float = 0.0
    started: float = field(default_factory=time.perf_counter)


class Engine:
    """What one method's rounds work with: the models, fusion, and choices under one sampling.

    A method's ``round`` asks it for logits (``next_logits``, ``extend``), fuses them under ``fusing()`` and gives each row its
    token (``commit``, ``commit_alone``). Which rows take part is the scheduler's affair (``schedule.py``).
    """

    def __init__(
        self,
        runners: Sequence[Member],
        vocab: AlignedVocab,
        weights: Sequence[float],
        method: Method,
        sampling: Sampling,
        batch_size: int,
        riders: Riders | None = None,
    ) -> None:
        self.runners = list(runners)
        self.vocab = vocab
        self.method = method
        self.sampling = sampling
        self.batch_size = batch_size
        self.riders = riders if riders is not None else Riders(len(self.runners))
        self.device = self.runners[method.primary].device
        self.tensors = vocab.tensors(self.device)
        self.weights = torch.tensor(list(weights), dtype=torch.float32, device=self.device)
        self.clock = Clock([0.0] * len(self.runners))
        self.eos = [frozenset(v.eos_ids) for v in vocab.models]
        self.allowed = [torch.from_numpy(v.allowed).to(self.device) for v in vocab.models]
        self._settings: dict[tuple[Any, ...], kernels.FuseSettings] = {}

    def run(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Run all rows to their end, at most ``batch_size`` at a time; yields a row after each round that moved it."""
        return Scheduler(self).run(rows)

    def with_program(self, method: Method, sampling: Sampling) -> Engine:
        """The same models and riders under another method and sampling."""
        return Engine(
            self.runners, self.vocab, self.weights.tolist(), method, sampling, self.batch_size, riders=self.riders
        )

    def round(self, rows: Sequence[Row], guests: Sequence[Row] = ()) -> None:
        """One round of the method over ``rows``. Its time is shared out over them and ``guests``, whose prompts are read beside them."""
        self.clock = clock = Clock([0.0] * len(self.runners))
        if rows:
            self.method.round(self, rows)
        for m in self.riders.models():  # this round had no forward of theirs
            self.extend(m, (), (), [])
        wall = time.perf_counter() - clock.started
        host = max(0.0, wall - sum(clock.forward) - clock.fusion)
        for row in rows:
            row.stats.rounds += 1
        sharers = [*rows, *guests]
        for row in sharers:
            for m, seconds in enumerate(clock.forward):
                row.stats.forward_seconds[m] += seconds / len(sharers)
            row.stats.fusion_seconds += clock.fusion / len(sharers)
            row.stats.host_seconds += host / len(sharers)

    # -- models ----------------------------------------------------------------------------------------------------

    def next_logits(self, m: int, rows: Sequence[Row]) -> torch.Tensor:
        """Model m's logits [B, V_m] of what comes next in each row, on the primary's device; forwards only what is pending."""
        for row in rows:
            if not row.cached[m]:  # a model that had not been asked yet: another row may have been read meanwhile
                row.cached[m] = self.runners[m].take_over(row.slot(m), row.pending(m))
        pending = [row.pending(m) for row in rows]
        for row, ids in zip(rows, pending, strict=True):
            row.cached[m] = row.total(m) - len(ids)
        return self.extend(m, rows, pending, "last").values

    def extend(
        self, m: int, rows: Sequence[Row], ids: Sequence[Sequence[int]], logits: Literal["last"] | list[int]
    ) -> Logits:
        """Roll every row's cache of model m back to ``row.cached[m]`` positions, forward ``ids`` after them, and count them in.

        Chunks of prompts that wait for a forward of model m ride along. Returns the logits asked for (see ``Runner.extend``),
        moved to the primary's device.
        """
        runner, began = self.runners[m], time.perf_counter()
        riders = self.riders.take(m)
        everyone = [*rows, *(row for row, _ in riders)]
        news = [*ids, *(chunk for _, chunk in riders)]
        if riders:
            counts = [1] * len(rows) if logits == "last" else list(logits)
            logits = [*counts, *([0] * len(riders))]
        slots = [row.slot(m) for row in everyone]
        for row, slot in zip(everyone, slots, strict=True):
            if runner.length(slot) > row.cached[m]:
                runner.rollback(slot, row.cached[m])
        out = runner.extend(slots, news, logits)
        for row, new in zip(everyone, news, strict=True):
            row.cached[m] += len(new)
            row.stats.forwarded[m] += len(new)
        if out.values.device != self.device:
            out = replace(out, values=out.values.to(self.device))
        self.clock.forward[m] += time.perf_counter() - began
        return out

    def read_trees(self, m: int, rows: Sequence[Row], trees: Sequence[Tree]) -> Logits:
        """Model m's logits behind the wanted nodes of each row's tree (see ``Runner.read_trees``), on the primary's device."""
        began = time.perf_counter()
        out = self.runners[m].read_trees([row.slot(m) for row in rows], trees)
        for row, tree in zip(rows, trees, strict=True):
            row.stats.forwarded[m] += len(tree.ids)
        if out.values.device != self.device:
            out = replace(out, values=out.values.to(self.device))
        self.clock.forward[m] += time.perf_counter() - began
        return out

    def keep_paths(self, m: int, rows: Sequence[Row], trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> None:
        """Make one path of each row's tree, read just before, part of model m's cache of the row."""
        self.runners[m].keep_paths([row.slot(m) for row in rows], trees, paths)
        for row, tree, path in zip(rows, trees, paths, strict=True):
            row.cached[m] = tree.forks[path[0]] + len(path)

    def leave(self, row: Row, m: int) -> None:
        """Model m takes no further part in a row; its slot is free for another."""
        self.runners[m].release(row.slot(m))
        row.slots[m] = None
        row.drop_model(m)

    # -- fusion ----------------------------------------------------------------------------------------------------

    @contextmanager
    def fusing(self) -> Iterator[None]:
        """Counts the time inside as fusion."""
        began = time.perf_counter()
        yield
        self.clock.fusion += time.perf_counter() - began

    def settings(self, rows: Sequence[Row], **fields: Any) -> kernels.FuseSettings:
        """Per-row settings of a fusion: the ensemble's weights, the call's sampling, and the fields given."""
        key = (len(rows), *sorted(fields.items()))
        made = self._settings.get(key)
        if made is None:
            s = self.sampling
            made = kernels.FuseSettings.make(
                len(rows),
                len(self.runners),
                self.device,
                weights=self.weights.expand(len(rows), -1),
                temperature=s.temperature,
                sample_top_k=s.top_k,
                top_p=s.top_p,
                min_p=s.min_p,
                **fields,
            )
            self._settings[key] = made
        if self.sampling.greedy:
            return made
        keys = self.sampling_keys(rows)
        return made._replace(seed=keys.seeds, row=keys.rows, step=keys.steps)

    def sampling_keys(self, rows: Sequence[Row], ahead: Sequence[int] | None = None) -> Keys:
        """The generator's keys of the token ``ahead`` (default 0) places after the next one of each row."""
        seeds = [(self.sampling.seed or 0) if row.request.seed is None else row.request.seed for row in rows]
        numbers = [row.request.seed_row for row in rows]
        steps = [row.length + a for row, a in zip(rows, ahead or [0] * len(rows), strict=True)]
        return Keys(*(torch.tensor(x, dtype=torch.int64, device=self.device) for x in (seeds, numbers, steps)))

    # -- choices ---------------------------------------------------------------------------------------------------

    def commit(self, rows: Sequence[Row], logits: Sequence[torch.Tensor], fused: kernels.FuseStep) -> None:
        """Give each row the token that a fusion chose. Where its gate stayed closed under sampling, the primary samples alone."""
        with self.fusing():
            columns = [fused.cid, fused.primary_id, fused.flags, fused.ensembled, fused.sharpened, *fused.top_cid]
            table = torch.stack([c.to(torch.int64) for c in columns], dim=1).tolist()
        alone = (
            [i for i, facts in enumerate(table) if not facts[3] and not facts[2]] if not self.sampling.greedy else []
        )
        if alone:
            chosen = self._sample(0, [rows[i] for i in alone], logits[0][alone])
            for i, token in zip(alone, chosen, strict=True):
                table[i][0], table[i][1] = int(self.tensors.to_cid[0][token]), token
        end = self.vocab.size - 1
        for i, (row, (cid, token, flags, ensembled, sharpened, *tops)) in enumerate(zip(rows, table, strict=True)):
            if flags or cid < 0:
                row.fail(self._why(i, row, logits))
                continue
            if row.request.trace:
                row.trace.append(fused_step(self.vocab, fused, i, cid))
            row.stats.sharpened += bool(sharpened)
            for m, top in enumerate(tops):
                row.stats.agreed[m] += top == cid
            if cid == end:
                row.end(token if token >= 0 else None, ensembled=bool(ensembled))
            else:
                row.commit([token], [self.vocab.models[0].token_bytes[token]], ensembled=bool(ensembled))

    def commit_alone(self, m: int, rows: Sequence[Row], logits: torch.Tensor, tops: kernels.TopkStats) -> None:
        """Give each row model m's own choice: its top id, or a sample of its own distribution."""
        with self.fusing():
            ids = tops.ids[:, 0].tolist()
            flags = tops.flags.tolist()
        if not self.sampling.greedy:
            ids = self._sample(m, rows, logits)
        model = self.vocab.models[m]
        for i, (row, token, flag) in enumerate(zip(rows, ids, flags, strict=True)):
            if flag or token < 0:
                row.fail(self._why(i, row, [logits], [m]))
                continue
            if row.request.trace:
                row.trace.append(alone_step(self.vocab.models[m], tops, i, token))
            row.stats.agreed[m] += 1
            if token in self.eos[m]:
                row.end(token)
            else:
                row.commit([token], [model.token_bytes[token]])

    def choose(self, m: int, rows: Sequence[Row], logits: torch.Tensor, ahead: Sequence[int]) -> list[Choice | None]:
        """Model m's own choice from each row of ``logits``, ``ahead`` places after the row's end; None where there is none."""
        tops = self.top_alone(m, logits, ())
        with self.fusing():
            ids = tops.ids[:, 0].long()
            if not self.sampling.greedy:
                ids = choose_alone(logits, self.allowed[m], self.sampling, self.sampling_keys(rows, ahead))
            chosen = logits.gather(1, ids.clamp_min(0).unsqueeze(1)).squeeze(1).float()
            probs = (chosen - tops.logsumexp).exp()
            if len(self.eos[m]) > 1:
                eos = self.tensors.eos_ids[m].to(logits.device).long()
                mass = (logits[:, eos].float() - tops.logsumexp.unsqueeze(1)).exp().sum(1)
                probs = torch.where((ids.unsqueeze(1) == eos).any(1), mass, probs)
            facts = zip(ids.tolist(), probs.tolist(), tops.flags.tolist(), strict=True)
        return [None if flags or token < 0 else Choice(token, prob) for token, prob, flags in facts]

    def fail(self, row: Row, m: int, logits: torch.Tensor) -> None:
        """End a row whose logits of model m nothing can be chosen from, naming the reason."""
        row.fail(self._why(0, row, [logits.unsqueeze(0)], [m]))

    def _sample(self, m: int, rows: Sequence[Row], logits: torch.Tensor) -> list[int]:
        with self.fusing():
            return choose_alone(logits, self.allowed[m], self.sampling, self.sampling_keys(rows)).tolist()

    def _why(self, i: int, row: Row, logits: Sequence[torch.Tensor], models: Sequence[int] | None = None) -> str:
        for m, values in zip(models or row.models, logits, strict=True):
            name, x = self.vocab.models[m].name, values[i]
            if bool(x.isnan().any()):
                return f"model {m} ({name}) gave NaN logits after {row.total(m)} tokens; check its dtype and weights"
            if not bool((x[self.allowed[m]] > -float("inf")).any()):
                return f"model {m} ({name}) gave no finite logit to any allowed token after {row.total(m)} tokens"
        return "no candidate has a positive probability"

    def top_alone(self, m: int, logits: torch.Tensor, rows: Sequence[Row]) -> kernels.TopkStats:
        """Model m's own top candidates: one, or as many as a trace shows."""
        k = _TRACED if any(row.request.trace for row in rows) else 1
        with self.fusing():
            return kernels.topk_stats(logits, k, self.tensors.allowed[m].to(logits.device))
