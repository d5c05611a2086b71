"""The operators in C++ for CPU tensors: vectorised, threaded as torch is set, the same bits on any thread count."""

from ensemble_decode.kernels.native_.candidates import gather_candidates, union_topk
from ensemble_decode.kernels.native_.extension import available_isas, cuda_stage, isa, set_isa, unavailable_reason
from ensemble_decode.kernels.native_.fuse import fuse_candidates, fuse_full, fuse_step
from ensemble_decode.kernels.native_.sample_tokens import sample_tokens, token_probs
from ensemble_decode.kernels.native_.topk_stats import topk_stats
from ensemble_decode.kernels.native_.verify_draft import verify_draft

implements = frozenset(
    {
        "fuse_candidates",
        "fuse_full",
        "fuse_step",
        "gather_candidates",
        "sample_tokens",
        "token_probs",
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
    "sample_tokens",
    "set_isa",
    "token_probs",
    "topk_stats",
    "unavailable_reason",
    "union_topk",
    "verify_draft",
]
