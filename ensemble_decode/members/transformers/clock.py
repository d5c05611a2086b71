"""Seconds spent in a section: host clock on a CPU, CUDA events on a GPU, where the host runs ahead of the device."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch


class SectionClock:
    """``with clock: ...`` adds the section's time to ``seconds``.

    Args:
        device: Whose time counts.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._begun: Any = None
        self._pending: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = self._now()
        if self._cuda:
            self._pending.append((self._begun, ended))
            if len(self._pending) >= 1024:
                self._collect()
        else:
            self._seconds += ended - self._begun

    def _collect(self) -> None:
        for begun, ended in self._pending:
            ended.synchronize()
            self._seconds += begun.elapsed_time(ended) / 1000
        self._pending.clear()

    @property
    def seconds(self) -> float:
        """Seconds of all sections so far. On a GPU, reading it waits for the device."""
        self._collect()
        return self._seconds
