"""The methods: one file each, a frozen dataclass of settings with a ``round``."""

from .base import BaseMethod, Method
from .gac import GaC
from .gates import JS, KL, Gate, MaxProb
from .safe import SAFE
from .sharpen import Sharpen
from .single import Single
from .specfuse import SpecFuse
from .unite import UniTE

__all__ = [
    "JS",
    "KL",
    "SAFE",
    "BaseMethod",
    "GaC",
    "Gate",
    "MaxProb",
    "Method",
    "Sharpen",
    "Single",
    "SpecFuse",
    "UniTE",
]
