"""The tuples that the operators take and return; tensors only, so that they cross any operator boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLAG_NAN = 1
"""Bit of `flags`: the row held a NaN logit (counted as −inf)."""
FLAG_EMPTY = 2
"""Bit of `flags`: the row had nothing to choose from (nothing allowed, or every logit −inf)."""

TARGET_SKIP = -1
"""`verify_draft` target: nothing to check in this row."""
TARGET_END = -2
"""`verify_draft` target: the shared end of sequence, whatever id the model spells it with."""


class TopkStats(NamedTuple):
    """Result of `topk_stats`: the k best entries of each row and two statistics of its softmax."""

    values: Tensor
    """f32 [B, k], descending; −inf where there is no further entry."""
    ids: Tensor
    """i32 [B, k]; −1 where there is no further entry."""
    logsumexp: Tensor
    """f32 [B]."""
    entropy: Tensor
    """f32 [B], nats."""
    flags: Tensor
    """i32 [B], bits FLAG_NAN and FLAG_EMPTY."""


class Fused(NamedTuple):
    """Result of `fuse_candidates`."""

    probs: Tensor
    """f32 [B, U]: the distribution that the choice is made from (after sharpening, normalised); 0 at padding."""
    choice: Tensor
    """i32 [B]: the chosen candidate id; −1 where there is none."""
    max_prob: Tensor
    """f32 [B]: largest ensemble probability, before sharpening."""
    entropy: Tensor
    """f32 [B]: entropy of the ensemble distribution in nats, before sharpening."""
    kl: Tensor
    """f32 [M, B]: divergence of each model from the consensus, nats."""
    js: Tensor
    """f32 [B]: weighted Jensen-Shannon divergence, nats."""
    ensembled: Tensor
    """bool [B]: False where the gate left the choice to the primary, or nothing could be chosen."""
    sharpened: Tensor
    """bool [B]: the sharpening trigger fired."""
    flags: Tensor
    """i32 [B]."""


class FuseStep(NamedTuple):
    """Result of `fuse_step` and `fuse_full`."""

    cid: Tensor
    """i32 [B]: the chosen candidate id; −1 where there is none."""
    primary_id: Tensor
    """i32 [B]: the id that model 0 emits for it (exact id, else first piece); −1 where there is none."""
    cids: Tensor
    """i32 [B, U]: the candidates (fuse_step: ascending; fuse_full: most probable first); −1 at padding."""
    probs: Tensor
    """f32 [B, U]: probabilities of `cids`, as in `Fused.probs`."""
    count: Tensor  # type: ignore[assignment]  # the field's name, at the cost of tuple.count
    """i32 [B]: number of entries of `cids` that are not padding."""
    max_prob: Tensor
    """f32 [B]."""
    entropy: Tensor
    """f32 [B], nats."""
    kl: Tensor
    """f32 [M, B], nats."""
    js: Tensor
    """f32 [B], nats."""
    ensembled: Tensor
    """bool [B]."""
    sharpened: Tensor
    """bool [B]."""
    top_cid: Tensor
    """i32 [M, B]: the candidate of each model's own top id; −1 where it has none."""
    top_prob: Tensor
    """f32 [M, B]: its probability under that model."""
    logsumexp: Tensor
    """f32 [M, B]."""
    model_entropy: Tensor
    """f32 [M, B]: entropy of each model's own softmax, nats."""
    flags: Tensor
    """i32 [B]: the flags of all models together."""


class VerifyDraft(NamedTuple):
    """Result of `verify_draft`."""

    target_prob: Tensor
    """f32 [R]: probability of the target; 0 where skipped."""
    is_argmax: Tensor
    """bool [R]: the target is the row's most probable id; False where skipped."""
    argmax: Tensor
    """i32 [R]: the most probable id, the smallest one among equals; −1 where nothing is allowed."""
    logsumexp: Tensor
    """f32 [R]."""
    flags: Tensor
    """i32 [R]."""


class VocabTensors(NamedTuple):
    """An aligned vocabulary of M models and N candidates as tensors on one device.

    Candidate ids are lexicographic in the candidates' bytes and END is N − 1, so that y is a proper prefix of x
    exactly where ``y < x < prefix_end[y]``.
    """

    to_cid: Sequence[Tensor]
    """M × i32 [V_m]: candidate of each id; −1 where not allowed. EOS ids map to END."""
    exact_id: Sequence[Tensor]
    """M × i32 [N]: the id with exactly the candidate's bytes; −1 where there is none."""
    piece_id: Sequence[Tensor]
    """M × i32 [N]: the exact id, else the first id of the model's own tokenization of the bytes."""
    allowed: Sequence[Tensor]
    """M × i32 [1 or B, ⌈V_m/32⌉]: bit i%32 of word i//32 is set where id i may be chosen."""
    eos_ids: Sequence[Tensor]
    """M × i32 [E_m]: ids that END stands for; E_m may be 0."""
    prefix_end: Tensor
    """i32 [N]: the first candidate id after all that start with this one."""
    space_cid: int
    """Candidate id of the single space; −1 where there is none."""
    size: int
    """N, the number of candidates with END."""


