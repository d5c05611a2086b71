"""The models of an ensemble as every run on them uses them: from requests to rows, and engines that run these."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ensemble_decode.decode.engine import Engine
from ensemble_decode.decode.prompts import TEMPLATE, Prompt, Rendering, check_prompt_type, prompt_ids
from ensemble_decode.decode.requests import BatchRequest, check_limits, check_seed
from ensemble_decode.decode.sequence import Request, Row, check_prompt
from ensemble_decode.decode.turns import Turns
from ensemble_decode.errors import ContextError, EnsembleError, InputError
from ensemble_decode.members.per_model import check_weights
from ensemble_decode.members.protocol import Member
from ensemble_decode.methods import Method
from ensemble_decode.methods.base import participants
from ensemble_decode.outputs import ErrorKind
from ensemble_decode.settings import Limits, Sampling
from ensemble_decode.vocab.aligned import AlignedVocab


@dataclass(frozen=True)
class Defaults:
    """What the rows of one run are asked, where their requests say nothing else.

    Attributes:
        method: The method.
        limits: ``max_new_tokens`` and stop strings.
        sampling: Without its seed.
        seed: That seed, or one drawn for this run.
        rendering: How chat messages become text.
    """

    method: Method
    limits: Limits
    sampling: Sampling
    seed: int
    rendering: Rendering

    @classmethod
    def make(
        cls, method: Method, max_new_tokens: Any, stop: Any, sampling: Sampling, rendering: Rendering = TEMPLATE
    ) -> Defaults:
        """Check what a caller gave.

        Raises:
            InputError: ``max_new_tokens`` or ``stop`` cannot be used, or ``sampling`` is no ``Sampling``.
        """
        if not isinstance(sampling, Sampling):
            raise InputError(f"sampling must be a Sampling, got {sampling!r}")
        seed = secrets.randbits(62) if sampling.seed is None else sampling.seed
        return cls(method, check_limits(max_new_tokens, stop), replace(sampling, seed=None), seed, rendering)


class Models:
    """The models of an ensemble, and whose turn it is to use them.

    Args:
        members: The models, in order; the first is the primary.
        tokenizers: Their tokenizers.
        vocab: Their vocabularies, aligned.
        weights: One per model; they sum to 1.

    Attributes:
        members: As given.
        tokenizers: As given.
        vocab: As given.
        weights: As given.
        turns: What all runs on them share.
    """

    def __init__(
        self, members: Sequence[Member], tokenizers: Sequence[Any], vocab: AlignedVocab, weights: Sequence[float]
    ) -> None:
        self.members, self.tokenizers = list(members), list(tokenizers)
        self.vocab, self.weights = vocab, list(weights)
        self.turns = Turns()

    def engine(self, defaults: Defaults) -> Engine:
        """An engine for the rows of one run."""
        with self.turns:
            return Engine(self.members, self.vocab, self.weights, defaults.method, defaults.sampling)

    def prompt_ids(self, m: int, prompt: Prompt, rendering: Rendering = TEMPLATE) -> list[int]:
        """Model m's ids of a prompt.

        Args:
            m: The model.
            prompt: As ``Ensemble.generate`` takes it.
            rendering: How chat messages become text.

        Raises:
            InputError: The prompt cannot be used, or the model's template refuses it.
        """
        check_prompt_type(prompt)
        return self._prompt_ids(m, prompt, rendering)

    def _prompt_ids(self, m: int, prompt: Prompt, rendering: Rendering) -> list[int]:
        model, count = self.vocab.models[m], len(self.members)
        return prompt_ids(
            self.tokenizers[m], model.bos_id, f"model {m} ({model.name})", prompt, rendering, m, count, model.size
        )

    def row(self, index: int, asked: BatchRequest, defaults: Defaults) -> Row:
        """The row of a request; what is wrong with the request makes a row that has already failed.

        Args:
            index: The request's place.
            asked: The request.
            defaults: What holds where it says nothing.
        """
        with self.turns:
            try:
                request, method, used = self._read(index, asked, defaults)
                return self._make(request, asked.prompt, method, used, defaults.rendering)
            except Exception as error:  # whatever one request makes a check raise is its error, and no other's
                request = Request(index, [], 1, prompt=asked.prompt)
                return self._failed(
                    request, defaults.method, participants(defaults.method, self.members), error, "field"
                )

    def _read(self, index: int, asked: BatchRequest, defaults: Defaults) -> tuple[Request, Method, list[int]]:
        """What a request asks, checked. Raises ``InputError``."""
        method = defaults.method if asked.method is None else asked.method
        used = participants(method, self.members)
        limits = defaults.limits
        if asked.max_new_tokens is not None or asked.stop is not None:
            limits = check_limits(
                limits.max_new_tokens if asked.max_new_tokens is None else asked.max_new_tokens,
                limits.stop if asked.stop is None else asked.stop,
            )
        sampling = defaults.sampling if asked.sampling is None else asked.sampling
        if not isinstance(sampling, Sampling):
            raise InputError(f"sampling must be a Sampling, got {sampling!r}")
        if asked.seed is not None:
            sampling = replace(sampling, seed=check_seed(asked.seed))
        row_id = index if asked.row_id is None else _integer(asked.row_id)
        request = Request(
            index,
            [],
            limits.max_new_tokens,
            limits.stop,
            row_id if sampling.seed is None else 0,
            asked.trace,
            asked.prompt,
            method=method,
            sampling=replace(sampling, seed=None),
            seed=defaults.seed if sampling.seed is None else sampling.seed,
            weights=None if asked.weight is None else check_weights(asked.weight, len(self.members)),
        )
        return request, method, used

    def _make(self, request: Request, prompt: Prompt, method: Method, used: Sequence[int], rendering: Rendering) -> Row:
        ids: list[list[int]] = [[] for _ in self.members]
        try:
            check_prompt_type(prompt)
            for m in used:
                ids[m] = self._prompt_ids(m, prompt, rendering)
        except EnsembleError as error:
            return self._failed(request, method, used, error, "prompt")
        request.prompt_ids = ids
        row = self._row(request, method, used)
        try:
            check_prompt(
                [ids[m] for m in used],
                [self.members[m].context_length for m in used],
                [f"model {m} ({self.vocab.models[m].name})" for m in used],
            )
        except ContextError as error:
            row.fail(str(error), "too_long" if all(ids[m] for m in used) else "prompt")
        return row

    def _failed(self, request: Request, method: Method, used: Sequence[int], error: Exception, kind: ErrorKind) -> Row:
        request.prompt_ids = [[] for _ in self.members]
        row = self._row(request, method, used)
        row.fail(str(error) or type(error).__name__, kind)
        return row

    def _row(self, request: Request, method: Method, used: Sequence[int]) -> Row:
        lengths = [member.context_length for member in self.members]
        return Row(request, self.vocab, lengths, used, method.primary, method.retokenize_primary)


def _integer(row_id: Any) -> int:
    try:
        value = operator.index(row_id)
    except TypeError:
        value = 2**63
    if isinstance(row_id, bool) or not -(2**63) <= value < 2**63:
        raise InputError(f"row_id must be an integer of 64 bits, got {row_id!r}")
    return value
