"""Several language models with different tokenizers write one text: exact, batched, fast.

``ensemble_decode.kernels`` holds the fused operators over logits; everything else decodes with Hugging Face models on
them. Names are imported on first use, so that ``import ensemble_decode`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ensemble_decode.version import __version__

if TYPE_CHECKING:
    from ensemble_decode.decode.prompts import Rendering, TokenPrompt
    from ensemble_decode.decode.requests import BatchRequest, BatchResult
    from ensemble_decode.decode.session import Generation, Session
    from ensemble_decode.determination import Recommendation, Report, Rules, determine
    from ensemble_decode.ensemble import Ensemble
    from ensemble_decode.errors import (
        CacheError,
        CacheLimitError,
        ContextError,
        EnsembleError,
        InputError,
        ModelError,
        TokenizerError,
    )
    from ensemble_decode.methods import JS, KL, SAFE, GaC, MaxProb, Sharpen, Single, SpecFuse, UniTE
    from ensemble_decode.outputs import Completion, Delta, SegmentRound, Stats, TraceStep
    from ensemble_decode.settings import Sampling
    from ensemble_decode.vocab.aligned import AlignedVocab
    from ensemble_decode.vocab.model import ModelVocab

_HOME = {
    **dict.fromkeys(("BatchRequest", "BatchResult"), "decode.requests"),
    **dict.fromkeys(("Generation", "Session"), "decode.session"),
    **dict.fromkeys(("Rendering", "TokenPrompt"), "decode.prompts"),
    "BatchRequest": "decode.requests",
    "TokenPrompt": "decode.prompts",
    **dict.fromkeys(("Recommendation", "Report", "Rules", "determine"), "determination"),
    "Ensemble": "ensemble",
    **dict.fromkeys(
        (
            "CacheError",
            "ContextError",
            "EnsembleError",
            "InputError",
            "CacheLimitError",
            "ModelError",
            "TokenizerError",
        ),
        "errors",
    ),
    **dict.fromkeys(("JS", "KL", "SAFE", "GaC", "MaxProb", "Sharpen", "Single", "SpecFuse", "UniTE"), "methods"),
    "Sampling": "settings",
    **dict.fromkeys(("Completion", "Delta", "SegmentRound", "Stats", "TraceStep"), "outputs"),
    "AlignedVocab": "vocab.aligned",
    "ModelVocab": "vocab.model",
}

__all__ = [
    "JS",
    "KL",
    "SAFE",
    "AlignedVocab",
    "BatchRequest",
    "BatchResult",
    "CacheError",
    "CacheLimitError",
    "Completion",
    "ContextError",
    "Delta",
    "Ensemble",
    "EnsembleError",
    "GaC",
    "Generation",
    "InputError",
    "MaxProb",
    "ModelError",
    "ModelVocab",
    "Recommendation",
    "Rendering",
    "Report",
    "Rules",
    "Sampling",
    "SegmentRound",
    "Session",
    "Sharpen",
    "Single",
    "SpecFuse",
    "Stats",
    "TokenPrompt",
    "TokenizerError",
    "TraceStep",
    "UniTE",
    "__version__",
    "determine",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"ensemble_decode.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
