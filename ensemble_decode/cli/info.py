"""``ensemble-decode info``: versions, devices, and which implementations run here and why."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ensemble_decode.paths import cache_home
from ensemble_decode.version import __version__

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
    "gguf",
    "accelerate",
    "flash-attn",
)


def info(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Show versions, devices, and which operator and attention implementations run here, and why."""
    facts = collect()
    console = Console()
    if as_json:
        import json

        console.file.write(json.dumps(facts, indent=1, allow_nan=False) + "\n")
        return
    for title in ("versions", "machine", "devices"):
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in facts[title].items():
            table.add_row(name, str(value))
        console.print(table)
    operators = Table("operator", "device", "runs", title="operators", title_justify="left")
    reasons: dict[str, list[str]] = {}
    for row in facts["operators"]:
        operators.add_row(row["operator"], row["device"], row["runs"])
        for reason in row["why not another"]:
            reasons.setdefault(reason, []).append(row["operator"])
    console.print(operators)
    for reason, names in reasons.items():
        which = "all operators" if len(names) == len(facts["operators"]) else ", ".join(names)
        console.print(f"not used: {reason} ({which})", highlight=False, markup=False)
    attention = Table("device", "dtype", "runs", "why", title="attention", title_justify="left")
    for row in facts["attention"]:
        attention.add_row(*row.values())
    console.print(attention)


def collect() -> dict[str, Any]:
    """Everything that ``info`` shows, as plain data."""
    import torch

    return {
        "versions": {"ensemble-decode": __version__, "python": sys.version.split()[0]}
        | {p: _version(p) for p in _PACKAGES},
        "machine": {
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "torch threads": torch.get_num_threads(),
            "torch CPU instruction set": torch.backends.cpu.get_cpu_capability(),
            "native operators' instruction set": _native_isa(),
            "bfloat16 by instruction": "yes" if _cpu_has_bfloat16() else "no: dtype auto computes in float32",
            "linear layers on the CPU": _linear_layers(),
            "cache folder": str(cache_home() or "none: this user has no home folder (set ENSEMBLE_DECODE_HOME)"),
        },
        "devices": _devices(torch),
        "operators": _operators(),
        "attention": _attention(torch),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_has_bfloat16() -> bool:
    from ensemble_decode.members.transformers.cpu import bfloat16_products

    return bfloat16_products() == "instructions"


def _linear_layers() -> str:
    import torch

    from ensemble_decode.members.transformers.few_rows import helps, runs_native

    how = (
        "the C++ extension"
        if runs_native()
        else "blocks for torch's float32 product (the C++ extension has no loop here)"
    )
    ours = [name for name in ("float32", "bfloat16") if helps(getattr(torch, name), torch.device("cpu"))]
    return f"{', '.join(ours)}: {how} from a few rows on (docs/caches.md)" if ours else "torch's own"


def _native_isa() -> str:
    import ensemble_decode.kernels.native_ as native_

    reason = native_.unavailable_reason()
    return native_.isa() if reason is None else f"none: {reason}"


def _devices(torch: Any) -> dict[str, str]:
    found = {"cpu": platform.processor() or platform.machine()}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{card.name}, sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB"
    if len(found) == 1:
        found["cuda"] = f"none ({'no device' if torch.version.cuda else 'torch is built without CUDA'})"
    return found


def _operators() -> list[dict[str, Any]]:
    from ensemble_decode import kernels

    rows: list[dict[str, Any]] = []
    for operator, state in kernels.status().items():
        for device, runs in state["auto"].items():
            better = [name for name in ("triton", "native") if name != runs and not state[name]["available"]]
            reasons = [f"{name}: {state[name]['reason']}" for name in better]
            rows.append({"operator": operator, "device": device, "runs": runs, "why not another": reasons})
    return rows


def _attention(torch: Any) -> list[dict[str, str]]:
    from ensemble_decode.members.transformers.attention import status

    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0))]
    rows = []
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16):
            found = status("auto", device, dtype)
            name = str(dtype).removeprefix("torch.")
            rows.append({"device": device, "dtype": name, "runs": found.kind, "why": found.reason})
    return rows
