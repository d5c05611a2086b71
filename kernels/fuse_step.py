"""`fuse_step`: everything between the models' logits and the next candidate, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_k, check_models
from ensemble_decode.kernels.library import VOCAB_SCHEMA, built_settings, built_vocab, flat_vocab, plain, register
from ensemble_decode.kernels.types import FuseSettings, FuseStep, VocabTensors
from torch import Tensor

_OUTPUTS = "(" + ", ".join(["Tensor"] * len(FuseStep._fields)) + ")"


def fuse_step(
    logits: Sequence[Tensor],
    vocab: VocabTensors,
    settings: FuseSettings,
    k: int,
    *,
    implementation: str | None = None,
) -> FuseStep:
    """One ensemble step over M models: top-k, union, gather, aggregate, gate, sharpen, choose.

    The union step of UniTE (arXiv 2410.03777) with the sharpening of SAFE (arXiv 2510.15346); equal to calling
    `topk_stats`, `union_topk`, `gather_candidates` and `fuse_candidates` in turn. Never waits for the device.

    Args:
        logits: per model ``[B, V_m]`` float32, bfloat16 or float16, stride 1 along V_m, any row stride.
        vocab: the aligned vocabulary on the same device; `allowed` may have a row per row of the batch (grammars).
        settings: per row; `settings.top_k` columns of each model's top-k enter the union, at most k.
        k: width of the top-k, the same for all rows, 1 to 1024.
        implementation: overrides `use` for this call.

    Returns:
        FuseStep, with ``U = M · k``. `primary_id` is the id that model 0 emits for the choice: where the gate is
        closed its own top id, else the exact id of `cid`, else the first piece; for END the EOS id with the
        largest logit. `flags` joins the flags of all models; rows with FLAG_EMPTY may have `cid` −1.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit; the message names the model.
        ImplementationError: the implementation asked for cannot run.
    """
    check_k(k)
    check_models(logits, vocab, settings)
    if implementation is not None:
        dispatch.check_name(implementation)
    return FuseStep(*_operator([plain(x) for x in logits], *flat_vocab(vocab), list(settings), k, implementation or ""))


def _run(logits: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    *vocab, settings, k, implementation = rest
    args = (logits, built_vocab(vocab), built_settings(settings), k)  # type: ignore[arg-type]
    return tuple(dispatch.call("fuse_step", logits[0].device, args, implementation))  # type: ignore[arg-type]


def _fake(logits: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    return fake_step(logits, width=len(logits) * rest[-2])  # type: ignore[operator]


def fake_step(logits: list[Tensor], width: int) -> tuple[Tensor, ...]:
    """Empty tensors with the shapes and types of FuseStep, U = `width`."""
    models, rows = len(logits), logits[0].shape[0]
    f32, i32 = torch.float32, torch.int32
    two, per_model = (rows, width), (models, rows)
    shapes = {"cids": two, "probs": two} | dict.fromkeys(
        ("kl", "top_cid", "top_prob", "logsumexp", "model_entropy"), per_model
    )
    dtypes = dict.fromkeys(("cid", "primary_id", "cids", "count", "top_cid", "flags"), i32) | dict.fromkeys(
        ("ensembled", "sharpened"), torch.bool
    )
    return tuple(
        logits[0].new_empty(shapes.get(name, (rows,)), dtype=dtypes.get(name, f32)) for name in FuseStep._fields
    )


_operator = register(
    f"fuse_step(Tensor[] logits, {VOCAB_SCHEMA}, Tensor[] settings, int k, str implementation) -> {_OUTPUTS}",
    _run,
    _fake,
)
