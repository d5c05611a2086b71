"""The methods: one file or folder each, a frozen dataclass of settings with a ``round``."""

from ensemble_decode.methods.base import BaseMethod, Distribution, Method, StepContext, StepRow
from ensemble_decode.methods.gac import GaC
from ensemble_decode.methods.gates import JS, KL, Gate, MaxProb
from ensemble_decode.methods.safe.method import SAFE
from ensemble_decode.methods.sharpen import Sharpen
from ensemble_decode.methods.single import Single
from ensemble_decode.methods.specfuse.method import SpecFuse
from ensemble_decode.methods.unite import UniTE

__all__ = [
    "JS",
    "KL",
    "SAFE",
    "BaseMethod",
    "Distribution",
    "GaC",
    "Gate",
    "MaxProb",
    "Method",
    "Sharpen",
    "Single",
    "SpecFuse",
    "StepContext",
    "StepRow",
    "UniTE",
]
