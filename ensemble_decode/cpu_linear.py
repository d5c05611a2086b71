"""Linear layers with bfloat16 weights on a CPU that has no bfloat16 instructions.

There torch multiplies bfloat16 matrices element by element: right for one row (the weights are read once, at half the
bytes of float32), several times slower than float32 from a few rows on. Here the weights are widened to float32 in blocks
that stay in the cache and multiplied there: they are still read once as bfloat16, no second copy of the model is kept,
sums are float32 as in torch's own kernel, and the result is rounded once to bfloat16. The C++ extension does both in one
pass (AVX2 and up), with the same bits for a row whatever rows stand beside it; without it torch's float32 product does.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from ensemble_decode.kernels.library import register
from ensemble_decode.kernels.native_ import extension

# Below so many rows torch's own kernel is faster (docs/caches.md has the figures): than the extension, and than blocks.
FEW_ROWS = 2
FEW_ROWS_IN_BLOCKS = 6
_BLOCK = 1 << 18  # elements of a converted block: 1 MiB of float32, about a core's second-level cache


def lacks_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are emulated on this CPU."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and not supported()


def runs_native() -> bool:
    """Whether the C++ extension is there and has the loop for the instruction set in use."""
    return extension.unavailable_reason() is None and bool(extension.core().linear_available())


def few_rows() -> int:
    """From how many rows on ``upcast_linear`` is the faster way here."""
    return FEW_ROWS if runs_native() else FEW_ROWS_IN_BLOCKS


def upcast_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``linear(x, weight, bias)`` of bfloat16 tensors through float32: ``x`` ``[..., I]``, ``weight`` ``[O, I]``.

    Float32 sums, one rounding to ``x.dtype`` at the end. Returns ``[..., O]``.
    """
    if torch.compiler.is_compiling():
        out: torch.Tensor = _operator(x, weight, bias)
        return out
    return _run(x, weight, bias)


def _run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).float()
    out = torch.empty(rows.shape[0], outputs, dtype=x.dtype)
    if runs_native() and weight.is_contiguous():
        bias = None if bias is None else bias.detach().contiguous()
        extension.core().linear(rows.detach(), weight.detach(), bias, out, torch.get_num_threads())
    else:
        in_blocks(rows, weight, bias, out)
    return out.view(*x.shape[:-1], outputs)


def in_blocks(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """The layer by torch's float32 product, a block of outputs at a time: ``rows`` f32 ``[R, I]`` into ``out`` ``[R, O]``."""
    outputs, inputs = weight.shape
    step = max(_BLOCK // inputs, 32)
    for first in range(0, outputs, step):
        block = weight[first : first + step].float()
        product = torch.mm(rows, block.t())
        if bias is not None:
            product += bias[first : first + step]
        out[:, first : first + step] = product


def _fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_operator = register("upcast_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _run, _fake)


def use_upcast_linear(model: torch.nn.Module) -> int:
    """Make every bfloat16 ``nn.Linear`` of a model on the CPU use ``upcast_linear`` from a few rows on; how many do."""
    changed = 0
    least = few_rows()

    def forward(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if x.numel() < least * x.shape[-1]:
            return linear(x, layer.weight, layer.bias)
        return upcast_linear(x, layer.weight, layer.bias)

    for layer in model.modules():
        if (
            type(layer) is torch.nn.Linear
            and layer.weight.dtype == torch.bfloat16
            and layer.weight.device.type == "cpu"
        ):
            layer.forward = forward.__get__(layer)  # type: ignore[method-assign]
            changed += 1
    return changed
