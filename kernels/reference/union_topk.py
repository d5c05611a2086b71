"""Reference of `union_topk`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

_NONE = 2**31 - 1


def union_topk(ids: Sequence[Tensor], to_cid: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """See `ensemble_decode.kernels.union_topk`."""
    cids = torch.cat([candidates(x, table) for x, table in zip(ids, to_cid, strict=True)], 1)
    cids = torch.where(cids < 0, _NONE, cids).sort(1).values
    repeated = cids == pad(cids, (1, 0), value=-1)[:, :-1]
    cids = torch.where(repeated, _NONE, cids).sort(1).values
    return torch.where(cids == _NONE, -1, cids), (cids != _NONE).sum(1).to(torch.int32)


def candidates(ids: Tensor, to_cid: Tensor) -> Tensor:
    """The candidate of each id, −1 where the id is −1 or has none."""
    valid = (ids >= 0) & (ids < to_cid.shape[0])
    return torch.where(valid, to_cid[torch.where(valid, ids, 0)], -1)
