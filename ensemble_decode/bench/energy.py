"""Energy, where the device counts it: NVML's counter of joules since the driver was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Meter:
    """Joules used so far by the CUDA devices of a run. Elsewhere ``reports`` is False, ``read`` gives 0 and ``reason``
    says why."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._handles: list[Any] = []
        self._nvml: Any = None
        self.reason = ""
        if not devices or any(device.type != "cuda" for device in devices):
            self.reason = "not reported: only CUDA devices are read"
            return
        try:
            import pynvml
        except ImportError:
            self.reason = "not reported: reading it needs nvidia-ml-py, pip install 'ensemble-decode[energy]'"
            return
        try:
            pynvml.nvmlInit()
            for device in sorted(set(devices), key=str):
                uuid = str(torch.cuda.get_device_properties(device).uuid)
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
                self._handles.append(handle)
        except pynvml.NVMLError as error:
            self._handles = []
            self.reason = f"not reported: {error}"
            return
        self._nvml = pynvml

    @property
    def reports(self) -> bool:
        """Whether a device in use reports its energy."""
        return bool(self._handles)

    def read(self) -> float:
        """Joules of all devices together, since some moment in the past."""
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles) / 1000
