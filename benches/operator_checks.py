"""Every Triton operator against the reference on one device; `gpu_check.py` runs these before it measures anything.

Each check yields a line per disagreement. The reference computes on the CPU from the same inputs. Copied values, ids,
counts, flags and choices must be equal, computed numbers within 2e-5 + 1e-5 relative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import bench_kernels_gpu as bench
import torch
from ensemble_decode.kernels import reference
from torch import Tensor

from ensemble_decode import kernels


class Sizes(NamedTuple):
    """What is checked: vocabularies of single-model operators, the two of fused ones, types, rows, k."""

    single: tuple[int, ...]
    fused: tuple[int, int]
    dtypes: tuple[torch.dtype, ...]
    batch: int
    k: int


def close(a: Tensor, b: Tensor) -> bool:
    """Equal for integers, booleans and infinities; within rounding for other numbers."""
    a, b = a.cpu(), b.cpu()
    return torch.allclose(a, b, atol=2e-5, rtol=1e-5) if a.is_floating_point() else torch.equal(a, b)


def unequal(got: Any, want: Any) -> list[str]:
    """Names of the fields of two results that disagree."""
    return [name for name, a, b in zip(got._fields, got, want, strict=True) if not close(a, b)]


def moved(value: Any, device: str) -> Any:
    """The same structure of tensors on a device; a view keeps its strides and its offset."""
    if isinstance(value, Tensor):
        memory = value.new_empty(0).set_(value.untyped_storage())
        return memory.to(device).as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(v, device) for v in value))
    return [moved(v, device) for v in value] if isinstance(value, (list, tuple)) else value


def adversarial(size: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Named rows: plain, tied, with infinities and NaN, and a misaligned view."""
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(size)) * 3
    yield "plain", x.to(dtype)
    yield "ties", x.round().clamp(-1, 1).to(dtype)
    odd = x.clone()
    odd[0, size // 2], odd[1, size - 1], odd[2, : size // 2 + 1] = float("inf"), float("nan"), float("-inf")
    yield "not finite", odd.to(dtype)
    wide = torch.full((3, size + 3 + size % 2), 1e4)
    wide[:, 1 : size + 1] = x
    yield "misaligned", wide.to(dtype)[:, 1 : size + 1]


def half_mask(size: int) -> Tensor:
    """A bitmask [1, words] that allows about half of the ids."""
    g = torch.Generator().manual_seed(size)
    return torch.randint(-(2**31), 2**31, (1, (size + 31) // 32), generator=g).to(torch.int32)


def topk_stats(sizes: Sizes, device: str) -> Iterator[str]:
    for size in sizes.single:
        for dtype in sizes.dtypes:
            for kind, x in adversarial(size, dtype):
                allowed = half_mask(size) if kind == "misaligned" else None
                here = moved([x, allowed], device)
                got = kernels.topk_stats(here[0], sizes.k, here[1], implementation="triton")
                want = reference.topk_stats(x, sizes.k, allowed)
                bad = unequal(got, want)
                if bad or not torch.equal(got.values.cpu(), want.values):
                    yield f"V={size} {dtype} {kind}: {bad or 'values are not copies'}"
                alone = kernels.topk_stats(here[0][1:2], sizes.k, here[1], implementation="triton")
                if any(not torch.equal(a, b[1:2]) for a, b in zip(alone, got, strict=True)):
                    yield f"V={size} {dtype} {kind}: a row depends on its batch"


def verify_draft(sizes: Sizes, device: str) -> Iterator[str]:
    for size in sizes.single:
        for dtype in sizes.dtypes:
            for kind, x in adversarial(size, dtype):
                best = reference.topk_stats(x, 1).ids[:, 0]
                for targets in (best, torch.tensor([-2, -1, size - 1], dtype=torch.int32)):
                    args = (x, targets, half_mask(size), torch.tensor([0, size // 2], dtype=torch.int32))
                    got = kernels.verify_draft(*moved(args, device), implementation="triton")
                    bad = unequal(got, reference.verify_draft(*args))
                    if bad:
                        yield f"V={size} {dtype} {kind}: {bad}"


class Step(NamedTuple):
    """Inputs of a fused step."""

    logits: list[Tensor]
    vocab: kernels.VocabTensors
    settings: kernels.FuseSettings


def mixed_step(sizes: Sizes, dtype: torch.dtype, **fields: Any) -> Step:
    """Two models, every aggregate, sharpening, trigger, gate and rule for missing ids mixed over the rows."""
    row = torch.arange(sizes.batch)
    some = {
        "aggregate": row % 2, "sharpen": (row // 2) % 4, "trigger": (row // 3) % 2, "threshold": 0.9, "min_prob": 0.0,
        "gate": (row // 5) % 4, "gate_threshold": 0.05, "oov": (row // 3) % 2, "row": row, "top_k": sizes.k,
        "weights": (2.0, 1.0), "seed": 7, "step": row * 3,
    }  # fmt: skip
    logits = bench.make_logits(sizes.fused, sizes.batch, dtype, "cpu")
    logits = [x * 2 for x in logits]
    logits[1][-1, 1], logits[0][-1, 2:4] = float("nan"), float("inf")
    settings = kernels.FuseSettings.make(sizes.batch, 2, **(some | fields))
    return Step(logits, bench.vocabulary(sizes.fused, "cpu"), settings)


def parts(step: Step, k: int) -> tuple[list[Any], list[Tensor], Tensor, Tensor]:
    """By the reference: statistics per model, their ids, the union and the models' scores of it."""
    vocab = step.vocab
    stats = [reference.topk_stats(x, k, a) for x, a in zip(step.logits, vocab.allowed, strict=True)]
    ids = [s.ids for s in stats]
    cids, _ = reference.union_topk(ids, vocab.to_cid)
    tables = zip(step.logits, vocab.piece_id, vocab.eos_ids, vocab.allowed, strict=True)
    return stats, ids, cids, torch.stack([reference.gather_candidates(x, cids, *rest) for x, *rest in tables])


def union_topk(sizes: Sizes, device: str) -> Iterator[str]:
    step = mixed_step(sizes, torch.bfloat16)
    ids = parts(step, sizes.k)[1]
    ids[1][0, 0] = -1
    want = reference.union_topk(ids, step.vocab.to_cid)
    got = kernels.union_topk(moved(ids, device), moved(step.vocab.to_cid, device), implementation="triton")
    if not all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True)):
        yield f"{[x.tolist() for x in got]} is not {[x.tolist() for x in want]}"


def gather_candidates(sizes: Sizes, device: str) -> Iterator[str]:
    for dtype in sizes.dtypes:
        step = mixed_step(sizes, dtype)
        cids = parts(step, sizes.k)[2]
        cids[:, -1] = step.vocab.size - 1
        for m, x in enumerate(step.logits):
            for table in (step.vocab.piece_id[m], step.vocab.exact_id[m]):
                args = (x, cids, table, step.vocab.eos_ids[m], half_mask(x.shape[1]))
                got = kernels.gather_candidates(*moved(args, device), implementation="triton")
                if not close(got, reference.gather_candidates(*args)):
                    yield f"{dtype}, model {m}"


def fuse_candidates(sizes: Sizes, device: str) -> Iterator[str]:
    step = mixed_step(sizes, torch.float32)
    stats, ids, cids, scores = parts(step, sizes.k)
    tops = torch.where(ids[0] >= 0, step.vocab.to_cid[0][ids[0].long()], -1).to(torch.int32)
    args = (
        scores, cids, torch.stack([s.logsumexp for s in stats]), tops, stats[0].values[:, 0].contiguous(),
        tops[:, 0].contiguous(), step.vocab.prefix_end, step.vocab.space_cid, step.settings,
    )  # fmt: skip
    bad = unequal(
        kernels.fuse_candidates(*moved(args, device), implementation="triton"), reference.fuse_candidates(*args)
    )
    if bad:
        yield str(bad)


def fuse_step(sizes: Sizes, device: str, **fields: Any) -> Iterator[str]:
    for dtype in sizes.dtypes:
        step = mixed_step(sizes, dtype, **fields)
        got = kernels.fuse_step(*moved(step, device), sizes.k, implementation="triton")
        bad = unequal(got, reference.fuse_step(*step, sizes.k))
        if bad:
            yield f"{dtype}: {bad}"


def fuse_full(sizes: Sizes, device: str, **fields: Any) -> Iterator[str]:
    """Candidates whose probabilities agree within rounding may change places in the list."""
    step = mixed_step(sizes, torch.float32, **fields)
    got = kernels.fuse_full(*moved(step, device), sizes.k, implementation="triton")
    want = reference.fuse_full(*step, sizes.k + 1)  # one more, to know whether the last place is contested
    gaps = (want.probs[:, :-1] - want.probs[:, 1:]) > 1e-5 * want.probs[:, :-1]
    settled = gaps & torch.nn.functional.pad(gaps[:, :-1], (1, 0), value=True)
    k = sizes.k
    same = torch.equal(got.cids.cpu()[settled], want.cids[:, :k][settled])
    want = want._replace(cids=got.cids.cpu(), probs=want.probs[:, :k], count=want.count.clamp(max=k))
    bad = unequal(got, want) + ([] if same else ["cids"])
    if bad:
        yield str(bad)


def sampling(sizes: Sizes, device: str) -> Iterator[str]:
    """Filters in all combinations, over unions and over whole vocabularies: the same choices."""
    row = torch.arange(sizes.batch)
    fields = {
        "temperature": torch.tensor([0.0, 0.7, 1.5])[(row + 1) % 3], "top_p": torch.tensor([1.0, 0.9, 0.4])[row % 3],
        "sample_top_k": (row % 2) * 6, "min_p": torch.tensor([0.0, 0.05])[(row // 2) % 2], "gate": 0,
    }  # fmt: skip
    for name, check in (("fuse_step", fuse_step), ("fuse_full", fuse_full)):
        for line in check(sizes, device, **fields):
            yield f"{name}: {line}"


CHECKS: dict[str, Callable[[Sizes, str], Iterator[str]]] = {
    check.__name__: check
    for check in (
        topk_stats,
        verify_draft,
        union_topk,
        gather_candidates,
        fuse_candidates,
        fuse_step,
        fuse_full,
        sampling,
    )
}


def differences(sizes: Sizes, device: str, checks: Sequence[str] = tuple(CHECKS)) -> Iterator[str]:
    """Every disagreement with the reference, or between two batches, as one line that begins with the check's name."""
    for name in checks:
        for line in CHECKS[name](sizes, device):
            yield f"{name}: {line}"
