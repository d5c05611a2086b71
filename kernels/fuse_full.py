"""`fuse_full`: the ensemble over whole vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_k, check_models
from ensemble_decode.kernels.fuse_step import _OUTPUTS, fake_step
from ensemble_decode.kernels.library import VOCAB_SCHEMA, built_settings, built_vocab, flat_vocab, plain, register
from ensemble_decode.kernels.types import FuseSettings, FuseStep, VocabTensors
from torch import Tensor


def fuse_full(
    logits: Sequence[Tensor],
    vocab: VocabTensors,
    settings: FuseSettings,
    k: int = 10,
    *,
    implementation: str | None = None,
) -> FuseStep:
    """Choose from the weighted mean over every candidate of every vocabulary (GaC, arXiv 2406.12585).

    ``E(c) = Σ_m w_m P_m(exact_id_m[c])``, 0 for a model that has no exact id; ``E(END) = Σ_m w_m Σ P_m(EOS ids)``.
    Geometric aggregation: ``E ∝ exp Σ w_m log P_m(exact_id_m[c])``, over candidates that all models of positive weight
    have. Gates, sharpening and sampling as in `fuse_candidates`; sampling and its filters see all N candidates.

    Args:
        logits: per model ``[B, V_m]`` float32, bfloat16 or float16, stride 1 along V_m, any row stride.
        vocab: the aligned vocabulary on the same device.
        settings: per row; `oov` has no meaning here, `top_k` bounds the primary's ids that prefix sharpening may raise.
        k: how many of the most probable candidates to return, and how many of the primary's top ids prefix sharpening
            considers at most; 1 to 1024.
        implementation: overrides `use` for this call.

    Returns:
        FuseStep with ``U = k``: `cids` are the k most probable candidates of the distribution the choice is made from,
        (probability descending, candidate ascending), −1 padded. Memory is bounded: rows are worked on in blocks.

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
    return tuple(dispatch.call("fuse_full", logits[0].device, args, implementation))  # type: ignore[arg-type]


def _fake(logits: list[Tensor], *rest: object) -> tuple[Tensor, ...]:
    return fake_step(logits, width=rest[-2])  # type: ignore[arg-type]


_operator = register(
    f"fuse_full(Tensor[] logits, {VOCAB_SCHEMA}, Tensor[] settings, int k, str implementation) -> {_OUTPUTS}",
    _run,
    _fake,
)
