"""The operators in C++ for CPU tensors: vectorised, threaded as torch is set, the same bits on any number of threads."""

from .extension import available_isas, isa, set_isa, unavailable_reason
from .topk_stats import topk_stats

implements = frozenset({"topk_stats"})

__all__ = ["available_isas", "implements", "isa", "set_isa", "topk_stats", "unavailable_reason"]
