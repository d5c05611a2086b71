"""The operators on a CPU beside what torch offers, in one process and in turn: medians, ratios, bytes, bandwidth.

    python benches/bench_kernels_cpu.py                    topk_stats and fuse_step, hot and cold cache
    python benches/bench_kernels_cpu.py --all              also torch.compile and our reference (slower)
    python benches/bench_kernels_cpu.py --models           also the demo models' decode step, to compare fuse_step with
    python benches/bench_kernels_cpu.py --write            also write docs/benchmarks/kernels_cpu.md
    pytest benches/bench_kernels_cpu.py                    the same providers under pytest-benchmark

Providers alternate (A B C A B C ...), so that a busy machine slows all of them alike; ratios are what to read. Each
runs for 10 ms before the call that counts: what ran before it, and threads that still wake up, do not count. Hot: on
the same logits. Cold: in turn on enough copies to overflow the last-level cache. Bandwidth is measured in the same
rounds, by as many threads: the machine's, by a plain read of 256 MiB, and that of a plain read of the same logits in
the same state.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from ensemble_decode.kernels import FuseSettings, VocabTensors, fuse_step, native_, topk_stats

K = 10
PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "kernels_cpu.md"
COLD_BYTES = 128 << 20
READ_BYTES = 256 << 20
WARM_SECONDS = 0.01
LARGE = "plain read past the caches"
SHAPES = [(32, 262_144), (1, 262_144)]

Provider = Callable[[torch.Tensor], object]


def torch_eager(logits: torch.Tensor) -> object:
    return torch.topk(logits, K, dim=1), torch.logsumexp(logits, 1)


def torch_eager_with_entropy(logits: torch.Tensor) -> object:
    log_p = torch.log_softmax(logits.float(), 1)
    return torch.topk(logits, K, dim=1), torch.logsumexp(logits, 1), -(log_p.exp() * log_p).sum(1)


def plain_read(logits: torch.Tensor) -> object:
    """A sum of the same bytes as int64, the fastest full read that torch has."""
    return logits.view(torch.int64).sum()


def ours(implementation: str) -> Provider:
    return lambda logits: topk_stats(logits, K, implementation=implementation)


def providers(every: bool) -> dict[str, Provider]:
    """Name to function; flashinfer has no CPU operators, so it never stands beside these."""
    table: dict[str, Provider] = {"plain read": plain_read, "torch topk + logsumexp": torch_eager}
    if every:
        table["torch.compile of it"] = torch.compile(torch_eager)
        table["torch with entropy"] = torch_eager_with_entropy
        table["torch.compile with entropy"] = torch.compile(torch_eager_with_entropy)
        table["ours, reference"] = ours("reference")
    if native_.unavailable_reason() is None:
        table["ours, native"] = ours("native")
    return table


def alternate(
    functions: dict[str, Callable[[int], object]], rounds: int, warm_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each function per round, after running it for `warm_seconds`; round i is handed to the function."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(-1, rounds):
        for name, function in functions.items():
            ready = time.perf_counter() + warm_seconds
            while time.perf_counter() < ready:
                function(i)
            start = time.perf_counter()
            function(i)
            if i >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def in_turn(logits: torch.Tensor, cold: bool) -> Iterator[torch.Tensor]:
    """The logits again and again; `cold`: enough copies of them in turn that none is still in a cache."""
    moved = logits.numel() * logits.element_size()
    return itertools.cycle([logits] + [logits.clone() for _ in range(COLD_BYTES // moved if cold else 0)])


def large_read() -> dict[str, Callable[[int], object]]:
    """The yardstick: a plain read of READ_BYTES, past every cache."""
    large = torch.ones(READ_BYTES // 8, dtype=torch.int64)
    return {LARGE: lambda _: plain_read(large)}


def bench_topk_stats(
    rows: int, size: int, dtype: torch.dtype, cold: bool, rounds: int, table: dict[str, Provider]
) -> list[str]:
    logits = (torch.randn(rows, size) * 3).to(dtype)
    moved = logits.numel() * logits.element_size()
    turns = in_turn(logits, cold)
    functions: dict[str, Callable[[int], object]] = {
        name: lambda _, provider=provider: provider(next(turns)) for name, provider in table.items()
    }
    middle = {name: median(s) for name, s in alternate(functions | large_read(), rounds, WARM_SECONDS).items()}
    memory = READ_BYTES / middle.pop(LARGE)
    base, read = middle["torch topk + logsumexp"], middle["plain read"]
    lines = []
    for name, value in middle.items():
        bandwidth = moved / value
        lines.append(
            f"| [{rows}, {size}] {str(dtype).removeprefix('torch.')} {'cold' if cold else 'hot'} | {name} | "
            f"{value * 1e3:.3f} | {base / value:.2f} | {moved / 1e6:.1f} | {bandwidth / 1e9:.1f} | "
            f"{bandwidth / memory:.0%} | {read / value:.0%} |"
        )
    return lines


def made_up_vocab(sizes: tuple[int, ...]) -> VocabTensors:
    """Vocabularies that share most candidates, all ids allowed but the first hundred: the demo models' proportions."""
    size = max(sizes) + 10_000
    to_cid, exact, piece, allowed, eos = [], [], [], [], []
    for v in sizes:
        cids = torch.randperm(size - 1)[:v].int()
        cids[:100] = -1
        table = torch.full((size,), -1, dtype=torch.int32)
        table[cids[100:].long()] = torch.arange(100, v, dtype=torch.int32)
        to_cid.append(cids)
        exact.append(table)
        piece.append(torch.where(table >= 0, table, torch.randint(100, v, (size,)).int()))
        words = torch.full((1, (v + 31) // 32), -1, dtype=torch.int32)
        words[0, :3] = 0
        words[0, 3] = -16
        allowed.append(words)
        eos.append(torch.tensor([150], dtype=torch.int32))
    prefix_end = (torch.arange(size) + 1).int()
    return VocabTensors(to_cid, exact, piece, allowed, eos, prefix_end, 5, size)


def bench_fuse_step(rounds: int) -> tuple[list[str], dict[int, float]]:
    sizes = (49_152, 262_144)
    vocab = made_up_vocab(sizes)
    lines, native_seconds = [], {}
    for rows in (1, 32):
        logits = [(torch.randn(rows, v) * 3).bfloat16() for v in sizes]
        settings = FuseSettings.make(rows, 2, sharpen="prefix")

        def run(
            implementation: str, logits: list = logits, settings: FuseSettings = settings
        ) -> Callable[[int], object]:
            return lambda _: fuse_step(logits, vocab, settings, K, implementation=implementation)

        names = ["reference"] + (["native"] if native_.unavailable_reason() is None else [])
        middle = {n: median(s) for n, s in alternate({n: run(n) for n in names}, rounds).items()}
        native_seconds[rows] = middle[names[-1]]
        for name, value in middle.items():
            lines.append(
                f"| fuse_step, {rows} rows | ours, {name} | {value * 1e3:.3f} | {middle['reference'] / value:.2f} |"
            )
    return lines, native_seconds


def decode_step_seconds(rows: int, rounds: int = 3) -> float:
    """Both demo models' decode step (one new token per row over a short context), in bfloat16, summed."""
    from ensemble_decode.members.transformers.loading import load

    total = 0.0
    for name in ("demo:smollm2", "demo:gemma3"):
        model = load(name, dtype="bfloat16").model
        with torch.inference_mode():
            cache = model(torch.ones(rows, 32, dtype=torch.long)).past_key_values
            step = torch.ones(rows, 1, dtype=torch.long)
            total += median(
                alternate({"forward": lambda _, m=model, c=cache, s=step: m(s, past_key_values=c)}, rounds)["forward"]
            )
    return total


def report(rounds: int, with_models: bool, every: bool) -> str:
    torch.manual_seed(0)
    isa = native_.isa() if native_.unavailable_reason() is None else f"no native code ({native_.unavailable_reason()})"
    lines = [
        "# The operators on a CPU",
        "",
        f"{platform.machine()}, {torch.get_num_threads()} threads, {isa}, torch {torch.__version__}. Written by "
        "`python benches/bench_kernels_cpu.py`; compare ratios, not times. The machine's read bandwidth is "
        "that of a plain "
        f"read of {READ_BYTES >> 20} MiB in the same rounds; hot logits lie in the last-level cache, which may "
        "be faster.",
        "",
        "| logits | provider | median ms | × torch | MB | GB/s | share of the machine's read bandwidth | of a "
        "plain read of these |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    table = providers(every)
    for rows, size in SHAPES:
        for cold in (False, True):
            lines += bench_topk_stats(rows, size, torch.bfloat16, cold, rounds, table)
    step_lines, native_seconds = bench_fuse_step(rounds)
    lines += ["", "| operator | provider | median ms | × reference |", "| --- | --- | ---: | ---: |", *step_lines]
    if with_models:
        lines += [
            "",
            "| rows | fuse_step ms | decode step of both demo models ms | share |",
            "| ---: | ---: | ---: | ---: |",
        ]
        for rows, seconds in native_seconds.items():
            forward = decode_step_seconds(rows)
            lines.append(f"| {rows} | {seconds * 1e3:.3f} | {forward * 1e3:.1f} | {seconds / forward:.2%} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def bandwidth() -> float:
    """Bytes per second of a plain read of READ_BYTES."""
    return READ_BYTES / median(alternate(large_read(), 9)[LARGE])


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("rows", [rows for rows, _ in SHAPES])
@pytest.mark.parametrize("provider", list(providers(every=True)))
def test_topk_stats(benchmark, bandwidth: float, provider: str, rows: int, state: str) -> None:
    logits = (torch.randn(rows, 262_144, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    moved = logits.numel() * logits.element_size()
    turns, run = in_turn(logits, state == "cold"), providers(every=True)[provider]
    benchmark.group = f"topk_stats [{rows}, 262144] {state}"
    benchmark.pedantic(lambda: run(next(turns)), rounds=10, warmup_rounds=2)
    per_second = moved / benchmark.stats["median"]
    benchmark.extra_info |= {
        "bytes": moved,
        "GB/s": per_second / 1e9,
        "share of read bandwidth": per_second / bandwidth,
    }


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("implementation", ["reference", "native"])
def test_fuse_step(benchmark, implementation: str, rows: int) -> None:
    if implementation == "native" and native_.unavailable_reason() is not None:
        pytest.skip(str(native_.unavailable_reason()))
    vocab = made_up_vocab((49_152, 262_144))
    logits = [(torch.randn(rows, v) * 3).bfloat16() for v in (49_152, 262_144)]
    settings = FuseSettings.make(rows, 2, sharpen="prefix")
    benchmark.group = f"fuse_step, {rows} rows"
    benchmark.pedantic(
        fuse_step,
        args=(logits, vocab, settings, K),
        kwargs={"implementation": implementation},
        rounds=5,
        warmup_rounds=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", action="store_true", help="time the demo models' decode step too")
    parser.add_argument("--all", action="store_true", help="torch.compile and the reference beside the others")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    args = parser.parse_args()
    text = report(args.rounds, args.models, args.all)
    print(text)
    if args.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
