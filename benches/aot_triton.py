"""Compile every Triton kernel ahead of time for three GPU generations and read the machine code: no GPU needed.

    python benches/aot_triton.py               print the table
    python benches/aot_triton.py --write       also write docs/benchmarks/aot_triton.md
    python benches/aot_triton.py --json FILE   also write the rows as JSON
    python benches/aot_triton.py --quick       every kernel once, and every case of the stream, for 9.0

The launchers run on empty CPU tensors with the launch itself replaced by a recorder, so that what is compiled is what
would be launched: the same specialisation on alignment, the same compile-time sizes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.backends.nvidia as nvidia
from ensemble_decode.kernels import triton_
from ensemble_decode.kernels.triton_.launch import CHUNK, STREAM_OPTIONS
from ensemble_decode.kernels.types import FuseSettings, VocabTensors
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGETS = (80, 90, 100)
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that one block may use, by compute capability (CUDA C++ programming guide)."""
SIZES = (151_936, 262_144)
CANDIDATES = 300_000
K = 10
PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "aot_triton.md"


@dataclass
class Row:
    kernel: str
    case: str
    target: int
    registers: int
    spills: int
    shared: int
    instructions: int
    wide_loads: int
    per_element: float | None


def _logits(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((1, size), dtype=dtype)


def _mask(size: int) -> torch.Tensor:
    return torch.empty((1, (size + 31) // 32), dtype=torch.int32)


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


def _topk(size: int, dtype: torch.dtype, masked: bool) -> None:
    triton_.topk_stats(_logits(size, dtype), K, _mask(size) if masked else None)


def _fuse(operator: Callable[..., Any], dtype: torch.dtype, models: int = 2) -> None:
    sizes = [SIZES[m % 2] for m in range(models)]
    vocab = VocabTensors(
        to_cid=[_ints(size) for size in sizes],
        exact_id=[_ints(CANDIDATES) for _ in sizes],
        piece_id=[_ints(CANDIDATES) for _ in sizes],
        allowed=[_mask(size) for size in sizes],
        eos_ids=[_ints(2) for _ in sizes],
        prefix_end=_ints(CANDIDATES),
        space_cid=0,
        size=CANDIDATES,
    )
    operator([_logits(size, dtype) for size in sizes], vocab, FuseSettings.make(1, models), K)


def _fuse_step() -> None:
    _fuse(triton_.fuse_step, torch.bfloat16)


def _fuse_full() -> None:
    _fuse(triton_.fuse_full, torch.bfloat16)


def _step_of_eight() -> None:
    _fuse(triton_.fuse_step, torch.bfloat16, 8)


def _full_of_eight() -> None:
    _fuse(triton_.fuse_full, torch.bfloat16, 8)


def _fuse_candidates() -> None:
    scores, row = torch.empty((2, 1, 2 * K)), torch.empty(1)
    cids, per_model = _ints(1, 2 * K), torch.empty((2, 1))
    settings = FuseSettings.make(1, 2)
    triton_.fuse_candidates(scores, cids, per_model, _ints(1, K), row, _ints(1), _ints(CANDIDATES), 0, settings)


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "stream bf16": ("stream_kernel", lambda: _topk(SIZES[0], torch.bfloat16, False)),
    "stream bf16 masked": ("stream_kernel", lambda: _topk(SIZES[0], torch.bfloat16, True)),
    "stream fp16": ("stream_kernel", lambda: _topk(SIZES[0], torch.float16, False)),
    "stream fp32": ("stream_kernel", lambda: _topk(SIZES[0], torch.float32, False)),
    "stream two models bf16": ("stream_kernel", _fuse_step),
    "topk_stats bf16 masked": ("topk_stats_kernel", lambda: _topk(SIZES[1], torch.bfloat16, True)),
    "verify_draft bf16": (
        "verify_draft_kernel",
        lambda: triton_.verify_draft(_logits(SIZES[1], torch.bfloat16), _ints(1), _mask(SIZES[1]), _ints(2)),
    ),
    "union_topk": ("union_topk_kernel", lambda: triton_.union_topk([_ints(1, K)] * 2, [_ints(s) for s in SIZES])),
    "gather_candidates bf16": (
        "gather_candidates_kernel",
        lambda: triton_.gather_candidates(
            _logits(SIZES[0], torch.bfloat16), _ints(1, 2 * K), _ints(CANDIDATES), _ints(2), _mask(SIZES[0])
        ),
    ),
    "fuse_candidates": ("fuse_candidates_kernel", _fuse_candidates),
    "fuse_step two models bf16": ("fuse_step_kernel", _fuse_step),
    "fuse_full statistics bf16": ("full_statistics_kernel", _fuse_full),
    "fuse_full sums bf16": ("full_sums_kernel", _fuse_full),
    "fuse_full mean bf16": ("full_mean_kernel", _fuse_full),
    "fuse_full decide": ("full_decide_kernel", _fuse_full),
    "fuse_full sharpen": ("full_sharpen_kernel", _fuse_full),
    "fuse_full normalise": ("full_normalise_kernel", _fuse_full),
    "fuse_full filter": ("full_filter_kernel", _fuse_full),
    "fuse_full gumbel": ("full_gumbel_kernel", _fuse_full),
    "fuse_full finish bf16": ("full_finish_kernel", _fuse_full),
    "fuse_step eight models bf16": ("fuse_step_kernel", _step_of_eight),
    "fuse_full statistics eight models bf16": ("full_statistics_kernel", _full_of_eight),
    "fuse_full sums eight models bf16": ("full_sums_kernel", _full_of_eight),
    "fuse_full mean eight models bf16": ("full_mean_kernel", _full_of_eight),
    "fuse_full decide eight models": ("full_decide_kernel", _full_of_eight),
    "fuse_full finish eight models bf16": ("full_finish_kernel", _full_of_eight),
}
"""What is compiled: a name, the kernel, and a call that launches it."""
FIRST_CASES = frozenset({kernel: case for case, (kernel, _) in reversed(CASES.items())}.values())
"""The first case of each kernel."""


@contextmanager
def recorded() -> Iterator[dict[str, tuple[JITFunction, tuple, dict]]]:
    """Collect launches by kernel name instead of running them."""
    launches: dict[str, tuple[JITFunction, tuple, dict]] = {}
    original = JITFunction.run

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches[self.__name__] = (self, args, kwargs)

    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = original


def compile_launch(kernel: JITFunction, args: tuple, kwargs: dict, capability: int) -> Any:
    """Compile one recorded launch for a compute capability, as the launch itself would."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, _ = bind(*args, **kwargs)
    packed = kernel._pack_args(backend, kwargs, bound, specialization, kwargs)
    options, signature, constexprs, attributes = packed
    return triton.compile(
        ASTSource(kernel, signature, constexprs, attributes), target=target, options=dict(options.__dict__)
    )


def _tool(name: str, *args: str) -> str:
    path = Path(nvidia.__file__).parent / "bin" / name
    return subprocess.run([str(path), *args], capture_output=True, text=True, check=True).stdout


_LABEL = re.compile(r"^(\.L_x_\d+):", re.M)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z0-9_.]+)([^;]*);")


def blocks_of(sass: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Basic blocks: a label (or none) and (predicate, opcode, operands) up to the next label or branch."""
    pieces = _LABEL.split(sass)
    blocks: list[tuple[str, list[tuple[str, str, str]]]] = []
    for label, text in zip(["", *pieces[1::2]], pieces[::2], strict=True):
        blocks.append((label, []))
        for instruction in _INSTRUCTION.findall(text):
            blocks[-1][1].append(instruction)
            if instruction[1].split(".")[0] in ("BRA", "EXIT"):
                blocks.append(("", []))
    return blocks


def streamed_path(sass: str) -> int:
    """Instructions on the shortest way from the kernel's entry to its end that passes the 16-byte loads."""
    blocks = blocks_of(sass)
    at_label = {label: i for i, (label, _) in enumerate(blocks) if label}
    wide = {i for i, (_, code) in enumerate(blocks) if any(is_wide_load(op) for _, op, _ in code)}

    def successors(i: int) -> list[int | None]:
        code = blocks[i][1]
        predicate, opcode, operands = code[-1] if code else ("", "", "")
        after: list[int | None] = [i + 1] if i + 1 < len(blocks) else [None]
        if opcode.split(".")[0] == "EXIT":
            return [None, *after] if predicate else [None]
        if opcode.split(".")[0] == "BRA":
            target = re.search(r"\.L_x_\d+", operands)
            jump = [at_label[target.group()]] if target else []
            conditional = predicate or re.search(r"\bU?P\d", operands)
            return [*jump, *after] if conditional else jump
        return after

    queue = [(len(blocks[0][1]), 0, 0 in wide)]
    seen = set()
    while queue:
        cost, i, loaded = heapq.heappop(queue)
        if (i, loaded) in seen:
            continue
        seen.add((i, loaded))
        for j in successors(i):
            if j is None:
                if loaded:
                    return cost
            else:
                heapq.heappush(queue, (cost + len(blocks[j][1]), j, loaded or j in wide))
    raise ValueError("no way through the kernel passes a 16-byte load")


def is_wide_load(opcode: str) -> bool:
    return re.match(r"LDG\.E(\.\w+)*\.128", opcode) is not None


def measure(job: tuple[str, int]) -> Row:
    """Compile one case for one target and read its machine code."""
    case, capability = job
    name, call = CASES[case]
    with recorded() as launches:
        call()
    compiled = compile_launch(*launches[name], capability)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        sass = _tool("nvdisasm", "-c", cubin.name)
        usage = _tool("cuobjdump", "--dump-resource-usage", cubin.name)
    opcodes = [op for _, op, _ in _INSTRUCTION.findall(sass)]
    single = name == "stream_kernel" and "two models" not in case
    elements = CHUNK / (32 * STREAM_OPTIONS["num_warps"])
    return Row(
        kernel=name,
        case=case,
        target=capability,
        registers=int(re.findall(r"REG:(\d+)", usage)[-1]),
        spills=sum(op.split(".")[0] in ("STL", "LDL") for op in opcodes),
        shared=compiled.metadata.shared,
        instructions=len(opcodes),
        wide_loads=sum(is_wide_load(op) for op in opcodes),
        per_element=round(streamed_path(sass) / elements, 1) if single else None,
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| case | kernel | sm | registers | spill instructions | shared bytes | instructions | 16-byte loads "
        "| instructions per element |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        each = "" if r.per_element is None else f"{r.per_element:.1f}"
        numbers = (r.target, r.registers, r.spills, r.shared, r.instructions, r.wide_loads, each)
        lines.append(f"| {r.case} | `{r.kernel}` | " + " | ".join(str(n) for n in numbers) + " |")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    return f"""# Triton kernels, compiled ahead of time

Made by `python benches/aot_triton.py --write` with Triton {triton.__version__}, which needs no GPU: each kernel is
compiled as its launcher would launch it (vocabularies {SIZES[0]} and {SIZES[1]}, k = {K}, aligned rows) for compute
capability 8.0, 9.0 and 10.0, and the machine code is read with the `nvdisasm` and `cuobjdump` that Triton carries.
`tests/kernels/test_triton_aot.py` holds the bounds.

- **Spill instructions**: loads and stores of local memory (`STL`, `LDL`). Bound: 0.
- **Shared bytes**: per program. Bound: 163 KiB on 8.0, 227 KiB on 9.0 and 10.0.
- **16-byte loads**: `LDG.E.128` in the whole kernel; the stream must have them.
- **Instructions per element**: the instructions that one thread executes for a full chunk whose values are finite and
  whose ids are all allowed: the shortest way from the kernel's entry to its end that passes the 16-byte loads, so it
  includes the address arithmetic, the reductions across the program and the stores; divided by the elements of one
  thread, {CHUNK} / {32 * STREAM_OPTIONS["num_warps"]} = {CHUNK // (32 * STREAM_OPTIONS["num_warps"])}. The log-sum-exp,
  the exact entropy and the maximum of each 128 elements are all in it. Bound: 13 for 16-bit types, 28 for float32.

{table(rows)}
"""


def measure_all(workers: int, quick: bool = False) -> list[Row]:
    """Rows of every case and target; ``quick``: each kernel's first case and every case of the stream for 9.0."""
    jobs = [
        (case, target)
        for case, (kernel, _) in CASES.items()
        for target in TARGETS
        if not quick or (target == 90 and (case in FIRST_CASES or kernel == "stream_kernel"))
    ]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(measure, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--json", type=Path, help="write the rows as JSON")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile")
    parser.add_argument("--quick", action="store_true", help="every kernel once, every case of the stream, for 9.0")
    args = parser.parse_args()
    if args.quick and args.write:
        raise SystemExit("the page holds every case and target: leave --quick out")
    if triton.knobs.runtime.interpret:
        raise SystemExit("unset TRITON_INTERPRET: the interpreter does not compile")
    rows = measure_all(args.workers, args.quick)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], allow_nan=False))
    if args.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
