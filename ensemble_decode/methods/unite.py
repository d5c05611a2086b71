"""UniTE: every step, the average of the models over the union of their top-k tokens (arXiv 2410.03777)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch

from ensemble_decode import kernels
from ensemble_decode.errors import InputError
from ensemble_decode.methods.base import BaseMethod, Distribution, check_choice
from ensemble_decode.methods.gates import GATE_NAMES, Gate, MaxProb
from ensemble_decode.methods.sharpen import NO_SHARPEN, Sharpen

if TYPE_CHECKING:
    from ensemble_decode.decode.engine import Engine
    from ensemble_decode.decode.sequence import Row

Oov = Literal["first_piece", "exclude"]
Aggregate = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class UniTE:
    """Union of every model's ``top_k`` candidates, each model renormalised over it, averaged by the weights, argmax or sample.

    ``oov`` says how a model scores a candidate it has no token for: by the ``first_piece`` of its own tokenization of the
    candidate, or not at all (``exclude``). ``aggregate`` is the weighted ``arithmetic`` or ``geometric`` mean. ``gate`` limits the
    ensemble to the steps where it is needed: ``MaxProb``, ``KL`` or ``JS``; elsewhere the primary's own choice stands.
    """

    top_k: int = 10
    oov: Oov = "first_piece"
    aggregate: Aggregate = "arithmetic"
    gate: Gate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise InputError(f"UniTE: top_k must be a positive integer, got {self.top_k!r}")
        if self.top_k > 1024:
            raise InputError(
                f"UniTE: top_k may be at most 1024, got {self.top_k}; GaC(threshold=1) takes whole vocabularies"
            )
        check_choice("UniTE", "oov", self.oov, get_args(Oov))
        check_choice("UniTE", "aggregate", self.aggregate, get_args(Aggregate))
        if self.gate is not None and type(self.gate) not in GATE_NAMES:
            raise InputError(f"UniTE: gate must be None, MaxProb, KL or JS, got {self.gate!r}")

    @property
    def primary(self) -> int:
        return 0

    @property
    def retokenize_primary(self) -> bool:
        return False

    def models(self, count: int) -> Sequence[int]:
        return range(count)

    def round(self, engine: Engine, rows: Sequence[Row]) -> None:
        gated_round(self, engine, rows, self.gate.threshold if isinstance(self.gate, MaxProb) else None)

    def fuse(
        self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen = NO_SHARPEN
    ) -> kernels.FuseStep:
        gate = {} if self.gate is None else {"gate": GATE_NAMES[type(self.gate)], "gate_threshold": self.gate.threshold}
        settings = engine.settings(
            rows, top_k=self.top_k, oov=self.oov, aggregate=self.aggregate, **gate, **sharpen_fields(sharpen)
        )
        return kernels.fuse_step(logits, engine.tensors, settings, self.top_k)

    def distribution(
        self, engine: Engine, rows: Sequence[Row], logits: Sequence[torch.Tensor], sharpen: Sharpen
    ) -> Distribution:
        fused = self.fuse(engine, rows, logits, sharpen)
        return Distribution(fused.cids.long(), fused.probs, fused.ensembled)


def sharpen_fields(sharpen: Sharpen) -> dict[str, str | float]:
    """A ``Sharpen`` as fields of ``FuseSettings``."""
    if sharpen.kind == "none":
        return {}
    return {
        "sharpen": sharpen.kind,
        "trigger": sharpen.trigger,
        "threshold": sharpen.threshold,
        "min_prob": sharpen.min_prob,
        "tau": sharpen.temperature,
    }


def gated_round(method: BaseMethod, engine: Engine, rows: Sequence[Row], threshold: float | None) -> None:
    """One step of every row. Behind a MaxProb gate the verifiers run only where the primary is unsure.

    A verifier that was not asked catches up later, several tokens in one forward.
    """
    first = engine.next_logits(0, rows)
    if threshold is not None:
        tops = engine.top_alone(0, first, rows)
        with engine.fusing():
            sure = (((tops.values[:, 0] - tops.logsumexp).exp() >= threshold) | (tops.flags != 0)).tolist()
        closed = [i for i, s in enumerate(sure) if s]
        if closed:
            picked = kernels.TopkStats(*(t[closed] for t in tops))
            engine.commit_alone(0, [rows[i] for i in closed], first[closed], picked)
        opened = [i for i, s in enumerate(sure) if not s]
        if not opened:
            return
        rows, first = [rows[i] for i in opened], first[opened]
    logits = [first, *(engine.next_logits(m, rows) for m in range(1, len(engine.runners)))]
    with engine.fusing():
        fused = method.fuse(engine, rows, logits, NO_SHARPEN)
    engine.commit(rows, logits, fused)
