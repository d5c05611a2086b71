"""The operators as Triton kernels: for CUDA devices, and on a CPU through Triton's interpreter.

Two stages (`stream`, `select`): one read of the logits into partial sums and group maxima, then one program per row
that selects, and in `fuse_step` does everything else up to the choice. `fuse_full` adds passes over all candidates.
"""

from .launch import limit_reason, unavailable_reason

implements = frozenset(
    {"topk_stats", "union_topk", "gather_candidates", "fuse_candidates", "fuse_step", "fuse_full", "verify_draft"}
)

if unavailable_reason() != "triton is not installed":
    from .fuse_candidates import fuse_candidates as fuse_candidates
    from .fuse_full import fuse_full as fuse_full
    from .fuse_step import fuse_step as fuse_step
    from .gather_candidates import gather_candidates as gather_candidates
    from .topk_stats import topk_stats as topk_stats
    from .union_topk import union_topk as union_topk
    from .verify_draft import verify_draft as verify_draft

__all__ = ["implements", "limit_reason", "unavailable_reason"]
