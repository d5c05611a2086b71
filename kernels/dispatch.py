"""Chooses which implementation of an operator runs, and says why.

Three implementations may exist: `reference` (torch, everywhere), `triton` (CUDA, or a CPU through its interpreter)
and `native` (the C++/CUDA extension). A backend is a module with one function per operator under its name and
the reference's signature, and

- ``implements: frozenset[str]``: the operators it has (on its home device: the CPU for native);
- ``implements_cuda: frozenset[str]`` (native only, optional): the operators it has for CUDA tensors;
- ``unavailable_reason() -> str | None``: why none of it can run here, or None;
- ``limit_reason(operator, args) -> str | None`` (optional): why it cannot take these arguments, or None.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import cache
from types import ModuleType, TracebackType
from typing import Any

import torch

OPERATORS = (
    "topk_stats",
    "union_topk",
    "gather_candidates",
    "fuse_candidates",
    "fuse_step",
    "fuse_full",
    "full_distribution",
    "sample_tokens",
    "token_probs",
    "uniform",
    "verify_draft",
)
IMPLEMENTATIONS = ("reference", "triton", "native")
_MODULES = {"reference": "reference", "triton": "triton_", "native": "native_"}

# What `auto` tries, best first, per type of device.
_PREFERENCE = {"cuda": ("triton", "native", "reference"), "cpu": ("native", "reference")}

_requested: ContextVar[str] = ContextVar("ensemble_decode.kernels.implementation", default="auto")
_trace: ContextVar[Counter[tuple[str, str, str]] | None] = ContextVar("ensemble_decode.kernels.trace", default=None)


class ImplementationError(RuntimeError):
    """An implementation was asked for by name and cannot run; the message says why."""


class use:
    """Choose the implementation that operators use: ``"reference"``, ``"triton"``, ``"native"`` or ``"auto"``.

    Called plainly it holds from there on; as a context manager it holds inside the block. It applies to the current
    context alone (thread or asyncio task), so concurrent users do not disturb each other. Inside compiled code the
    choice is read when the operator runs, not when it is traced. Raises ValueError for another name.
    """

    def __init__(self, implementation: str) -> None:
        check_name(implementation)
        self._token: Token[str] | None = _requested.set(implementation)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _requested.reset(self._token)
            self._token = None


def requested() -> str:
    """The implementation asked for in the current context (`use`), ``"auto"`` by default."""
    return _requested.get()


def check_name(implementation: str) -> None:
    """Raise ValueError unless `implementation` is one of the three, or ``"auto"``."""
    if implementation not in (*IMPLEMENTATIONS, "auto"):
        raise ValueError(f"no implementation {implementation!r}; there are: auto, {', '.join(IMPLEMENTATIONS)}")


@cache
def _backend(implementation: str) -> ModuleType | str:
    """The backend's module, or the reason why it cannot be imported."""
    try:
        module = importlib.import_module(f"{__package__}.{_MODULES[implementation]}")
    except ImportError as error:
        return f"cannot import it: {error}"
    # A folder without code (left behind by an older installation) imports as an empty namespace package.
    return module if module.__file__ else "it is not part of this installation"


def interpreting() -> bool:
    """Whether Triton runs kernels through its interpreter (TRITON_INTERPRET=1), which takes CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def unavailable_reason(implementation: str, operator: str, device_type: str) -> str | None:
    """Why `implementation` cannot run `operator` on devices of this type; None where it can."""
    backend = _backend(implementation)
    if isinstance(backend, str):
        return backend
    if implementation == "reference":
        return None
    reason = backend.unavailable_reason()
    if reason is not None:
        return reason
    if implementation == "native":
        if device_type not in ("cpu", "cuda"):
            return f"it runs on CPU and CUDA tensors, not on {device_type}"
        on_cuda = device_type == "cuda"
        if operator not in (getattr(backend, "implements_cuda", frozenset()) if on_cuda else backend.implements):
            return f"it has no {operator} for {device_type} tensors"
        return None
    if device_type != "cuda" and not (device_type == "cpu" and interpreting()):
        return f"Triton needs CUDA tensors, or TRITON_INTERPRET=1 for CPU ones; these are on {device_type}"
    if operator not in backend.implements:
        return f"it has no {operator}"
    return None


def resolve(operator: str, device_type: str, args: tuple[Any, ...], implementation: str = "") -> tuple[str, Callable]:
    """The implementation to run and its function.

    `implementation` is a name, or empty for the context's choice. ``auto`` takes the first of the device's preferences
    that can run; a name that cannot run raises ImplementationError.
    """
    name = implementation or _requested.get()
    if name == "auto":
        for candidate in _PREFERENCE.get(device_type, ("reference",)):
            if _refusal(candidate, operator, device_type, args) is None:
                name = candidate
                break
    else:
        reason = _refusal(name, operator, device_type, args)
        if reason is not None:
            raise ImplementationError(f"the {name} implementation of {operator} cannot run: {reason}")
    return name, getattr(_backend(name), operator)


def _refusal(implementation: str, operator: str, device_type: str, args: tuple[Any, ...]) -> str | None:
    reason = unavailable_reason(implementation, operator, device_type)
    if reason is None:
        limit = getattr(_backend(implementation), "limit_reason", None)
        reason = limit(operator, args) if limit is not None else None
    return reason


def call(operator: str, device: torch.device, args: tuple[Any, ...], implementation: str = "") -> Any:
    """Run `operator` on `args` with the chosen implementation."""
    name, function = resolve(operator, device.type, args, implementation)
    note(operator, name)
    return function(*args)


def note(operator: str, implementation: str, branch: str = "") -> None:
    """Count one run of a branch where `trace_calls` is active; costs one lookup where it is not."""
    counter = _trace.get()
    if counter is not None:
        counter[operator, implementation, branch] += 1


@contextmanager
def trace_calls() -> Iterator[Counter[tuple[str, str, str]]]:
    """Count what runs inside the block, by (operator, implementation, branch); branch is "" for the call itself."""
    counter: Counter[tuple[str, str, str]] = Counter()
    token = _trace.set(counter)
    try:
        yield counter
    finally:
        _trace.reset(token)


def status() -> dict[str, dict[str, Any]]:
    """Which implementations of each operator can run here.

    Per operator: ``"auto"`` maps each device type present to what ``auto`` picks there, and each implementation's name
    maps to ``{"available": bool, "reason": str | None, "devices": list[str]}``: whether it runs on any device type
    present, why not on those where it does not, and where it does.
    """
    present = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    table: dict[str, dict[str, Any]] = {}
    for operator in OPERATORS:
        entry: dict[str, Any] = {"auto": {}}
        for name in IMPLEMENTATIONS:
            reasons = {device: unavailable_reason(name, operator, device) for device in present}
            missing = {device: reason for device, reason in reasons.items() if reason is not None}
            entry[name] = {
                "available": len(missing) < len(present),
                "reason": "; ".join(f"{device}: {reason}" for device, reason in missing.items()) or None,
                "devices": [device for device in present if device not in missing],
            }
        for device in present:
            entry["auto"][device] = next(n for n in _PREFERENCE[device] if device in entry[n]["devices"])
        table[operator] = entry
    return table
