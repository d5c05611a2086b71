"""The operators in C++ for CPU tensors: vectorised, threaded as torch is set, the same bits on any thread count."""

from .candidates import gather_candidates, union_topk
from .extension import available_isas, cuda_stage, isa, set_isa, unavailable_reason
from .fuse import fuse_candidates, fuse_full, fuse_step
from .topk_stats import topk_stats
from .verify_draft import verify_draft

implements = frozenset(
    {
        "fuse_candidates",
        "fuse_full",
        "fuse_step",
        "gather_candidates",
        "topk_stats",
        "union_topk",
        "verify_draft",
    }
)
implements_cuda = frozenset({"topk_stats"} if cuda_stage() is not None else ())

__all__ = [
    "available_isas",
    "fuse_candidates",
    "fuse_full",
    "fuse_step",
    "gather_candidates",
    "implements",
    "implements_cuda",
    "isa",
    "set_isa",
    "topk_stats",
    "unavailable_reason",
    "union_topk",
    "verify_draft",
]
