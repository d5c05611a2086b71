"""Sums in a fixed order, bounded exponentials, masks and exact selection: what the operators are made of.

torch's own reductions may split a sum differently when the batch changes, so sums here halve the axis with
elementwise additions: the same additions for a row whatever its neighbours are, on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

NEG_INF = float("-inf")
MAX_FLOAT = torch.finfo(torch.float32).max
"""What +inf counts as in arithmetic."""
FLOOR = -1000.0
"""exp of anything below is 0 in float32 and float64; differences of logits are cut here so that 0 · ∞ never occurs."""
GROUP = 128
"""Ids per group of the two-stage selection."""


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the last axis by halving it, padded with zeros to a power of two."""
    width = 1 << (x.shape[-1] - 1).bit_length() if x.shape[-1] else 1
    if width != x.shape[-1]:
        x = pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0]


def sum_models(x: Tensor) -> Tensor:
    """Sum over the first axis (models), first to last."""
    total = x[0]
    for m in range(1, x.shape[0]):
        total = total + x[m]
    return total


def row_max(x: Tensor) -> Tensor:
    """Maximum over the last axis, −inf where it is empty."""
    return x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], NEG_INF)


def first_where(mask: Tensor) -> Tensor:
    """Index of the first True along the last axis; its length where there is none."""
    width = mask.shape[-1]
    index = torch.arange(width, device=mask.device)
    return torch.where(mask, index, width).amin(-1) if width else index.new_zeros(mask.shape[:-1])


def bounded(x: Tensor) -> Tensor:
    """+inf as the largest finite float32, NaN as −inf."""
    return torch.where(torch.isnan(x), NEG_INF, x).clamp(max=MAX_FLOAT)


def below_max(x: Tensor) -> tuple[Tensor, Tensor]:
    """x − max over the last axis, within [FLOOR, 0], and whether an entry is above −inf and not below FLOOR.

    `x` is bounded. Entries at −inf, and finite ones beside +inf, are at FLOOR and marked False.
    """
    top = row_max(x).unsqueeze(-1)
    top = torch.where(top == NEG_INF, 0.0, top)
    delta = (x - top).clamp(min=FLOOR)
    return delta, delta > FLOOR


def probability(value: Tensor, logsumexp: Tensor) -> Tensor:
    """exp(value − logsumexp), at most 1; 0 where either is −inf, 1 where both are +inf."""
    value, logsumexp = bounded(value), bounded(logsumexp)
    nothing = (value == NEG_INF) | (logsumexp == NEG_INF)
    delta = torch.where(nothing, NEG_INF, value - torch.where(nothing, 0.0, logsumexp))
    return delta.clamp(max=0.0).exp()


def allowed_bits(allowed: Tensor, ids: Tensor) -> Tensor:
    """Whether each id (any shape after a leading row axis, all within range) is set in its row's bitmask."""
    rows = allowed.expand(ids.shape[0], -1) if allowed.shape[0] == 1 else allowed
    words = rows.gather(1, (ids >> 5).flatten(1)).view(ids.shape)
    return (words >> (ids & 31)) & 1 == 1


def masked(logits: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits in `dtype` with −inf for ids not allowed and for NaN, and per row whether an allowed logit was NaN."""
    x = logits.to(dtype)
    if allowed is not None:
        ids = torch.arange(x.shape[1], device=x.device)
        bits = (allowed[:, ids >> 5] >> (ids & 31).to(torch.int32)) & 1 == 1
        x = torch.where(bits, x, NEG_INF)
    nan = torch.isnan(x)
    return torch.where(nan, NEG_INF, x), nan.any(-1)


def partition(x: Tensor) -> tuple[Tensor, Tensor]:
    """max m and Σ exp(x − m) of each row of bounded `x` [B, V]; m = 0 and a sum of 0 where all is −inf."""
    delta, alive = below_max(x)
    top = row_max(x)
    return torch.where(top == NEG_INF, 0.0, top), tree_sum(torch.where(alive, delta.exp(), 0.0))


def log_softmax(x: Tensor) -> Tensor:
    """Log-softmax over the last axis of bounded `x`; −inf where below_max says that the probability is 0."""
    delta, alive = below_max(x)
    total = tree_sum(torch.where(alive, delta.exp(), 0.0)).unsqueeze(-1)
    return torch.where(alive, delta - torch.where(total > 0, total, 1.0).log(), NEG_INF)


def may(condition: Tensor) -> bool:
    """Whether any row may need the work that `condition` marks.

    Reading a plain CPU tensor waits for nothing, so work that no row needs is skipped there; on a device, or while
    tracing, the answer is always yes. The work changes only rows that need it, so results are the same.
    """
    if condition.device.type != "cpu" or type(condition) is not Tensor or torch.compiler.is_compiling():
        return True
    return bool(condition.any())


def select_top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row of `x` [B, W] above −inf, by (value descending, index ascending).

    Returns values [B, k] (−inf padded) and indices int64 [B, k] (−1 padded). Exact in two stages: a group of
    contiguous entries that is not among the k best by (maximum descending, group ascending) cannot hold one of the k
    best entries, because k groups hold one before it in the order.
    """
    batch, width = x.shape
    groups = -(-width // GROUP)
    if groups > 2 * k:
        grouped = pad(x, (0, groups * GROUP - width), value=NEG_INF).view(batch, groups, GROUP)
        chosen = _ordered(grouped.amax(-1), k)[1].sort(-1).values
        near = grouped.gather(1, chosen.unsqueeze(-1).expand(-1, -1, GROUP)).flatten(1)
        ids = (chosen.unsqueeze(-1) * GROUP + torch.arange(GROUP, device=x.device)).flatten(1)
        values, position = _ordered(near, k)
        index = ids.gather(1, position)
    else:
        values, index = _ordered(x, min(k, width))
    index = torch.where(values > NEG_INF, index, -1)
    missing = k - index.shape[1]
    return pad(values, (0, missing), value=NEG_INF), pad(index, (0, missing), value=-1)


def _ordered(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk with the order it does not promise: value descending, index ascending."""
    if x.dtype != torch.float32:
        index = x.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        return x.gather(-1, index), index
    bits = (x + 0.0).view(torch.int32)  # + 0.0 makes −0 equal to 0
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # ordered as the floats are
    ids = torch.arange(x.shape[-1], device=x.device)
    keys = (rank.to(torch.int64) << 32) | (0xFFFFFFFF - ids)
    index = 0xFFFFFFFF - (keys.topk(k, dim=-1).values & 0xFFFFFFFF)
    return x.gather(-1, index), index
