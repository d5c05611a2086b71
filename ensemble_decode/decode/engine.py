"""Runs the rounds that the scheduler has planned: each method over its rows, in forwards that the rows share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ensemble_decode.decode.context import Context, Shared
from ensemble_decode.decode.forwards import Forwards
from ensemble_decode.decode.plan import Plan
from ensemble_decode.decode.sequence import Row
from ensemble_decode.errors import EnsembleError
from ensemble_decode.members.protocol import Member
from ensemble_decode.methods import Method
from ensemble_decode.sampling import Sampling
from ensemble_decode.vocab.aligned import AlignedVocab

_PROGRAMS = 16  # contexts of rows' own methods and sampling that are kept for the next such row


@dataclass
class Program:
    """A method under one sampling, with the context that its rounds work with."""

    method: Method
    sampling: Sampling
    context: Context


class Engine:
    """The models, and the methods that run on them.

    Args:
        members: The models, in order.
        vocab: Their aligned vocabulary.
        weights: Of the ensemble, sum 1.
        method: Of rows that ask for none of their own.
        sampling: Of rows that ask for none of their own.
    """

    def __init__(
        self,
        members: Sequence[Member],
        vocab: AlignedVocab,
        weights: Sequence[float],
        method: Method,
        sampling: Sampling,
    ) -> None:
        self.forwards = Forwards(members)
        self._vocab, self._weights = vocab, list(weights)
        self._devices = [member.device for member in members]
        self._shared: dict[torch.device, Shared] = {}
        self._default = self._program(method, sampling)
        self._programs: list[Program] = []

    def run(self, plan: Plan) -> None:
        """One round of every row that is ready; chunks of other rows' prompts ride along in its forwards."""
        for m, row, chunk in plan.chunks:
            self.forwards.ride(m, row, chunk)
        before = [_extent(row) for row in plan.ready]
        for program, rows in self._by_program(plan.ready):
            self._round(program, rows, plan.readers)
        if not plan.ready:
            self._round(None, (), plan.readers)
        for row, extent in zip(plan.ready, before, strict=True):
            if not row.finished and _extent(row) == extent:
                name = type(self._program_of(row).method).__name__
                raise EnsembleError(
                    f"{name}.round neither added a byte to row {row.request.number} nor ended it; a round must do one "
                    "of the two for every row, or it is called for ever"
                )

    def abandon(self) -> None:
        """Forget what a round that was broken off has left waiting."""
        self.forwards.drop_riders()

    def _round(self, program: Program | None, rows: Sequence[Row], readers: Sequence[Row]) -> None:
        """One round of a method over ``rows``. Its time is shared out over them and the ``readers``."""
        clock = self.forwards.start_round()
        if program is not None:
            program.method.round(program.context, rows)
        self.forwards.flush()
        wall = time.perf_counter() - clock.started
        host = max(0.0, wall - sum(clock.forward) - clock.fusion)
        for row in rows:
            row.stats.rounds += 1
        sharers = [*rows, *readers]
        for row in sharers:
            for m, seconds in enumerate(clock.forward):
                row.stats.forward_seconds[m] += seconds / len(sharers)
            row.stats.fusion_seconds += clock.fusion / len(sharers)
            row.stats.host_seconds += host / len(sharers)

    # -- programs --------------------------------------------------------------------------------------------------

    def _by_program(self, rows: Sequence[Row]) -> list[tuple[Program, list[Row]]]:
        """The rows of each method and sampling."""
        groups: list[tuple[Program, list[Row]]] = []
        for row in rows:
            program = self._program_of(row)
            for known, members in groups:
                if known is program:
                    members.append(row)
                    break
            else:
                groups.append((program, [row]))
        if len(self._programs) > _PROGRAMS:
            used = [program for program, _ in groups]
            self._programs = [program for program in self._programs if any(program is u for u in used)]
        return groups

    def _program_of(self, row: Row) -> Program:
        method = row.request.method if row.request.method is not None else self._default.method
        sampling = row.request.sampling if row.request.sampling is not None else self._default.sampling
        for program in (self._default, *self._programs):
            if program.method == method and program.sampling == sampling:
                return program
        self._programs.append(self._program(method, sampling))
        return self._programs[-1]

    def _program(self, method: Method, sampling: Sampling) -> Program:
        device = self._devices[method.primary]
        if device not in self._shared:
            self._shared[device] = Shared(self._vocab, self._weights, self._devices, device)
        return Program(method, sampling, Context(self._shared[device], self.forwards, sampling))


def _extent(row: Row) -> tuple[int, int]:
    return len(row.data), row.length
