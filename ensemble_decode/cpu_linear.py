"""Linear layers with bfloat16 weights on a CPU that has no bfloat16 instructions.

There torch multiplies bfloat16 matrices element by element: right for one row (the weights are read once, at half the
bytes of float32), several times slower than float32 from a few rows on. Here the weights are converted to float32 in
blocks that stay in the cache and multiplied by the float32 routine: they are still read once as bfloat16, no second copy
of the model is kept, sums are float32 as in torch's own kernel, and the result is rounded once to bfloat16.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

FEW_ROWS = 4  # below this many rows torch's own kernel is faster (docs/caches.md has the figures)
_BLOCK = 1 << 18  # elements of a converted block: 1 MiB of float32, about a core's second-level cache


def lacks_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are emulated on this CPU."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and not supported()


def upcast_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear(x, weight, bias)`` of half-precision tensors through float32: ``x`` ``[..., I]``, ``weight`` ``[O, I]``.

    Float32 sums, one rounding to ``x.dtype`` at the end.
    """
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).float()
    out = torch.empty(rows.shape[0], outputs, dtype=x.dtype)
    step = max(_BLOCK // inputs, 32)
    for first in range(0, outputs, step):
        block = weight[first : first + step].float()
        product = torch.mm(rows, block.t())
        if bias is not None:
            product += bias[first : first + step]
        out[:, first : first + step] = product
    return out.view(*x.shape[:-1], outputs)


def _forward(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if x.numel() < FEW_ROWS * x.shape[-1]:
        return linear(x, layer.weight, layer.bias)
    return upcast_linear(x, layer.weight, layer.bias)


def use_upcast_linear(model: torch.nn.Module) -> int:
    """Make every bfloat16 ``nn.Linear`` of a model on the CPU use ``upcast_linear`` from a few rows on; how many do."""
    changed = 0
    for layer in model.modules():
        if (
            type(layer) is torch.nn.Linear
            and layer.weight.dtype == torch.bfloat16
            and layer.weight.device.type == "cpu"
        ):
            layer.forward = _forward.__get__(layer)  # type: ignore[method-assign]
            changed += 1
    return changed
