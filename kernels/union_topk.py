"""`union_topk`: the union of every model's top-k ids as candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels import dispatch
from ensemble_decode.kernels.checks import check_int
from ensemble_decode.kernels.library import register
from torch import Tensor


def union_topk(
    ids: Sequence[Tensor], to_cid: Sequence[Tensor], *, implementation: str | None = None
) -> tuple[Tensor, Tensor]:
    """Map every model's ids to candidates and take their union, row by row (UniTE, arXiv 2410.03777, section 4).

    Args:
        ids: per model i32 ``[B, k_m]``, the top-k ids; −1 (no entry) is skipped.
        to_cid: per model i32 ``[V_m]``, the candidate of each id; ids at −1 are skipped.
        implementation: overrides `use` for this call.

    Returns:
        ``cids`` i32 ``[B, Σ k_m]``, ascending, without duplicates, −1 padded at the end; ``count`` i32 ``[B]``.

    Raises:
        TypeError, ValueError: a type, shape or device does not fit, or the lists differ in length.
        ImplementationError: the implementation asked for cannot run.
    """
    if len(ids) < 1 or len(ids) != len(to_cid):
        raise ValueError(f"ids and to_cid need one entry per model, got {len(ids)} and {len(to_cid)}")
    for m, (tensor, table) in enumerate(zip(ids, to_cid, strict=True)):
        check_int(tensor, f"ids[{m}]", [ids[0].shape[0], None], ids[0].device)
        check_int(table, f"to_cid[{m}]", [None], ids[0].device)
    if implementation is not None:
        dispatch.check_name(implementation)
    cids, count = _operator(list(ids), list(to_cid), implementation or "")
    return cids, count


def _run(ids: list[Tensor], to_cid: list[Tensor], implementation: str) -> tuple[Tensor, Tensor]:
    return dispatch.call("union_topk", ids[0].device, (ids, to_cid), implementation)


def _fake(ids: list[Tensor], to_cid: list[Tensor], implementation: str) -> tuple[Tensor, Tensor]:
    rows = ids[0].shape[0]
    return (
        ids[0].new_empty((rows, sum(x.shape[1] for x in ids)), dtype=torch.int32),
        ids[0].new_empty((rows,), dtype=torch.int32),
    )


_operator = register("union_topk(Tensor[] ids, Tensor[] to_cid, str implementation) -> (Tensor, Tensor)", _run, _fake)
