"""`uniform`: the counter-based random numbers of sampling, for decisions that are no draw of a token."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_tensor
from ensemble_decode.kernels.library import register
from torch import Tensor


def uniform(seed: Tensor, row: Tensor, step: Tensor, word: int, *, implementation: str | None = None) -> Tensor:
    """One number in (0, 1) per row: ``r`` of the noise ``g = −log(−log r)`` that candidate `word` would have.

    Philox-4x32-10 (Salmon et al., SC 2011) with key = `seed` and counter = (`word`, `row` low word, `step` low word,
    `row` high word). Candidates stay below 2³¹; a `word` from 2³¹ on gives numbers that no candidate's noise shares.

    Args:
        seed: i64 ``[B]``.
        row: i64 ``[B]``.
        step: i64 ``[B]``.
        word: 0 to 2³² − 1.
        implementation: overrides `use` for this call.

    Returns:
        f64 ``[B]``.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit, or `word` is out of range.
        ImplementationError: the implementation asked for cannot run.
    """
    for name, tensor in (("seed", seed), ("row", row), ("step", step)):
        check_tensor(tensor, name, torch.int64, [seed.shape[0]], seed.device)
    if not 0 <= word < 1 << 32:
        raise ValueError(f"word must lie between 0 and 2**32 - 1, got {word}")
    if implementation is not None:
        dispatch.check_name(implementation)
    numbers: Tensor = _operator(seed, row, step, word, implementation or "")
    return numbers


def _run(seed: Tensor, row: Tensor, step: Tensor, word: int, implementation: str) -> Tensor:
    result: Tensor = dispatch.call("uniform", seed.device, (seed, row, step, word), implementation)
    return result


def _fake(seed: Tensor, row: Tensor, step: Tensor, word: int, implementation: str) -> Tensor:
    return seed.new_empty(seed.shape, dtype=torch.float64)


_operator = register(
    "uniform(Tensor seed, Tensor row, Tensor step, int word, str implementation) -> Tensor", _run, _fake
)
