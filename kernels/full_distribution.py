"""`full_distribution`: what `fuse_full` chooses from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_k, check_models
from ensemble_decode.kernels.library import VOCAB_SCHEMA, built_settings, built_vocab, flat_vocab, plain, register
from ensemble_decode.kernels.types import FuseSettings, VocabTensors
from torch import Tensor


def full_distribution(
    logits: Sequence[Tensor],
    vocab: VocabTensors,
    settings: FuseSettings,
    k: int = 10,
    *,
    implementation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The whole distribution that `fuse_full` chooses from, for callers that need every candidate's probability.

    Args:
        logits: per model ``[B, V_m]`` float32, bfloat16 or float16, stride 1 along V_m, any row stride.
        vocab: the aligned vocabulary on the same device.
        settings: per row, as in `fuse_full`; temperature and filters have no meaning here.
        k: how many of the primary's top ids prefix sharpening considers at most; 1 to 1024.
        implementation: overrides `use` for this call.

    Returns:
        f32 ``[B, N]``, E after sharpening, normalised, before temperature and filters; and bool ``[B]``: False where
        the gate left the choice to the primary, or nothing could be chosen. Memory grows with B · N.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit; the message names the model.
        ImplementationError: the implementation asked for cannot run.
    """
    check_k(k)
    check_models(logits, vocab, settings)
    if implementation is not None:
        dispatch.check_name(implementation)
    flat = flat_vocab(vocab)
    probs, ensembled = _operator([plain(x) for x in logits], *flat, list(settings), k, implementation or "")
    return probs, ensembled


def _run(logits: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    *vocab, settings, k, implementation = rest
    args = (logits, built_vocab(vocab), built_settings(settings), k)  # type: ignore[arg-type]
    return tuple(dispatch.call("full_distribution", logits[0].device, args, implementation))  # type: ignore[arg-type]


def _fake(logits: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    rows, size = logits[0].shape[0], rest[5].shape[0]  # type: ignore[attr-defined]
    return logits[0].new_empty((rows, size), dtype=torch.float32), logits[0].new_empty((rows,), dtype=torch.bool)


_operator = register(
    f"full_distribution(Tensor[] logits, {VOCAB_SCHEMA}, Tensor[] settings, int k, str implementation)"
    " -> (Tensor, Tensor)",
    _run,
    _fake,
)
