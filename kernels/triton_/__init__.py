"""The operators as Triton kernels: for CUDA devices, and on a CPU through Triton's interpreter.

Two stages (`stream`, `select`): one read of the logits into partial sums and group maxima, then one program per row
that selects, and in `fuse_step` does everything else up to the choice. `fuse_full` adds passes over all candidates.
"""

from ensemble_decode.kernels.triton_.launch import limit_reason, unavailable_reason

implements = frozenset(
    {"topk_stats", "union_topk", "gather_candidates", "fuse_candidates", "fuse_step", "fuse_full", "verify_draft"}
)

if unavailable_reason() != "triton is not installed":
    from ensemble_decode.kernels.triton_.fuse_candidates import fuse_candidates
    from ensemble_decode.kernels.triton_.fuse_full import fuse_full
    from ensemble_decode.kernels.triton_.fuse_step import fuse_step
    from ensemble_decode.kernels.triton_.gather_candidates import gather_candidates
    from ensemble_decode.kernels.triton_.topk_stats import topk_stats
    from ensemble_decode.kernels.triton_.union_topk import union_topk
    from ensemble_decode.kernels.triton_.verify_draft import verify_draft

__all__ = ["implements", "limit_reason", "unavailable_reason"]