AGGREGATES = ("arithmetic", "geometric")
OOV_RULES = ("first_piece", "exclude")
SHARPENS = ("none", "prefix", "geometric", "temperature")
TRIGGERS = ("max_prob", "entropy")
GATES = ("none", "max_prob", "kl", "js")

_I32, _I64, _F32 = torch.int32, torch.int64, torch.float32

# field: (dtype, default, names of the codes or None, test on a value, what the value should be)
_FIELDS: dict[str, tuple[torch.dtype, float | int, tuple[str, ...] | None, Any, str]] = {
    "top_k": (_I32, 2**31 - 1, None, lambda v: v >= 1, "at least 1"),
    "aggregate": (_I32, 0, AGGREGATES, None, ""),
    "oov": (_I32, 0, OOV_RULES, None, ""),
    "sharpen": (_I32, 0, SHARPENS, None, ""),
    "trigger": (_I32, 0, TRIGGERS, None, ""),
    "threshold": (_F32, 0.5, None, lambda v: v == v, "a number"),
    "min_prob": (_F32, 0.1, None, lambda v: v == v, "a number"),
    "tau": (_F32, 0.5, None, lambda v: (v > 0) & (v < math.inf), "positive and finite"),
    "gate": (_I32, 0, GATES, None, ""),
    "gate_threshold": (_F32, 0.5, None, lambda v: v == v, "a number"),
    "temperature": (_F32, 0.0, None, lambda v: (v >= 0) & (v < math.inf), "0 (greedy) or positive and finite"),
    "sample_top_k": (_I32, 0, None, lambda v: v >= 0, "0 (off) or positive"),
    "top_p": (_F32, 1.0, None, lambda v: (v >= 0) & (v <= 1), "within [0, 1]"),
    "min_p": (_F32, 0.0, None, lambda v: (v >= 0) & (v <= 1), "within [0, 1]"),
    "seed": (_I64, 0, None, None, ""),
    "row": (_I64, 0, None, None, ""),
    "step": (_I64, 0, None, None, ""),
}


class FuseSettings(NamedTuple):
    """How each row of a batch is fused; every field is a tensor over rows, so rows may differ within one launch."""

    weights: Tensor
    """f32 [B, M]: weights of the models; each row sums to 1."""
    top_k: Tensor
    """i32 [B]: how many of each model's best ids enter the union; columns past it are ignored."""
    aggregate: Tensor
    """i32 [B]: 0 arithmetic, 1 geometric mean."""
    oov: Tensor
    """i32 [B]: a candidate without an exact id scores as 0 its first piece, 1 not at all."""
    sharpen: Tensor
    """i32 [B]: 0 none, 1 prefix, 2 geometric, 3 temperature."""
    trigger: Tensor
    """i32 [B]: sharpen where 0 the largest ensemble probability < threshold, 1 entropy / log |U| > threshold."""
    threshold: Tensor
    """f32 [B]."""
    min_prob: Tensor
    """f32 [B]: prefix sharpening leaves candidates alone whose probability is not above it."""
    tau: Tensor
    """f32 [B]: temperature of temperature sharpening."""
    gate: Tensor
    """i32 [B]: 0 none, 1 MaxProb (primary's top probability < threshold), 2 KL, 3 JS (divergence > threshold)."""
    gate_threshold: Tensor
    """f32 [B]."""
    temperature: Tensor
    """f32 [B]: sampling temperature; 0 is greedy."""
    sample_top_k: Tensor
    """i32 [B]: top-k filter of sampling; 0 is off."""
    top_p: Tensor
    """f32 [B]: nucleus filter of sampling; 1 is off."""
    min_p: Tensor
    """f32 [B]: min-p filter of sampling; 0 is off."""
    seed: Tensor
    """i64 [B]: Philox key."""
    row: Tensor
    """i64 [B]: Philox counter words 1 and 3; the same row draws the same numbers in any batch."""
    step: Tensor
    """i64 [B]: Philox counter word 2."""

    @classmethod
    def make(
        cls, batch: int, models: int, device: torch.device | str = "cpu", *, weights: Any = None, **fields: Any
    ) -> FuseSettings:
        """Settings for `batch` rows and `models` models; what is not named keeps its default.

        `weights`: None (equal), M numbers, or [M] or [batch, M] tensors; not negative, finite, not all zero; rows are
        normalised to sum 1. Every other field: a number, one name of its list (``sharpen="prefix"``), a sequence of
        `batch` of those, or a tensor [batch] or []. Defaults: no sharpening (threshold 0.5, min_prob 0.1, tau 0.5), no
        gate (gate_threshold 0.5), greedy, no filters, seed, row and step 0, top_k unlimited.

        Raises ValueError for a field that does not exist and for a value that is out of range, naming both; the
        values of tensors are checked only where they lie on the CPU, because reading them elsewhere would wait for
        the device.
        """
        unknown = sorted(set(fields) - set(_FIELDS))
        if unknown:
            raise ValueError(f"FuseSettings has no field {unknown[0]!r}; fields: weights, {', '.join(_FIELDS)}")
        if batch < 0 or models < 1:
            raise ValueError(f"FuseSettings needs batch >= 0 and models >= 1, got batch={batch}, models={models}")
        columns = {name: _column(name, fields.get(name), batch, device) for name in _FIELDS}
        return cls(weights=_weights(weights, batch, models, device), **columns)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.weights.shape[0]

    @property
    def models(self) -> int:
        """Number of models."""
        return self.weights.shape[1]

    def rows(self, index: Any) -> FuseSettings:
        """The settings of some rows: `index` is anything that indexes the first axis of a tensor and keeps it."""
        return FuseSettings(*(field[index] for field in self))


