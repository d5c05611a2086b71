"""The methods by name, as text, JSON and the command line have them."""

from __future__ import annotations

from ensemble_decode.methods.gac import GaC
from ensemble_decode.methods.safe.method import SAFE
from ensemble_decode.methods.single import Single
from ensemble_decode.methods.specfuse.method import SpecFuse
from ensemble_decode.methods.unite import UniTE
from ensemble_decode.schema.options import Choice

METHODS = Choice("a method", {"single": Single, "unite": UniTE, "gac": GaC, "safe": SAFE, "specfuse": SpecFuse})
"""Every method that has a name. A class in here is a frozen dataclass that subclasses ``Options`` and ``Method``."""
