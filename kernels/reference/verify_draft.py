"""Reference of `verify_draft`."""

from __future__ import annotations

import torch
from ensemble_decode.kernels.reference.gather_candidates import end_score, read
from ensemble_decode.kernels.reference.numerics import NEG_INF, first_where, masked, probability, row_max
from ensemble_decode.kernels.reference.topk_stats import softmax_stats
from ensemble_decode.kernels.types import FLAG_EMPTY, FLAG_NAN, TARGET_END, VerifyDraft
from torch import Tensor


def verify_draft(
    logits: Tensor, targets: Tensor, allowed: Tensor | None, eos_ids: Tensor, *, dtype: torch.dtype = torch.float32
) -> VerifyDraft:
    """See `ensemble_decode.kernels.verify_draft`."""
    x, nan = masked(logits, allowed, dtype)
    logsumexp, _ = softmax_stats(x)
    top = row_max(x)
    empty = top == NEG_INF
    argmax = torch.where(empty, -1, first_where(x == top.unsqueeze(-1))).to(torch.int32)

    is_end = targets == TARGET_END
    score = torch.where(is_end, end_score(x, eos_ids, None, dtype), read(x, targets.unsqueeze(1), None, dtype)[:, 0])
    is_eos = (argmax.unsqueeze(-1) == eos_ids).any(-1)
    is_argmax = torch.where(is_end, is_eos, (targets >= 0) & (argmax == targets))
    flags = nan * FLAG_NAN + empty * FLAG_EMPTY
    return VerifyDraft(probability(score, logsumexp), is_argmax, argmax, logsumexp, flags.to(torch.int32))
