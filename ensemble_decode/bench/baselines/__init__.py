"""How people ensemble today, written here from the papers' descriptions and labelled so, to measure against.

No code of others is in here. Every baseline gets the same weights, dtype, threads and linear layers as this package's runners, so
that what differs is the way of decoding.
"""

from .generate import AssistedGenerate, TransformersGenerate
from .segments import UncachedSegments
from .unite import DictionaryUniTE

__all__ = ["AssistedGenerate", "DictionaryUniTE", "TransformersGenerate", "UncachedSegments"]
