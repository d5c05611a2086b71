"""The compiled C++ module, or the reason why there is none."""

from __future__ import annotations

import importlib
from functools import lru_cache
from types import ModuleType


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
