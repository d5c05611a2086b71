"""Devices of the cost model: what a card's data sheet states, or what was measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One device, by what bounds a forward pass on it.

    ``memory``: bytes. ``bandwidth``: bytes/s, ``flops``: dense 16-bit operations/s, as stated or measured.
    ``bandwidth_share`` and ``flops_share``: how much of them a forward reaches. ``layer_seconds``, ``forward_seconds``:
    time that one layer, and one forward, take on top, whatever their size (launches, host). ``fuse_seconds``: likewise
    the operators after the models; ``row_seconds``: host work per row and round. ``measured``: False where the figures
    come from a data sheet, so that everything computed from them is a prediction.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    bandwidth_share: float = 0.7
    flops_share: float = 0.5
    layer_seconds: float = 1e-5
    forward_seconds: float = 1e-4
    fuse_seconds: float = 3e-5
    row_seconds: float = 1e-4
    measured: bool = False

    def seconds(self, bytes_moved: float, operations: float) -> float:
        """The longer of moving the bytes and doing the operations (the roofline)."""
        moving = bytes_moved / (self.bandwidth * self.bandwidth_share)
        return max(moving, operations / (self.flops * self.flops_share))


# Bandwidth, dense bfloat16 rate and memory as the makers' data sheets state them (without sparsity). The shares are
# assumptions: a decode
# step that reads 70 % of the stated bandwidth, and products at 50 % of the stated rate. The overheads assume captured
# steps
# (CUDA graphs); a step that Python launches layer by layer takes several times the layer overhead.
DEVICES = {
    device.name: device
    for device in (
        Device("rtx4090", 24e9, 1.008e12, 165e12),
        Device("l40s", 48e9, 0.864e12, 362e12),
        Device("a100-80gb", 80e9, 2.039e12, 312e12),
        Device("h100-sxm", 80e9, 3.35e12, 989e12),
        Device("h200", 141e9, 4.8e12, 989e12),
        Device("b200", 180e9, 7.7e12, 2250e12),
        Device("mi300x", 192e9, 5.3e12, 1307e12),
    )
}
