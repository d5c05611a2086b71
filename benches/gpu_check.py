"""Correctness and speed of the operators on a GPU, in one command of a few minutes.

    python benches/gpu_check.py             check, measure, write docs/benchmarks/gpu.md
    python benches/gpu_check.py --dry-run   the same steps on tiny sizes in Triton's interpreter; writes nothing
                                            unless --out names a file

Exit codes: 0 all right, 1 an operator differs from the reference, 2 no GPU (and no --dry-run).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "gpu.md"


class Plan(NamedTuple):
    """Sizes of one run: what is checked (vocabularies, types, rows) and what is measured (sizes, batches, repeats)."""

    checked: tuple[int, ...]
    dtypes: tuple[str, ...]
    rows: int
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    k: int = 10


FULL = Plan(
    (1, 7, 111, 32_000, 50_257, 151_936, 262_144),
    ("bfloat16", "float16", "float32"),
    40,
    (151_936, 262_144),
    (1, 8, 64, 256),
    30,
)
DRY = Plan((111,), ("bfloat16",), 4, (150,), (1,), 1, k=4)


def check(plan: Plan, device: str) -> list[str]:
    """Every disagreement of an operator with the reference, as lines."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    import operator_checks

    dtypes = tuple(getattr(torch, name) for name in plan.dtypes)
    sizes = operator_checks.Sizes(plan.checked, (plan.sizes[0], plan.sizes[-1]), dtypes, plan.rows, plan.k)
    return list(operator_checks.differences(sizes, device))


def measure(plan: Plan, device: str) -> list[str]:
    """Lines of the table: each provider, batch and vocabulary, hot and cold."""
    import torch
    from ensemble_decode.kernels.types import FuseSettings

    sys.path.insert(0, str(Path(__file__).parent))
    import bench_kernels_gpu as bench

    on_gpu = device == "cuda"
    bandwidth = bench.read_bandwidth(on_gpu)
    lines = [
        f"One large read moves {bandwidth / 1e9:.0f} GB/s here.\n",
        "| vocabularies | B | provider | hot µs | cold µs | MB read | GB/s, cold | share of one large read |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in plan.sizes:
        vocab = bench.vocabulary([size, size], device)
        for batch in plan.batches:
            logits = bench.make_logits([size, size], batch, torch.bfloat16, device)
            settings = FuseSettings.make(batch, 2, device)
            moved = sum(x.numel() * x.element_size() for x in logits)
            for name, call in bench.providers(logits, vocab, settings, plan.k, "triton").items():
                if name == "torch.compile" and not on_gpu:
                    continue
                clock = bench.Clock(call, on_gpu)
                hot, cold = clock.microseconds(plan.repeats, False), clock.microseconds(plan.repeats, True)
                rate = moved / (cold * 1e-6)
                lines.append(
                    f"| 2 × {size} | {batch} | {name} | {hot:.1f} | {cold:.1f} | {moved / 1e6:.2f} "
                    f"| {rate / 1e9:.0f} | {rate / bandwidth:.0%} |"
                )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes in Triton's interpreter, no GPU")
    parser.add_argument("--out", type=Path, help=f"where the page goes (default: {PAGE.name}; nowhere in a dry run)")
    args = parser.parse_args(arguments)
    if args.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

    import torch

    if not args.dry_run and not torch.cuda.is_available():
        print("gpu_check needs a CUDA device and torch sees none; --dry-run goes through the steps without one")
        return 2
    device, plan = ("cpu", DRY) if args.dry_run else ("cuda", FULL)
    wrong = check(plan, device)
    print("\n".join(wrong) if wrong else "every operator equals the reference")
    if wrong:
        return 1
    card = "interpreter, not a GPU" if args.dry_run else torch.cuda.get_device_name()
    lines = [
        f"# Operators on {card}\n",
        "Made by `python benches/gpu_check.py`. Before anything was measured, every operator equalled the reference:",
        f"vocabularies {', '.join(map(str, plan.checked))}, {', '.join(plan.dtypes)}, all settings mixed over "
        f"{plan.rows} rows.",
        "One step over two bfloat16 models, k = 10, medians of CUDA graph replays; cold: the L2 cache is overwritten",
        "before every replay.\n",
        *measure(plan, device),
    ]
    print("\n".join(lines))
    target = args.out or (None if args.dry_run else PAGE)
    if target is not None:
        target.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
