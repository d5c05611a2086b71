"""The operators in plain torch, vectorised over rows: what every other implementation must equal.

Every function takes `dtype`, the type it computes in: float32, or float64 where it serves as an oracle.
"""

from ensemble_decode.kernels.reference.fuse_candidates import fuse_candidates
from ensemble_decode.kernels.reference.fuse_full import full_distribution, fuse_full
from ensemble_decode.kernels.reference.fuse_step import fuse_step
from ensemble_decode.kernels.reference.gather_candidates import gather_candidates
from ensemble_decode.kernels.reference.sample_tokens import sample_tokens, token_probs
from ensemble_decode.kernels.reference.topk_stats import topk_stats
from ensemble_decode.kernels.reference.uniform import uniform
from ensemble_decode.kernels.reference.union_topk import union_topk
from ensemble_decode.kernels.reference.verify_draft import verify_draft

__all__ = [
    "full_distribution",
    "fuse_candidates",
    "fuse_full",
    "fuse_step",
    "gather_candidates",
    "sample_tokens",
    "token_probs",
    "topk_stats",
    "uniform",
    "union_topk",
    "verify_draft",
]