class SampleSettings(NamedTuple):
    """How one token of each row is sampled; every field is a tensor over rows, named as in `FuseSettings`."""

    temperature: Tensor
    """f32 [B]: sampling temperature; 0 is greedy."""
    sample_top_k: Tensor
    """i32 [B]: top-k filter; 0 is off."""
    top_p: Tensor
    """f32 [B]: nucleus filter; 1 is off."""
    min_p: Tensor
    """f32 [B]: min-p filter; 0 is off."""
    seed: Tensor
    """i64 [B]: Philox key."""
    row: Tensor
    """i64 [B]: Philox counter words 1 and 3; the same row draws the same numbers in any batch."""
    step: Tensor
    """i64 [B]: Philox counter word 2."""

    @classmethod
    def make(cls, batch: int, device: torch.device | str = "cpu", **fields: Any) -> SampleSettings:
        """Settings for `batch` rows; what is not named keeps its default: greedy, no filters, seed, row and step 0.

        Args:
            batch: Number of rows.
            device: Where the tensors are to lie.
            fields: Any field: a number, a sequence of `batch` numbers, or a tensor [batch] or [].

        Raises:
            ValueError: A field does not exist, or a value is out of range; the message names both.
        """
        unknown = sorted(set(fields) - set(cls._fields))
        if unknown:
            raise ValueError(f"SampleSettings has no field {unknown[0]!r}; fields: {', '.join(cls._fields)}")
        return cls(**{name: _column(name, fields.get(name), batch, device) for name in cls._fields})


def _code(name: str, value: Any, codes: tuple[str, ...] | None) -> Any:
    if not isinstance(value, str):
        return value
    if codes is None or value not in codes:
        right = "a number" if codes is None else " | ".join(repr(c) for c in codes)
        raise ValueError(f"FuseSettings.{name} got {value!r}; right would be {right}")
    return codes.index(value)


def _column(name: str, value: Any, batch: int, device: torch.device | str) -> Tensor:
    dtype, default, codes, test, right = _FIELDS[name]
    if value is None:
        return torch.full((batch,), default, dtype=dtype, device=device)
    if isinstance(value, Tensor):
        column = value.detach()
        if column.is_floating_point() and not dtype.is_floating_point:
            raise ValueError(f"FuseSettings.{name} takes {dtype}, got a tensor of {column.dtype}")
    elif isinstance(value, (list, tuple)):
        column = torch.tensor([_code(name, v, codes) for v in value], dtype=_wide(dtype))
    else:
        value = _code(name, value, codes)
        if not dtype.is_floating_point and (isinstance(value, bool) or value != int(value)):
            raise ValueError(f"FuseSettings.{name} takes whole numbers, got {value!r}")
        column = torch.tensor(value, dtype=_wide(dtype))
    if column.shape not in ((), (batch,)):
        raise ValueError(f"FuseSettings.{name} must have shape [{batch}] or [], got {list(column.shape)}")
    if column.device.type == "cpu":
        if codes is not None:
            test, right = (lambda v: (v >= 0) & (v < len(codes))), f"0 to {len(codes) - 1}: {', '.join(codes)}"
        if test is not None and not bool(test(column).all()):
            bad = column.reshape(-1)[~test(column).reshape(-1)][0].item()
            raise ValueError(f"FuseSettings.{name} must be {right}, got {bad}")
    return column.to(device=device, dtype=dtype).expand(batch).contiguous()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.int64


def _weights(value: Any, batch: int, models: int, device: torch.device | str) -> Tensor:
    if value is None:
        return torch.full((batch, models), 1.0 / models, dtype=_F32, device=device)
    weights = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if weights.shape not in ((models,), (batch, models)):
        raise ValueError(f"weights must have shape [{models}] or [{batch}, {models}], got {list(weights.shape)}")
    weights = weights.to(torch.float64)
    if weights.device.type == "cpu":
        for test, what in (
            (torch.isfinite(weights).all(), "finite (one is NaN or infinite)"),
            ((weights >= 0).all(), "not negative"),
            ((weights.sum(-1) > 0).all(), "not all zero"),
        ):
            if not bool(test):
                raise ValueError(f"weights must be {what}, got {weights.tolist()}")
    weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(device=device, dtype=_F32).expand(batch, models).contiguous()
