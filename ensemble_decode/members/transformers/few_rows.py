"""Linear layers for a few rows on x86 CPUs that have neither bfloat16 nor AVX-512 instructions.

There torch multiplies bfloat16 matrices element by element. That is right for one row (the weights are read once, at
half the bytes of float32), and several times slower than float32 from a few rows on. Its float32 product is far from
the processor's limits where a few rows meet many outputs. The C++ extension (AVX2) reads the weights once. It widens
bfloat16 ones to float32 in blocks that stay in the cache, keeps no second copy of the model, sums in float32 as torch's
own kernels do, and rounds the result once. A row's bits do not depend on the rows beside it. Without the extension,
torch's float32 product takes the widened blocks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import linear

from ensemble_decode.kernels.library import register
from ensemble_decode.kernels.native_ import extension
from ensemble_decode.members.transformers.cpu import bfloat16_products

# Below so many rows torch's own kernel is faster (docs/caches.md has the figures): than the extension, and than blocks.
FEW_ROWS = 2
FEW_ROWS_IN_BLOCKS = 6
LARGE = 1 << 23  # float32 weights from which on it is not: past any cache torch's own reads them at half the speed
_BLOCK = 1 << 18  # elements of a converted block: 1 MiB of float32, about a core's second-level cache


def runs_native() -> bool:
    """Whether the C++ extension is there and has the loop for the instruction set in use."""
    return extension.unavailable_reason() is None and bool(extension.core().linear_available())


def helps(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether ``few_rows_linear`` is faster than torch on a device: on a CPU only, and not on every one.

    Args:
        dtype: That of the weights.
        device: Where they are.
    """
    if device.type != "cpu":
        return False
    if dtype == torch.bfloat16:
        return bfloat16_products() == "emulated"
    return dtype == torch.float32 and runs_native() and extension.isa() == "avx2"


def few_rows(weight: torch.Tensor) -> int:
    """From how many rows on ``few_rows_linear`` is faster than torch on this CPU, for these weights ``[O, I]``."""
    if not runs_native():
        return FEW_ROWS_IN_BLOCKS
    return 1 if weight.dtype == torch.float32 and weight.numel() >= LARGE else FEW_ROWS


def few_rows_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.nn.functional.linear`` for a few rows on a CPU: float32 sums, one rounding at the end.

    Args:
        x: ``[..., I]``, bfloat16 or float32.
        weight: ``[O, I]``, of the same dtype.
        bias: ``[O]``, of the same dtype, or None.

    Returns:
        ``[..., O]``, of the same dtype.
    """
    if torch.compiler.is_compiling():
        out: torch.Tensor = _operator(x, weight, bias)
        return out
    return _run(x, weight, bias)


def _run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    outputs, inputs = weight.shape
    x, weight = x.resolve_neg(), weight.resolve_neg()  # memory is read as it is
    rows = x.reshape(-1, inputs).float()
    out = torch.empty(rows.shape[0], outputs, dtype=x.dtype)
    if runs_native() and weight.is_contiguous():
        bias = None if bias is None else bias.resolve_neg().contiguous()
        extension.core().linear(*extension.shared((rows.contiguous(), weight, bias, out)), torch.get_num_threads())
    else:
        in_blocks(rows, weight, bias, out)
    return out.view(*x.shape[:-1], outputs)


def in_blocks(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """A linear layer by torch's float32 product, a block of outputs at a time.

    Args:
        rows: float32 ``[R, I]``.
        weight: ``[O, I]``.
        bias: ``[O]`` or None.
        out: ``[R, O]``, written.
    """
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


_operator = register("few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _run, _fake)


def use_few_rows_linear(model: torch.nn.Module) -> int:
    """Make the linear layers of a model on the CPU use ``few_rows_linear`` from a few rows on.

    Args:
        model: Its ``nn.Linear`` layers with plain bfloat16 or float32 weights change; no other does.

    Returns:
        How many layers changed.
    """
    changed = 0
    for layer in model.modules():
        if (
            type(layer) is torch.nn.Linear
            and _is_plain(layer.weight)
            and _is_plain(layer.bias)
            and layer.weight.dtype in (torch.bfloat16, torch.float32)
            and layer.weight.device.type == "cpu"
        ):
            layer.forward = partial(_forward, layer, few_rows(layer.weight))  # type: ignore[method-assign]
            changed += 1
    return changed


def _is_plain(tensor: torch.Tensor | None) -> bool:
    """Whether the tensor's memory holds its elements. That of a subclass (torchao's quantised weights) holds others."""
    return tensor is None or type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _forward(layer: torch.nn.Linear, least: int, x: torch.Tensor) -> torch.Tensor:
    if x.numel() < least * x.shape[-1] or not _is_plain(layer.weight):  # weights may be quantised later
        return linear(x, layer.weight, layer.bias)
    return few_rows_linear(x, layer.weight, layer.bias)
