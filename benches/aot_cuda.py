"""Compile every CUDA source for each target and read the machine code: no GPU needed, only nvcc.

    python benches/aot_cuda.py            print the table
    python benches/aot_cuda.py --write    also write docs/benchmarks/aot_cuda.md

The fast path of the streaming kernel has no loop: a thread's whole share of a chunk is unrolled. Its instructions are
those up to the 16-byte store of the chunk's sums, divided by the elements that a thread handles; the count includes the
branches to other paths that lie between, so it is an upper bound. Machine code is read with cuobjdump: from the PATH,
else the copy that ships inside Triton, else those columns stay empty.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "csrc" / "cuda"
PAGE = ROOT / "docs" / "benchmarks" / "aot_cuda.md"
TARGETS = ("sm_80", "sm_90a", "sm_100")
CHUNK, THREADS = 8192, 128
DTYPES = {"__nv_bfloat16": ("bfloat16", 2), "__half": ("float16", 2), "f": ("float32", 4)}


@dataclass
class Row:
    source: str
    dtype: str
    target: str
    registers: int
    spills: int
    stack: int
    shared: int
    wide_loads: int | None
    expected_wide_loads: int
    per_element: float | None


def disassembler() -> str | None:
    """cuobjdump from the PATH or from Triton's package."""
    found = shutil.which("cuobjdump")
    if found is None:
        try:
            import triton.backends.nvidia as nvidia
        except ImportError:
            return None
        bundled = Path(next(iter(nvidia.__path__))) / "bin" / "cuobjdump"
        found = str(bundled) if bundled.exists() else None
    return found


def compile_source(source: Path, folder: Path) -> list[Row]:
    """One row per kernel and target; raises CalledProcessError with nvcc's words where it does not compile."""
    rows = []
    for target in TARGETS:
        cubin = folder / f"{source.stem}.{target}.cubin"
        command = [
            "nvcc",
            "-std=c++17",
            "-O3",
            f"-arch={target}",
            "-Xptxas",
            "-v",
            "-cubin",
            "-o",
            str(cubin),
            str(source),
        ]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise subprocess.CalledProcessError(result.returncode, command, result.stdout, result.stderr)
        code = instructions(cubin)
        for name, text in kernels(result.stdout + result.stderr).items():
            dtype, size = next(
                value for key, value in DTYPES.items() if f"kernelI{len(key)}{key}" in name or f"kernelI{key}E" in name
            )
            count, wide = fast_path(code.get(name, []))
            per_thread = CHUNK // THREADS
            rows.append(
                Row(
                    source=source.name,
                    dtype=dtype,
                    target=target,
                    registers=number(r"Used (\d+) registers", text),
                    spills=number(r"(\d+) bytes spill stores", text) + number(r"(\d+) bytes spill loads", text),
                    stack=number(r"(\d+) bytes stack frame", text),
                    shared=number(r"(\d+) bytes smem", text),
                    wide_loads=wide if count else None,
                    expected_wide_loads=per_thread * size // 16,
                    per_element=count / per_thread if count else None,
                )
            )
    return rows


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def kernels(log: str) -> dict[str, str]:
    """ptxas's report by kernel."""
    parts = re.split(r"Compiling entry function '([^']+)'", log)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def instructions(cubin: Path) -> dict[str, list[str]]:
    """Machine instructions by kernel; empty without a disassembler."""
    tool = disassembler()
    if tool is None:
        return {}
    listing = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"Function : (\S+)", listing)
    return {
        name: re.findall(r"/\*[0-9a-f]{4,}\*/\s+(\S[^;]*);", body)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def fast_path(code: list[str]) -> tuple[int, int]:
    """Instructions, and 16-byte loads among them, up to the first 16-byte store."""
    for i, instruction in enumerate(code):
        if "STG.E.128" in instruction:
            before = code[: i + 1]
            return len(before), sum("LDG.E" in x and ".128" in x for x in before)
    return 0, 0


def table(rows: list[Row]) -> str:
    lines = [
        "# CUDA kernels, compiled ahead of time",
        "",
        "Written by `python benches/aot_cuda.py --write`; compiled, not run. Fast path: instructions of one "
        "thread up to its",
        "result, per element (at most 13 for 16-bit logits and 28 for float32).",
        "",
        "| source | logits | target | registers | spilled bytes | stack | shared bytes | 16-byte loads | "
        "instructions per element |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in rows:
        wide = "" if r.wide_loads is None else f"{r.wide_loads} of {r.expected_wide_loads}"
        count = "" if r.per_element is None else f"{r.per_element:.1f}"
        lines.append(
            f"| {r.source} | {r.dtype} | {r.target} | {r.registers} | {r.spills} | {r.stack} | {r.shared} | "
            f"{wide} | {count} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    args = parser.parse_args()
    if shutil.which("nvcc") is None:
        parser.exit(1, "nvcc is not installed: nothing can be compiled\n")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for source in sorted(SOURCES.glob("*.cu")) for row in compile_source(source, Path(folder))]
    print(table(rows))
    if args.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(table(rows))


if __name__ == "__main__":
    main()
