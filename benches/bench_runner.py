"""The runner against transformers' own decode step, alternating in one process: medians and their ratio.

    python benches/bench_runner.py step --model demo:smollm2 --dtype bfloat16 --batch 1
    python benches/bench_runner.py batch --model demo:smollm2 --dtype bfloat16 --batch 32
    python benches/bench_runner.py linear
    python benches/bench_runner.py rows --model demo:smollm2

`--clock cpu` counts processor time instead of wall time: on a busy machine with `--threads 1` it is the steadier one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import DynamicCache

from ensemble_decode.members.transformers.attention import ATTENTION
from ensemble_decode.members.transformers.few_rows import few_rows_linear, in_blocks, runs_native
from ensemble_decode.members.transformers.loading import load as load_model
from ensemble_decode.members.transformers.runner import Runner

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def alternating(sides: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each side, run in turn, first one and then the other ahead."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, run in sorted(sides.items(), reverse=bool(turn % 2)):
            begun = clock()
            run()
            if turn:  # the first turn warms up
                times[name].append((clock() - begun) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def load(arguments: argparse.Namespace) -> torch.nn.Module:
    return load_model(arguments.model, device="cpu", dtype=arguments.dtype).model


def prompts(batch: int, length: int) -> list[list[int]]:
    return [[(37 * i + row) % 1000 + 5 for i in range(length)] for row in range(batch)]


def step(arguments: argparse.Namespace) -> None:
    """A decode step of every row, head included, through the runner and through transformers with a DynamicCache."""
    model = load(arguments)
    runner = Runner(model, name=arguments.model, few_rows=False if arguments.native else None)
    ids = prompts(arguments.batch, arguments.length)
    slots = [runner.acquire() for _ in ids]
    runner.reserve(len(ids), arguments.length + arguments.repeats + 8)
    runner.extend(slots, ids, "none")
    model.set_attn_implementation("sdpa")
    cache = DynamicCache(config=model.config)
    argument = runner.body.cache_argument
    with torch.no_grad():
        model(torch.tensor(ids), use_cache=True, logits_to_keep=1, **{argument: cache})
    token = torch.full((len(ids), 1), 7)

    def theirs() -> None:
        model.config._attn_implementation_internal = "sdpa"
        with torch.no_grad():
            model(token, use_cache=True, **{argument: cache})

    def ours() -> None:
        model.config._attn_implementation_internal = ATTENTION
        runner.extend(slots, [[7]] * len(ids))

    medians = alternating({"transformers": theirs, "runner": ours}, arguments.repeats, CLOCKS[arguments.clock])
    print(
        f"{arguments.model} {arguments.dtype} batch {arguments.batch}, {arguments.length} tokens of context: "
        f"transformers {medians['transformers']:.1f} ms, runner {medians['runner']:.1f} ms, "
        f"ratio {medians['runner'] / medians['transformers']:.3f}"
    )


def batch(arguments: argparse.Namespace) -> None:
    """Tokens per second of a batch against batch 1, through the runner."""
    runner = Runner(load(arguments), name=arguments.model, few_rows=False if arguments.native else None)
    runner.reserve(arguments.batch + 1, 2 * arguments.length + 4 * arguments.repeats)
    one = [runner.acquire()]
    many = [runner.acquire() for _ in range(arguments.batch)]
    ids = prompts(arguments.batch, arguments.length)
    runner.extend(one, ids[:1], "none")
    runner.extend(many, ids, "none")
    sides = {"one": lambda: runner.extend(one, [[7]]), "many": lambda: runner.extend(many, [[7]] * len(many))}
    medians = alternating(sides, arguments.repeats, CLOCKS[arguments.clock])
    gain = arguments.batch * medians["one"] / medians["many"]
    print(
        f"{arguments.model} {arguments.dtype}: batch 1 {medians['one']:.1f} ms, "
        f"batch {arguments.batch} {medians['many']:.1f} ms: {gain:.1f} x the tokens/s"
    )


def rows(arguments: argparse.Namespace) -> None:
    """Contiguous slots, read in place, against every other slot, which copies what it reads."""
    runner = Runner(load(arguments), name=arguments.model)
    half = arguments.batch // 2
    runner.reserve(2 * half, arguments.length + 4 * arguments.repeats)
    slots = [runner.acquire() for _ in range(2 * half)]
    runner.extend(slots, prompts(2 * half, arguments.length), "none")

    def decode(chosen: list[int]) -> None:
        runner.extend(chosen, [[7]] * half)
        for slot in chosen:
            runner.rollback(slot, arguments.length)

    sides = {"contiguous": lambda: decode(slots[:half]), "every other": lambda: decode(slots[::2])}
    medians = alternating(sides, arguments.repeats, CLOCKS[arguments.clock])
    print(
        f"{arguments.model} {arguments.dtype}, {half} rows of {arguments.length} tokens: contiguous "
        f"{medians['contiguous']:.1f} ms, every other slot {medians['every other']:.1f} ms, "
        f"ratio {medians['every other'] / medians['contiguous']:.3f}"
    )


def linear(arguments: argparse.Namespace) -> None:
    """Products of a few rows: torch's own, through a float32 copy, weights widened in blocks, in one pass of C++."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        for outputs, inputs in ((576, 576), (640, 2048), (49152, 576), (262144, 640)):
            weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
            for count in (1, 2, 4, 8, 16, 32, 128):
                x = torch.randn(count, inputs, generator=generator).to(dtype)
                sides: dict[str, Callable[[], object]] = {"torch": partial(torch.nn.functional.linear, x, weight)}
                if dtype == torch.bfloat16:
                    copy, out = weight.float(), torch.empty(count, outputs, dtype=dtype)
                    sides["float32 copy"] = partial(
                        lambda x, w: torch.nn.functional.linear(x.float(), w).bfloat16(), x, copy
                    )
                    sides["in blocks"] = partial(lambda x, w, out: in_blocks(x.float(), w, None, out), x, weight, out)
                if runs_native():
                    sides["one pass"] = partial(few_rows_linear, x, weight)
                medians = alternating(sides, arguments.repeats, CLOCKS[arguments.clock])
                ratios = ", ".join(f"{name} {medians['torch'] / value:.2f}" for name, value in medians.items())
                print(f"{str(dtype)[6:]} [{outputs}, {inputs}] x {count} rows, times faster than torch: {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "batch", "rows", "linear"))
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64, help="tokens of context")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: as it comes")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--native", action="store_true", help="torch's own bfloat16 products, whatever the CPU")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    {"step": step, "batch": batch, "rows": rows, "linear": linear}[arguments.what](arguments)


if __name__ == "__main__":
    main()
