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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "gpu.md"


class Plan(NamedTuple):
    """Sizes of one run."""

    sizes: tuple[int, ...]
    checked: tuple[int, ...]
    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    repeats: int
    k: int = 10


FULL = Plan(
    (151_936, 262_144),
    (1, 7, 111, 32_000, 50_257, 151_936, 262_144),
    ("bfloat16", "float16", "float32"),
    (1, 8, 64, 256),
    30,
)
DRY = Plan((150,), (111,), ("bfloat16",), (1,), 1)


def differences(plan: Plan, device: str) -> Iterator[str]:
    """Every disagreement with the reference, or between two batches, as one line."""
    import torch
    from ensemble_decode.kernels import reference

    from ensemble_decode import kernels

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        a, b = a.cpu(), b.cpu()
        if not a.is_floating_point():
            return torch.equal(a, b)
        return torch.allclose(a, b.to(a.dtype), atol=2e-5, rtol=1e-5)

    for size in plan.checked:
        for dtype in (getattr(torch, name) for name in plan.dtypes):
            for kind, x in adversarial(size, dtype):
                got = kernels.topk_stats(x.to(device), plan.k, implementation="triton")
                want = reference.topk_stats(x, plan.k)
                bad = [n for n, a, b in zip(got._fields, got, want, strict=True) if not close(a, b)]
                if bad or not torch.equal(got.values.cpu(), want.values):
                    yield f"topk_stats V={size} {dtype} {kind}: {bad or 'values are not copies'}"
                alone = kernels.topk_stats(x[1:2].to(device), plan.k, implementation="triton")
                if any(not torch.equal(a, b[1:2]) for a, b in zip(alone, got, strict=True)):
                    yield f"topk_stats V={size} {dtype} {kind}: a row depends on its batch"
    yield from fused_differences(plan, device, close)


def adversarial(size: int, dtype):  # type: ignore[no-untyped-def]
    """Named rows: plain, tied, with infinities and NaN, and a misaligned view."""
    import torch

    g = torch.Generator().manual_seed(size)
    x = torch.randn(3, size, generator=g) * 3
    yield "plain", x.to(dtype)
    yield "ties", x.round().clamp(-1, 1).to(dtype)
    odd = x.clone()
    odd[0, size // 2], odd[1, size - 1], odd[2, : size // 2 + 1] = float("inf"), float("nan"), float("-inf")
    yield "not finite", odd.to(dtype)
    wide = torch.full((3, size + 3 + size % 2), 1e4)
    wide[:, 1 : size + 1] = x
    yield "misaligned", wide.to(dtype)[:, 1 : size + 1]


def fused_differences(plan: Plan, device: str, close) -> Iterator[str]:  # type: ignore[no-untyped-def]
    """`fuse_step` with every method mixed in one batch."""
    import torch
    from ensemble_decode.kernels import reference

    from ensemble_decode import kernels

    sys.path.insert(0, str(Path(__file__).parent))
    import bench_kernels_gpu as bench

    batch = 8 if device == "cuda" else 4
    row = torch.arange(batch)
    fields = {
        "aggregate": row % 2, "sharpen": row % 4, "trigger": (row // 2) % 2, "threshold": torch.full((batch,), 0.6),
        "gate": (row // 2) % 4, "gate_threshold": torch.full((batch,), 0.2), "oov": (row // 3) % 2, "row": row,
    }  # fmt: skip
    sizes = (plan.sizes[0], plan.sizes[-1])
    vocab = bench.vocabulary(sizes, "cpu")
    logits = bench.make_logits(sizes, batch, torch.bfloat16, "cpu")
    settings = kernels.FuseSettings.make(batch, 2, **fields)
    want = reference.fuse_step(logits, vocab, settings, plan.k)
    on_device = kernels.FuseSettings(*(f.to(device) for f in settings))
    got = kernels.fuse_step(
        [x.to(device) for x in logits], bench.vocabulary(sizes, device), on_device, plan.k, implementation="triton"
    )
    bad = [n for n, a, b in zip(got._fields, got, want, strict=True) if not close(a, b)]
    if bad:
        yield f"fuse_step: {bad}"


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
    wrong = list(differences(plan, device))
    print("\n".join(wrong) if wrong else "every operator equals the reference")
    if wrong:
        return 1
    card = "interpreter, not a GPU" if args.dry_run else torch.cuda.get_device_name()
    lines = [
        f"# Operators on {card}\n",
        "Made by `python benches/gpu_check.py`. Every operator equalled the reference before anything was measured.",
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
