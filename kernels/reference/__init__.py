"""The operators in plain torch, vectorised over rows: what every other implementation must equal.

Every function takes `dtype`, the type it computes in: float32, or float64 where it serves as an oracle.
"""

from .fuse_candidates import fuse_candidates
from .fuse_full import fuse_full
from .fuse_step import fuse_step
from .gather_candidates import gather_candidates
from .topk_stats import topk_stats
from .union_topk import union_topk
from .verify_draft import verify_draft

__all__ = [
    "fuse_candidates",
    "fuse_full",
    "fuse_step",
    "gather_candidates",
    "topk_stats",
    "union_topk",
    "verify_draft",
]
