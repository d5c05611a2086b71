"""Where models come from: names, demo downloads, GGUF conversion, the cache folder."""

from ensemble_decode.members.sources.catalogue import DEMO_MODELS, DemoModel
from ensemble_decode.members.sources.demo import DemoStatus, demo_path, fetch_demo, list_demos, remove_demo
from ensemble_decode.members.sources.specs import ModelSpec, parse_spec

__all__ = [
    "DEMO_MODELS", "DemoModel", "DemoStatus", "ModelSpec",
    "demo_path", "fetch_demo", "list_demos", "parse_spec", "remove_demo",
]  # fmt: skip
