"""The Triton kernels compiled ahead of time: no spills, wide loads, shared memory, instruction budgets.

Every kernel for 9.0; with `-m slow`, which continuous integration runs too (`make aot`), the whole table of
docs/benchmarks/aot_triton.md: every kernel for 8.0, 9.0 and 10.0, for up to eight models. Nothing compiled lies there
from before: Triton's cache would hide that this takes minutes.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCH = Path(__file__).resolve().parents[2] / "benches" / "aot_triton.py"
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
PER_ELEMENT = {"stream bf16": 13, "stream bf16 masked": 13, "stream fp16": 13, "stream fp32": 28}


@pytest.fixture(scope="module", params=["quick", pytest.param("whole", marks=pytest.mark.slow)])
def rows(request, tmp_path_factory):
    """The table, made by the command that also writes the page; in a process where the interpreter is off."""
    folder = tmp_path_factory.mktemp("aot")
    command = [sys.executable, str(BENCH), "--workers", "2", "--json", str(folder / "rows.json")]
    if request.param == "quick":
        command.append("--quick")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run(command, check=True, env=environment | {"TRITON_CACHE_DIR": str(folder / "cache")})
    return json.loads((folder / "rows.json").read_text())


def test_every_kernel_is_compiled(rows):
    import ensemble_decode.kernels.triton_ as package

    kernels = {
        name
        for info in pkgutil.iter_modules(package.__path__)
        for name in vars(importlib.import_module(f"{package.__name__}.{info.name}"))
        if name.endswith("_kernel")
    }
    targets = {row["target"] for row in rows}
    assert 90 in targets
    for target in targets:
        assert {row["kernel"] for row in rows if row["target"] == target} == kernels


@pytest.mark.parametrize("rows", [pytest.param("whole", marks=pytest.mark.slow)], indirect=True)
def test_the_whole_table_has_every_case_for_every_target(rows):
    cases = {row["case"] for row in rows}
    assert any("eight models" in case for case in cases)
    for target in SHARED_LIMIT:
        assert {row["case"] for row in rows if row["target"] == target} == cases


def test_nothing_spills_and_shared_memory_fits(rows):
    assert [row for row in rows if row["spills"]] == []
    assert [row for row in rows if row["shared"] > SHARED_LIMIT[row["target"]]] == []


def test_stream_reads_sixteen_bytes_at_a_time(rows):
    for row in rows:
        if row["kernel"] == "stream_kernel":
            # 64 elements per thread: 8 loads of 8 16-bit values, 16 of 4 float32 values, per model
            expected = (16 if "fp32" in row["case"] else 8) * (2 if "two models" in row["case"] else 1)
            assert row["wide_loads"] >= expected, row


def test_stream_stays_within_its_instructions_per_element(rows):
    streams = {(row["case"], row["target"]): row["per_element"] for row in rows if row["per_element"] is not None}
    assert set(streams) == {(case, row["target"]) for case in PER_ELEMENT for row in rows}
    for (case, target), per_element in streams.items():
        assert 5 < per_element <= PER_ELEMENT[case], (case, target)
