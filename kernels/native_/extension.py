"""The compiled C++ module, or the reason why there is none."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack


@lru_cache(maxsize=1)
def _load() -> ModuleType | str:
    try:
        return importlib.import_module(f"{__package__}._core")
    except ModuleNotFoundError:
        return "the package was installed without its C++ extension (no C++ compiler or CMake was found at build time)"
    except ImportError as error:
        return f"the C++ extension does not load: {error}"


def unavailable_reason() -> str | None:
    """Why the C++ operators cannot run here, or None."""
    core = _load()
    return core if isinstance(core, str) else None


@lru_cache(maxsize=1)
def cuda_stage() -> ModuleType | None:
    """The compiled CUDA stage, or None where the package was built without a CUDA compiler."""
    try:
        return importlib.import_module(f"{__package__}._cuda")
    except ImportError:
        return None


def core() -> ModuleType:
    """The compiled module; RuntimeError with the reason where there is none."""
    module = _load()
    if isinstance(module, str):
        raise RuntimeError(f"the native operators cannot run: {module}")
    return module


def shared(tensors: Iterable[Tensor | None]) -> list[Any]:
    """The tensors' memory as DLPack capsules, each to be taken once; None stays None.

    Asked for a tensor's ``__dlpack__``, as the extension itself would ask, torch goes through Python and needs several
    times as long; a decode step shares hundreds of tensors.
    """
    return [tensor if tensor is None else to_dlpack(tensor) for tensor in tensors]


def writable(out: Iterable[Tensor]) -> list[Tensor]:
    """Outputs as they cross the border, where a truth value is a byte."""
    return [x.view(torch.uint8) if x.dtype == torch.bool else x for x in out]


def available_isas() -> list[str]:
    """Instruction sets that this build has and this processor runs, best first; ``"plain"`` is always last."""
    names: list[str] = core().available_isas()
    return names


def isa() -> str:
    """The instruction set in use."""
    name: str = core().isa()
    return name


def set_isa(name: str) -> None:
    """Use the named instruction set from now on, ``"auto"`` for the best one; ValueError where it does not run here."""
    core().set_isa(name)
