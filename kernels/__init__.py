"""Fused operators over batched logits: no model, no tokenizer, tensors in, tensors out."""

# In the root of a checkout Python finds this folder as `kernels`, the name of a package that transformers looks for and
# imports.
# There it stays empty: transformers then goes on without that package, and no operator is registered twice.
if __name__ != "kernels":
    from ensemble_decode.kernels.dispatch import ImplementationError, status, trace_calls, use
    from ensemble_decode.kernels.full_distribution import full_distribution
    from ensemble_decode.kernels.fuse_candidates import fuse_candidates
    from ensemble_decode.kernels.fuse_full import fuse_full
    from ensemble_decode.kernels.fuse_step import fuse_step
    from ensemble_decode.kernels.gather_candidates import gather_candidates
    from ensemble_decode.kernels.sample_tokens import sample_tokens
    from ensemble_decode.kernels.token_probs import token_probs
    from ensemble_decode.kernels.topk_stats import topk_stats
    from ensemble_decode.kernels.types import (
        FLAG_EMPTY,
        FLAG_NAN,
        TARGET_END,
        TARGET_SKIP,
        Fused,
        FuseSettings,
        FuseStep,
        SampleSettings,
        TopkStats,
        VerifyDraft,
        VocabTensors,
    )
    from ensemble_decode.kernels.uniform import uniform
    from ensemble_decode.kernels.union_topk import union_topk
    from ensemble_decode.kernels.verify_draft import verify_draft

__all__ = [
    "FLAG_EMPTY",
    "FLAG_NAN",
    "TARGET_END",
    "TARGET_SKIP",
    "FuseSettings",
    "FuseStep",
    "Fused",
    "ImplementationError",
    "SampleSettings",
    "TopkStats",
    "VerifyDraft",
    "VocabTensors",
    "full_distribution",
    "fuse_candidates",
    "fuse_full",
    "fuse_step",
    "gather_candidates",
    "sample_tokens",
    "status",
    "token_probs",
    "topk_stats",
    "trace_calls",
    "uniform",
    "union_topk",
    "use",
    "verify_draft",
]
