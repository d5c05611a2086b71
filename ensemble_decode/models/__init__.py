"""Finding, fetching, converting and loading models."""

from typing import TYPE_CHECKING, Any

from ensemble_decode.models.catalogue import DEMO_MODELS, DemoModel
from ensemble_decode.models.demo import DemoStatus, demo_path, fetch_demo, list_demos, remove_demo
from ensemble_decode.models.specs import ModelSpec, parse_spec

if TYPE_CHECKING:
    from ensemble_decode.models.loading import LoadedModel, load, load_all

__all__ = [
    "DEMO_MODELS", "DemoModel", "DemoStatus", "LoadedModel", "ModelSpec",
    "demo_path", "fetch_demo", "list_demos", "load", "load_all", "parse_spec", "remove_demo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import torch and transformers only when a model is loaded: listing and fetching need neither."""
    if name in ("LoadedModel", "load", "load_all"):
        from importlib import import_module

        return getattr(import_module("ensemble_decode.models.loading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
