"""Reference of `sample_tokens` and `token_probs`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.numerics import MAX_FLOAT, NEG_INF, first_where, masked, row_max, tree_sum
from ensemble_decode.kernels.reference.sampling import draw, filtered
from ensemble_decode.kernels.types import SampleSettings
from torch import Tensor


def sample_tokens(
    logits: Tensor, allowed: Tensor | None, settings: SampleSettings, numbers: Tensor | None = None
) -> Tensor:
    """See `ensemble_decode.kernels.sample_tokens`."""
    x, log = _scaled(logits, allowed, settings)
    top = row_max(x)
    best = first_where(x == top.unsqueeze(-1))
    if numbers is None:
        numbers = torch.arange(x.shape[1], device=x.device)
    drawn = torch.where(settings.temperature > 0, draw(log, numbers, settings), best)
    return torch.where(top > NEG_INF, drawn, -1).to(torch.int32)


def token_probs(logits: Tensor, allowed: Tensor | None, settings: SampleSettings) -> Tensor:
    """See `ensemble_decode.kernels.token_probs`."""
    _, log = _scaled(logits, allowed, settings)
    p = torch.where(filtered(log, settings), log.exp(), 0.0)
    total = tree_sum(p).unsqueeze(-1)
    return p / torch.where(total > 0, total, 1.0)


def _scaled(logits: Tensor, allowed: Tensor | None, settings: SampleSettings) -> tuple[Tensor, Tensor]:
    """The masked logits and (x − max x) / T, float32 [B, V] each; +inf counts as the largest float32."""
    x = masked(logits, allowed, torch.float32)[0]
    finite = x.clamp(max=MAX_FLOAT)
    top = row_max(finite).unsqueeze(-1)
    temperature = torch.where(settings.temperature > 0, settings.temperature, 1.0).unsqueeze(-1)
    return x, (finite - torch.where(top == NEG_INF, 0.0, top)) / temperature
