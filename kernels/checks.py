"""Argument checks that the public operators share; they look at shapes and types only, never at values on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ensemble_decode.kernels.types import FuseSettings, SampleSettings, VocabTensors
from torch import Tensor

LOGITS_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_K = 1024
"""Largest k of a top-k; sets of candidates are small by design."""


def words(vocabulary: int) -> int:
    """Number of 32-bit words of a bitmask over `vocabulary` ids."""
    return (vocabulary + 31) // 32


def check_logits(logits: Tensor, name: str = "logits") -> None:
    """Two axes, a supported type, unit stride along the vocabulary, at least one id."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(logits).__name__}")
    if logits.dtype not in LOGITS_DTYPES:
        raise TypeError(f"{name} must be float32, bfloat16 or float16, got {logits.dtype}")
    if logits.dim() != 2:
        raise ValueError(f"{name} must have shape [rows, vocabulary], got {list(logits.shape)}")
    if logits.shape[1] < 1:
        raise ValueError(f"{name} must have at least one id, got shape {list(logits.shape)}")
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError(f"{name} must have stride 1 along the vocabulary, got {logits.stride(1)}")


def check_int(tensor: Tensor, name: str, shape: Sequence[int | None], device: torch.device) -> None:
    """An int32 tensor of the given shape (None: any length) on `device`."""
    check_tensor(tensor, name, torch.int32, shape, device)


def check_tensor(
    tensor: Tensor, name: str, dtype: torch.dtype, shape: Sequence[int | None], device: torch.device
) -> None:
    """A tensor of the given type and shape (None: any length) on `device`."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    have = tensor.shape
    fits = len(have) == len(shape)
    for i, want in enumerate(shape if fits else ()):  # a plain loop: dozens of tensors are checked on every step
        if want is not None and have[i] != want:
            fits = False
    if not fits:
        right = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have shape [{right}], got {list(have)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device} but the logits are on {device}")


def check_allowed(allowed: Tensor | None, logits: Tensor, name: str = "allowed") -> None:
    """A bitmask [1 or rows, ⌈V/32⌉] int32 on the logits' device, or None."""
    if allowed is None:
        return
    rows, width = logits.shape[0], words(logits.shape[1])
    check_int(allowed, name, [None, width], logits.device)
    if allowed.shape[0] not in (1, rows):
        raise ValueError(f"{name} must have 1 or {rows} rows, got {allowed.shape[0]}")


def check_k(k: int) -> None:
    """1 to MAX_K."""
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k must be within 1 and {MAX_K}, got {k}")


def check_models(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings) -> None:
    """Logits, vocabulary and settings of one fusion fit together."""
    models = len(logits)
    if models < 1:
        raise ValueError("logits must name at least one model, got none")
    for name in ("to_cid", "exact_id", "piece_id", "allowed", "eos_ids"):
        if len(getattr(vocab, name)) != models:
            raise ValueError(f"vocab.{name} is for {len(getattr(vocab, name))} models, the logits are for {models}")
    device, rows = logits[0].device, logits[0].shape[0]
    for m, x in enumerate(logits):
        check_logits(x, f"logits[{m}]")
        if x.shape[0] != rows:
            raise ValueError(f"logits[{m}] has {x.shape[0]} rows, logits[0] has {rows}")
        if x.device != device:
            raise ValueError(f"logits[{m}] is on {x.device}, logits[0] on {device}")
        check_int(vocab.to_cid[m], f"vocab.to_cid[{m}]", [x.shape[1]], device)
        check_int(vocab.exact_id[m], f"vocab.exact_id[{m}]", [vocab.size], device)
        check_int(vocab.piece_id[m], f"vocab.piece_id[{m}]", [vocab.size], device)
        check_allowed(vocab.allowed[m], x, f"vocab.allowed[{m}]")
        check_int(vocab.eos_ids[m], f"vocab.eos_ids[{m}]", [None], device)
    check_int(vocab.prefix_end, "vocab.prefix_end", [vocab.size], device)
    check_settings(settings, rows, models, device)


_SETTINGS_DTYPES = {"seed": torch.int64, "row": torch.int64, "step": torch.int64} | dict.fromkeys(
    ("weights", "threshold", "min_prob", "tau", "gate_threshold", "temperature", "top_p", "min_p"), torch.float32
)


def check_sampling(settings: SampleSettings, rows: int, device: torch.device) -> None:
    """Every field has the batch's rows, its own type, and lies on the logits' device."""
    for name, field in zip(SampleSettings._fields, settings, strict=True):
        check_tensor(field, f"settings.{name}", _SETTINGS_DTYPES.get(name, torch.int32), [rows], device)


def check_settings(settings: FuseSettings, rows: int, models: int, device: torch.device) -> None:
    """Every field has the batch's rows, its own type, and lies on the logits' device."""
    for name, field in zip(FuseSettings._fields, settings, strict=True):
        shape = [rows, models] if name == "weights" else [rows]
        check_tensor(field, f"settings.{name}", _SETTINGS_DTYPES.get(name, torch.int32), shape, device)
