"""Offline batches: many prompts at high throughput, from an iterable or from file to file."""

from .requests import BatchRequest, BatchResult, Order
from .run import BatchRun, Counts

__all__ = ["BatchRequest", "BatchResult", "BatchRun", "Counts", "Order"]
