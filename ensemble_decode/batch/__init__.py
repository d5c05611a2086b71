"""Offline batches: many prompts at high throughput, from an iterable or from file to file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .requests import BatchRequest, BatchResult, Order
    from .run import BatchRun, Counts

_HOME = {"BatchRequest": "requests", "BatchResult": "requests", "Order": "requests", "BatchRun": "run", "Counts": "run"}

__all__ = ["BatchRequest", "BatchResult", "BatchRun", "Counts", "Order"]


def __getattr__(name: str) -> Any:
    if name in _HOME:  # on first use: what writes output needs no torch
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
