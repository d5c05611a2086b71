"""`fuse_candidates`: from scores of a union of candidates to one choice per row."""

from __future__ import annotations

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_int, check_settings, check_tensor
from ensemble_decode.kernels.library import built_settings, register
from ensemble_decode.kernels.types import Fused, FuseSettings
from torch import Tensor


def fuse_candidates(
    scores: Tensor,
    cids: Tensor,
    logsumexp: Tensor,
    primary_topk_cids: Tensor,
    primary_max: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: FuseSettings,
    *,
    implementation: str | None = None,
) -> Fused:
    """Aggregate, gate, sharpen and choose among the candidates of each row.

    With ``q_m = softmax_U(s_m)``: ``E = Σ w_m q_m`` (UniTE, arXiv 2410.03777) or ``E ∝ exp Σ w_m log q_m``; sharpening
    as in SAFE (arXiv 2510.15346): prefix ``E'(u) = E(u) + Σ_{v starts with u} E(v)``, geometric, or ``E^(1/τ)``;
    divergences ``kl_m = KL(p_m ‖ Σ w_j p_j)`` over the union and one bucket for the rest. Rules for every edge:
    `docs/operators.md`.

    Args:
        scores: f32 ``[M, B, U]``, from `gather_candidates`; −inf where a model has no id for a candidate.
        cids: i32 ``[B, U]``, ascending, −1 padded, from `union_topk`.
        logsumexp: f32 ``[M, B]`` over each model's allowed ids, from `topk_stats`.
        primary_topk_cids: i32 ``[B, k0]``, candidates of model 0's top-k ids, −1 padded; those that prefix sharpening
            may raise.
        primary_max: f32 ``[B]``, model 0's largest logit; primary_cid: i32 ``[B]``, its candidate.
        prefix_end: i32 ``[N]``; space_cid: the single space (−1: none). END is N − 1.
        settings: per row; see `FuseSettings`.
        implementation: overrides `use` for this call.

    Returns:
        Fused. Ties of E go to the smaller candidate. Where the gate is closed the choice is `primary_cid`. A row
        without a candidate above −inf has choice −1, zero probabilities and FLAG_EMPTY; NaN among the scores or the
        log-sum-exps counts as −inf and sets FLAG_NAN.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit.
        ImplementationError: the implementation asked for cannot run.
    """
    device = scores.device
    check_tensor(scores, "scores", torch.float32, [None, None, None], device)
    models, rows, width = scores.shape
    if models < 1:
        raise ValueError("scores must hold at least one model, got none")
    check_int(cids, "cids", [rows, width], device)
    check_tensor(logsumexp, "logsumexp", torch.float32, [models, rows], device)
    check_int(primary_topk_cids, "primary_topk_cids", [rows, None], device)
    check_tensor(primary_max, "primary_max", torch.float32, [rows], device)
    check_int(primary_cid, "primary_cid", [rows], device)
    check_int(prefix_end, "prefix_end", [None], device)
    check_settings(settings, rows, models, device)
    if implementation is not None:
        dispatch.check_name(implementation)
    flat = (scores, cids, logsumexp, primary_topk_cids, primary_max, primary_cid, prefix_end, space_cid)
    return Fused(*_operator(*flat, list(settings), implementation or ""))


def _run(
    scores: Tensor,
    cids: Tensor,
    logsumexp: Tensor,
    primary_topk_cids: Tensor,
    primary_max: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: list[Tensor],
    implementation: str,
) -> tuple[Tensor, ...]:
    flat = (scores, cids, logsumexp, primary_topk_cids, primary_max, primary_cid, prefix_end, space_cid)
    return tuple(dispatch.call("fuse_candidates", scores.device, (*flat, built_settings(settings)), implementation))


def _fake(
    scores: Tensor,
    cids: Tensor,
    logsumexp: Tensor,
    primary_topk_cids: Tensor,
    primary_max: Tensor,
    primary_cid: Tensor,
    prefix_end: Tensor,
    space_cid: int,
    settings: list[Tensor],
    implementation: str,
) -> tuple[Tensor, ...]:
    models, rows, width = scores.shape
    f32, i32, flag = torch.float32, torch.int32, torch.bool
    shapes = (
        ((rows, width), f32),
        ((rows,), i32),
        ((rows,), f32),
        ((rows,), f32),
        ((models, rows), f32),
        ((rows,), f32),
        ((rows,), flag),
        ((rows,), flag),
        ((rows,), i32),
    )
    return tuple(scores.new_empty(shape, dtype=dtype) for shape, dtype in shapes)


_operator = register(
    "fuse_candidates(Tensor scores, Tensor cids, Tensor logsumexp, Tensor primary_topk_cids, Tensor primary_max, "
    "Tensor primary_cid, Tensor prefix_end, int space_cid, Tensor[] settings, str implementation) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
)
