"""A run on paper: what was measured, on what, and the refusal to compare it with another run."""

from __future__ import annotations

import json
import os
import platform
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ensemble_decode.bench.measure import Cell, Sample
from ensemble_decode.errors import InputError

SCHEMA = 1
_PACKAGES = ("ensemble-decode", "torch", "transformers", "tokenizers", "triton")


@dataclass
class Record:
    """One run. ``run``: its id, when, the machine, versions, models, dtype, threads. The other fields: what was
    measured."""

    run: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, models: Sequence[str], dtype: str, devices: Sequence[str], energy: str) -> Record:
        """A new run on this machine, with an id of its own."""
        import torch

        facts = {
            "id": uuid.uuid4().hex,
            "machine": machine(),
            "versions": {package: _version(package) for package in _PACKAGES},
            "models": list(models),
            "dtype": dtype,
            "devices": list(devices),
            "threads": torch.get_num_threads(),
            "energy": energy,
        }
        return cls(facts)

    def suite(self, name: str) -> list[Cell]:
        """The cells of one suite, in the order of measuring."""
        return [cell for cell in self.cells if cell.suite == name]

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all."""
        content = {"schema": SCHEMA, **asdict(self)}
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises ``InputError`` for a file that is not such a record."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise InputError(f"{path}: written with schema {content['schema']}, this version reads {SCHEMA}")
            cells = [Cell(**{**cell, "samples": [Sample(**s) for s in cell["samples"]]}) for cell in content["cells"]]
            return cls(content["run"], cells, content["skipped"], content["parts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path}: not a record of ensemble-decode bench ({type(error).__name__}: {error})"
            ) from error


def join(records: Sequence[Record]) -> Record:
    """Pieces of one run as one record. Pieces of different runs are refused: their times were not taken side by
    side."""
    if not records:
        raise InputError("bench report: give at least one file")
    first = records[0]
    for other in records[1:]:
        if other.run["id"] != first.run["id"]:
            raise InputError(
                f"bench report: run {other.run['id'][:8]} cannot be compared with run {first.run['id'][:8]}: "
                "their configurations "
                "did not alternate in one process; measure them in one run"
            )
    whole = Record(first.run)
    for record in records:
        whole.cells += [cell for cell in record.cells if cell not in whole.cells]
        whole.skipped += [entry for entry in record.skipped if entry not in whole.skipped]
        whole.parts |= record.parts
    return whole


def machine() -> dict[str, Any]:
    """What the figures were measured on: processor, cores, instruction set, memory, CUDA devices."""
    import torch

    cards = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "processor": _processor(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "memory GiB": _memory_gib(),
        "python": sys.version.split()[0],
        "cuda": [torch.cuda.get_device_name(i) for i in cards],
    }


def _memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
