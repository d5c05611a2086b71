"""Inputs, providers and the clock of the GPU measurements; `gpu_check.py` runs them and writes the page.

Providers of one ensemble step on the same logits: `torch eager` and `torch.compile` (topk, logsumexp, entropy, union by
sort, gather, softmax, mean, argmax), `flashinfer` (its top-k and softmax for the part that it has, where it is
installed) and `ours` (`fuse_step`). Each is captured in a CUDA graph and replayed; `cold` clears the L2 cache before
every replay.

    pytest benches/bench_kernels_gpu.py    the same providers under pytest-benchmark; skipped without a GPU
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from ensemble_decode.kernels.types import FuseSettings, VocabTensors
from torch import Tensor

from ensemble_decode import kernels

L2_BYTES = 256 * 2**20
"""Written between cold replays: more than the L2 cache of any card of today."""


def vocabulary(sizes: Sequence[int], device: str, seed: int = 0) -> VocabTensors:
    """An aligned vocabulary of random candidates: every id but the EOS id 0 is one candidate of its model."""
    g = torch.Generator().manual_seed(seed)
    n = max(sizes) + max(sizes) // 4 + 1
    to_cid, exact, piece, allowed, eos = [], [], [], [], []
    for size in sizes:
        cids = torch.randperm(n - 1, generator=g)[:size].to(torch.int32)
        cids[0] = n - 1
        ids = torch.full((n,), -1, dtype=torch.int32)
        ids[cids[1:].long()] = torch.arange(1, size, dtype=torch.int32)
        pieces = torch.randint(1, max(size, 2), (n,), generator=g).clamp(max=size - 1).to(torch.int32)
        words = torch.full((1, (size + 31) // 32), -1, dtype=torch.int32)
        to_cid.append(cids)
        exact.append(ids)
        piece.append(torch.where(ids >= 0, ids, pieces))
        allowed.append(words)
        eos.append(torch.zeros(1, dtype=torch.int32))
    prefix_end = (torch.arange(n) + 1 + torch.randint(0, 9, (n,), generator=g)).clamp(max=n - 1).to(torch.int32)
    prefix_end[-1] = n
    lists = ([t.to(device) for t in tensors] for tensors in (to_cid, exact, piece, allowed, eos))
    return VocabTensors(*lists, prefix_end=prefix_end.to(device), space_cid=5, size=n)


def make_logits(sizes: Sequence[int], batch: int, dtype: torch.dtype, device: str, seed: int = 1) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(batch, size, generator=g) * 3).to(dtype).to(device) for size in sizes]


def torch_step(logits: Sequence[Tensor], vocab: VocabTensors, weights: Tensor, k: int) -> Tensor:
    """UniTE's step in plain torch operators: the chosen candidate of each row."""
    tops = []
    for m, x in enumerate(logits):
        y = x.float()
        _, ids = y.topk(k, dim=-1)
        logsumexp = y.logsumexp(-1, keepdim=True)
        p = (y - logsumexp).exp()
        tops.append((vocab.to_cid[m][ids], -(p * (y - logsumexp)).sum(-1)))
    union = torch.cat([cids for cids, _ in tops], -1).sort(-1).values
    repeated = torch.nn.functional.pad(union[:, 1:] == union[:, :-1], (1, 0))
    mean = torch.zeros_like(union, dtype=torch.float32)
    for m, x in enumerate(logits):
        ids = vocab.piece_id[m][union].clamp(min=0)
        scores = x.gather(1, ids.long()).float().masked_fill(repeated, float("-inf"))
        mean = mean + weights[:, m : m + 1] * scores.softmax(-1)
    return union.gather(1, mean.argmax(-1, keepdim=True))


def flashinfer_part(logits: Sequence[Tensor], k: int) -> list[Tensor]:
    """The part of the step that flashinfer has: probabilities and their top-k renormalisation."""
    from flashinfer import sampling

    return [sampling.top_k_renorm_probs(torch.softmax(x.float(), -1), k) for x in logits]


def providers(
    logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, implementation: str
) -> dict[str, Callable[[], object]]:
    """What is measured side by side; flashinfer only where it is installed."""
    compiled = torch.compile(torch_step, dynamic=False)
    found: dict[str, Callable[[], object]] = {
        "torch eager": lambda: torch_step(logits, vocab, settings.weights, k),
        "torch.compile": lambda: compiled(logits, vocab, settings.weights, k),
        "ours": lambda: kernels.fuse_step(logits, vocab, settings, k, implementation=implementation),
    }
    if logits[0].is_cuda and importlib.util.find_spec("flashinfer") is not None:
        found["flashinfer (top-k only)"] = lambda: flashinfer_part(logits, k)
    return found


class Clock:
    """Median microseconds of one call: CUDA graph replay on a GPU, the plain call elsewhere."""

    def __init__(self, call: Callable[[], object], on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.replay: Callable[[], object] = call
        if on_gpu:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.kept = call()
            self.replay = graph.replay

    def microseconds(self, repeats: int, cold: bool) -> float:
        if not self.on_gpu:
            return statistics.median(self._plain() for _ in range(repeats))
        flush = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda") if cold else None
        inner = 1 if cold else 20
        samples = []
        for _ in range(repeats):
            if flush is not None:
                flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(inner):
                self.replay()
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1000 / inner)
        return statistics.median(samples)

    def _plain(self) -> float:
        start = time.perf_counter()
        self.replay()
        return (time.perf_counter() - start) * 1e6


def read_bandwidth(on_gpu: bool) -> float:
    """Bytes per second of one large read (a sum), the yardstick of the table."""
    size = 2**30 if on_gpu else 2**24
    memory = torch.ones(size // 4, device="cuda" if on_gpu else "cpu")
    return size / (Clock(lambda: memory.sum(), on_gpu).microseconds(10, cold=False) * 1e-6)


@pytest.fixture(scope="module")
def bandwidth() -> float:
    return read_bandwidth(on_gpu=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("batch", [1, 8, 64, 256])
@pytest.mark.parametrize("provider", ["torch eager", "torch.compile", "flashinfer (top-k only)", "ours"])
def test_step(benchmark, bandwidth: float, provider: str, batch: int, state: str) -> None:
    """Replays of one captured step over two bfloat16 vocabularies of 151 936."""
    sizes, k = (151_936, 151_936), 10
    logits, vocab = make_logits(sizes, batch, torch.bfloat16, "cuda"), vocabulary(sizes, "cuda")
    found = providers(logits, vocab, FuseSettings.make(batch, 2, "cuda"), k, "triton")
    if provider not in found:
        pytest.skip("flashinfer is not installed")
    replay = Clock(found[provider], on_gpu=True).replay
    flush = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda")

    def prepare() -> None:
        if state == "cold":
            flush.zero_()
        torch.cuda.synchronize()

    def once() -> None:
        replay()
        torch.cuda.synchronize()

    benchmark.group = f"step of 2 x 151936, {batch} rows, {state}"
    benchmark.pedantic(once, setup=prepare, rounds=20, warmup_rounds=2)
    moved = sum(x.numel() * x.element_size() for x in logits)
    per_second = moved / benchmark.stats["median"]
    benchmark.extra_info |= {
        "bytes": moved,
        "GB/s": per_second / 1e9,
        "share of read bandwidth": per_second / bandwidth,
    }
