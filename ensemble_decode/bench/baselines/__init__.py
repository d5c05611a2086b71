"""How people ensemble today, written here from the papers' descriptions and labelled so, to measure against.

No code of others is in here. Every baseline gets the same weights, dtype, threads and linear layers as this package's
runners, so that what differs is the way of decoding.
"""

from ensemble_decode.bench.baselines.generate import AssistedGenerate, TransformersGenerate
from ensemble_decode.bench.baselines.segments import UncachedSegments
from ensemble_decode.bench.baselines.unite import DictionaryUniTE

__all__ = ["AssistedGenerate", "DictionaryUniTE", "TransformersGenerate", "UncachedSegments"]
