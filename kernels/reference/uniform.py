"""Reference of `uniform`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.philox import uniform_numbers
from torch import Tensor


def uniform(seed: Tensor, row: Tensor, step: Tensor, word: int) -> Tensor:
    """See `ensemble_decode.kernels.uniform`."""
    return uniform_numbers(torch.full((1,), word, device=seed.device), seed, row, step)[:, 0]
