"""What the CPU does for bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch


def bfloat16_products() -> Literal["instructions", "float32 vectors", "emulated"]:
    """How this CPU multiplies bfloat16 matrices.

    Returns:
        "instructions": AVX-512 BF16, AMX or the Arm extension: faster than float32. "float32 vectors": by AVX-512
        without these, about as fast as float32. "emulated": torch goes element by element, several times slower than
        float32 from a few rows on.
    """
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported"):
        if getattr(torch.cpu, probe, lambda: False)():
            return "instructions"
    if _listed_by_linux_on_arm():
        return "instructions"
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return "emulated" if supported is not None and not supported() else "float32 vectors"


def _listed_by_linux_on_arm() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("Features") and " bf16" in line for line in lines)
