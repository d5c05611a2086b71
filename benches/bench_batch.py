"""Offline batches: continuous batching against static batching and one by one, cost per row, memory; alternating in one
process.

    python benches/bench_batch.py throughput           # bfloat16 demo models, a length mix with a heavy tail
    python benches/bench_batch.py throughput --tiny    # the same on random tiny models in float32
    python benches/bench_batch.py linear               # cost per row of 100, 400 and 1600 rows; memory over 2000 rows
    python benches/bench_batch.py prefix               # a common beginning read once against by every row

Prints ratios and medians: absolute times of a shared CPU mean nothing to anybody else.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import random_models
import torch
import transformers

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest

batch_size = 16
METHODS = {"unite": ed.UniTE(), "safe": ed.SAFE()}


def heavy_tail(rows: int, longest: int, seed: int = 0) -> list[BatchRequest]:
    """Requests whose answers are mostly short: a Pareto tail (shape 1.2) up to ``longest`` tokens, never ended by a
    model."""
    draw = random.Random(seed)
    lengths = [min(longest, int(3 * draw.paretovariate(1.2))) for _ in range(rows)]
    return [BatchRequest(f"Item {i}: the old lighthouse keeper", max_new_tokens=n) for i, n in enumerate(lengths)]


def one_by_one(ensemble: ed.Ensemble, requests: Sequence[BatchRequest], method: object) -> int:
    tokens = 0
    for request in requests:
        (done,) = ensemble.generate([request.prompt], method=method, max_new_tokens=request.max_new_tokens)
        tokens += len(done.token_ids)
    return tokens


def limited(ensemble: ed.Ensemble, requests: Sequence[BatchRequest], method: object) -> tuple[int, int]:
    """Bytes that the caches may take for a third of a batch of these rows, and the most that they took."""
    for runner in ensemble.runners:
        runner.free_memory()
    limit = batch_size // 3 * 256 * sum(runner.bytes_per_token for runner in ensemble.runners)
    run = ensemble.generate_batch(requests, method=method, batch_size=batch_size, memory=limit)
    for _ in run:
        pass
    return limit, run.counts.peak_cache_bytes


def shrinking(ensemble: ed.Ensemble, requests: Sequence[BatchRequest], method: object) -> int:
    """Batches of the same size, each run until its last row has ended; rows that have ended leave the forwards."""
    tokens = 0
    for at in range(0, len(requests), batch_size):
        tokens += continuous(ensemble, requests[at : at + batch_size], method)
    return tokens


def static(ensemble: ed.Ensemble, requests: Sequence[BatchRequest], method: object) -> int:
    """Static batching as transformers' ``generate`` does it: every row is computed until the last of its batch has
    ended."""
    tokens = 0
    for at in range(0, len(requests), batch_size):
        batch = requests[at : at + batch_size]
        longest = max(request.max_new_tokens or 0 for request in batch)
        padded = [replace(request, max_new_tokens=longest) for request in batch]
        run = ensemble.generate_batch(padded, method=method, batch_size=batch_size)
        tokens += sum(min(len(r.completion.token_ids), batch[r.index].max_new_tokens or 0) for r in run)
    return tokens


def continuous(ensemble: ed.Ensemble, requests: Sequence[BatchRequest], method: object) -> int:
    run = ensemble.generate_batch(requests, method=method, batch_size=batch_size)
    return sum(len(result.completion.token_ids) for result in run)


def throughput(options: argparse.Namespace) -> None:
    ensemble = load(options)
    method = METHODS[options.method]
    requests = heavy_tail(options.rows, options.longest)
    few = requests[:: max(1, len(requests) // 12)]  # one by one is slow: a sample of the same lengths
    pace: dict[str, list[float]] = {"one by one": [], "static": [], "shrinking": [], "continuous": []}
    ways: dict[str, tuple[Callable[..., int], Sequence[BatchRequest]]] = {
        "one by one": (one_by_one, few),
        "static": (static, requests),
        "shrinking": (shrinking, requests),
        "continuous": (continuous, requests),
    }
    ways = {name: way for name, way in ways.items() if name in (*options.ways, "continuous")}
    continuous(ensemble, requests[:batch_size], method)
    for _ in range(options.rounds):
        for name, (way, rows) in ways.items():
            began = time.perf_counter()
            tokens = way(ensemble, rows, method)
            pace[name].append(tokens / (time.perf_counter() - began))
            print(f"{name}: {pace[name][-1]:.1f} tokens/s", flush=True)
    lengths = [request.max_new_tokens or 0 for request in requests]
    print(
        f"{len(requests)} rows, mean {statistics.mean(lengths):.1f} tokens, longest {max(lengths)}, batch {batch_size}"
    )
    limit, peak = limited(ensemble, requests[:batch_size], method)
    print(f"under a limit of {limit / 2**20:.1f} MiB the caches took {peak / 2**20:.1f} MiB at most")
    for name in options.ways:
        ratios = [a / b for a, b in zip(pace["continuous"], pace[name], strict=True)]
        print(f"continuous / {name}: {statistics.median(ratios):.2f} (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def linear(options: argparse.Namespace) -> None:
    ensemble = random_ensemble()

    def seconds(rows: int) -> float:
        requests = [BatchRequest(f"Item {i % 50}: the", max_new_tokens=4 + i % 8) for i in range(rows)]
        began = time.perf_counter()
        continuous(ensemble, requests, ed.UniTE())
        return (time.perf_counter() - began) / rows

    seconds(64)
    found: dict[int, list[float]] = {100: [], 400: [], 1600: []}
    for _ in range(options.rounds):
        for rows in found:
            for _ in range(max(1, 400 // rows)):
                found[rows].append(seconds(rows))
    base = statistics.median(found[400])
    for rows, values in found.items():
        print(f"{rows} rows: {statistics.median(values) / base:.3f} of the cost per row at 400")
    marks: list[int] = []
    requests = (BatchRequest(f"Item {i % 50}: the", max_new_tokens=4 + i % 8) for i in range(2000))
    for result in ensemble.generate_batch(requests, batch_size=batch_size, order="finished"):
        if result.index % 250 == 249:
            marks.append(resident())
    print("resident MiB every 250 of 2000 rows: " + ", ".join(f"{mark / 2**20:.1f}" for mark in marks))


def beginning(ensemble: ed.Ensemble, tokens: int) -> str:
    """A text of about so many tokens of the primary."""
    text = ""
    while len(ensemble.tokenizers[0].encode(text)) < tokens:
        text += f"You are a careful assistant; rule {len(text)}: answer briefly and correctly. "
    return text


def prefix(options: argparse.Namespace) -> None:
    """Prompts with one common beginning, read once or by every row: time of the job, by the beginning's length."""
    ensemble = load(options)
    for tokens in options.prefix_tokens:
        common = beginning(ensemble, tokens)
        requests = [BatchRequest(f"{common}Question {i}:", max_new_tokens=8) for i in range(options.rows)]
        times: dict[bool, list[float]] = {True: [], False: []}
        reused: list[int] = []
        for _ in range(options.rounds):
            for share in times:
                began = time.perf_counter()
                run = ensemble.generate_batch(
                    requests, method=METHODS[options.method], batch_size=batch_size, share_prefixes=share
                )
                for _ in run:
                    pass
                times[share].append(time.perf_counter() - began)
                reused = run.counts.prefix_tokens_reused if share else reused
        ratios = [a / b for a, b in zip(times[False], times[True], strict=True)]
        print(
            f"{len(ensemble.tokenizers[0].encode(common))} tokens in common, {options.rows} rows of 8 tokens, "
            f"batch {batch_size}: "
            f"{statistics.median(ratios):.2f} times as fast with it read once "
            f"(rounds: {', '.join(f'{r:.2f}' for r in ratios)}); tokens reused per model {reused}",
            flush=True,
        )


def random_ensemble() -> ed.Ensemble:
    """Two models of random weights, small enough that thousands of rows take minutes; they never end a text."""
    sizes = (2048, 3000)
    models = [random_models.model(size, layers=2, hidden=128, seed=i) for i, size in enumerate(sizes)]
    return ed.Ensemble.from_models(
        models, [random_models.tokenizer(size, i) for i, size in enumerate(sizes)], cache_dir=None
    )


def load(options: argparse.Namespace) -> ed.Ensemble:
    if options.tiny:
        return random_ensemble()
    return ed.Ensemble.load(["demo:smollm2", "demo:gemma3"], dtype=options.dtype)


def main() -> None:
    global batch_size
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "linear", "prefix"])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--prefix-tokens", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--method", choices=list(METHODS), default="unite")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["one by one", "static", "shrinking"], help="what to compare with")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    batch_size = options.batch_size
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    {"throughput": throughput, "linear": linear, "prefix": prefix}[options.what](options)


if __name__ == "__main__":
    main()
