"""The entry for other inference stacks: one fused step on their own logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ensemble_decode import kernels
from ensemble_decode.vocab.aligned import AlignedVocab


def fuse_step(
    logits: Sequence[torch.Tensor],
    vocab: AlignedVocab | kernels.VocabTensors,
    *,
    top_k: int = 10,
    weights: Any = None,
    settings: kernels.FuseSettings | None = None,
    implementation: str | None = None,
    **fields: Any,
) -> kernels.FuseStep:
    """Choose the next token of every row from the logits of several models with different vocabularies.

    ``logits``: one ``[B, V_m]`` per model on one device, float32, bfloat16 or float16, last stride 1; model 0 is the primary.
    ``vocab``: the models' ``AlignedVocab`` (or its tensors on that device). ``top_k``: how many of each model's candidates enter
    the union. ``weights``: None for equal ones, or M numbers, or [M] or [B, M] tensors. ``fields``: any setting of
    ``kernels.FuseSettings.make`` (``aggregate``, ``oov``, ``sharpen``, ``gate``, ``temperature``, ``seed``, ...), one value or one per row; or
    ``settings`` made beforehand, which spares the host that work in every step.

    Returns ``kernels.FuseStep``: ``cid`` i32 [B] the chosen candidate (``vocab.bytes_of(cid)``; END is ``vocab.size - 1``),
    ``primary_id`` i32 [B] the primary's token for it, the candidates with their probabilities, and what the models wanted.
    Nothing synchronises with the host. Rows with NaN or nothing to choose from have ``flags`` set and ``cid`` −1.

    Raises ValueError or TypeError, naming the argument, for shapes, dtypes and settings that do not fit.
    Source: UniTE, arXiv 2410.03777; sharpening from SAFE, arXiv 2510.15346.
    """
    logits = list(logits)
    tensors = vocab.tensors(logits[0].device) if isinstance(vocab, AlignedVocab) else vocab
    if settings is None:
        settings = kernels.FuseSettings.make(
            logits[0].shape[0], len(logits), logits[0].device, weights=weights, top_k=top_k, **fields
        )
    elif fields or weights is not None:
        given = ", ".join([*fields, *(["weights"] if weights is not None else [])])
        raise ValueError(f"fuse_step: pass settings or {given}, not both")
    return kernels.fuse_step(logits, tensors, settings, top_k, implementation=implementation)
