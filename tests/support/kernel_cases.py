"""Named adversarial inputs for the operators, the implementations to run them on, and vocabularies for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from ensemble_decode.kernels import dispatch
from torch import Tensor

from ensemble_decode import kernels
from support import kernel_oracle as oracle

INF = math.inf
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
VOCABULARIES = (1, 7, 111, 32_000, 50_257, 151_936, 262_144)
BATCHES = (0, 1, 3, 64)
KS = (1, 8, 10, 16, 64)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def targets(operator: str) -> list:
    """(implementation, device) pairs for parametrising; those that cannot run are skipped with the reason."""
    pairs = []
    for name in dispatch.IMPLEMENTATIONS:
        for device in DEVICES:
            reason = dispatch.unavailable_reason(name, operator, device)
            marks = [] if reason is None else [pytest.mark.skip(reason=f"{name}: {reason}")]
            pairs.append(pytest.param(name, device, marks=marks, id=f"{name}-{device}"))
    return pairs


def slow(implementation: str, device: str) -> bool:
    """Triton's interpreter takes seconds where the others take milliseconds: large inputs leave it out."""
    return implementation == "triton" and device == "cpu"


# Builders of logits: (rows, vocabulary, dtype, generator) -> [rows, vocabulary].


def _normal(rows: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, size, generator=generator) * 3


def normal(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    return _normal(rows, size, g).to(dtype)


def ties_at_rank_k(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Three distinct values, so that every rank falls into a long run of ties spread over the row."""
    return torch.randint(0, 3, (rows, size), generator=g).to(dtype)


def one_high_then_ties(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """A few entries above one long tie: the k-th value is tied at the far end of the row too."""
    x = torch.zeros(rows, size)
    x[:, size // 2] = 2.0
    x[:, -1] = 1.0
    return x.to(dtype)


def all_equal(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    return torch.full((rows, size), -2.5).to(dtype)


def signed_zeros(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """−0 and 0 are equal: the smaller id comes first whatever its sign."""
    return torch.where(torch.rand(rows, size, generator=g) < 0.5, -0.0, 0.0).to(dtype)


def minus_inf_rows(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Row 0 is −inf throughout, the others have only a few finite entries."""
    x = torch.full((rows, size), -INF)
    x[:, :: max(1, size // 5)] = _normal(rows, len(range(0, size, max(1, size // 5))), g)
    x[:1] = -INF
    return x.to(dtype)


def plus_inf(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """A few +inf per row, among finite and −inf entries."""
    x = _normal(rows, size, g)
    x[:, size // 2 :: max(1, size // 3)] = INF
    x[:, :1] = -INF if size > 1 else INF
    return x.to(dtype)


def nan_rows(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Row 0 is NaN throughout, row 1 in one place, row 2 nowhere."""
    x = _normal(rows, size, g)
    x[:1] = math.nan
    x[1:2, size - 1] = math.nan
    return x.to(dtype)


def heavy_tail(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Cauchy, with the largest entries huddled in one region so that few groups hold the top-k."""
    x = torch.tan((torch.rand(rows, size, generator=g) - 0.5) * 3.1)
    x[:, : size // 50 + 1] += 40
    return x.clamp(-3e4, 3e4).to(dtype)


def huge_values(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Near the ends of the type's range: differences overflow where they are taken carelessly."""
    limit = torch.finfo(dtype).max
    return (torch.randint(-1, 2, (rows, size), generator=g).to(torch.float64) * limit).to(dtype)


def ascending(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """The best entries last, in the tail of the row."""
    return torch.linspace(-8, 8, size).expand(rows, size).to(dtype)


def padded_stride(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """A view into wider rows whose padding would win if it were read."""
    wide = torch.full((rows, size + 13), 1e4).to(dtype)
    wide[:, :size] = _normal(rows, size, g).to(dtype)
    return wide[:, :size]


def misaligned(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """A view that starts one element into its memory and has an odd row stride."""
    wide = torch.full((rows, size + 3 + size % 2), 1e4).to(dtype)
    wide[:, 1 : size + 1] = _normal(rows, size, g).to(dtype)
    return wide[:, 1 : size + 1]


def same_row_twice(rows: int, size: int, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """Row stride 0: every row is the same memory."""
    return _normal(1, size, g).to(dtype).expand(rows, size)


BUILDERS: dict[str, Callable[[int, int, torch.dtype, torch.Generator], Tensor]] = {
    f.__name__: f
    for f in (
        normal,
        ties_at_rank_k,
        one_high_then_ties,
        all_equal,
        signed_zeros,
        minus_inf_rows,
        plus_inf,
        nan_rows,
        heavy_tail,
        huge_values,
        ascending,
        padded_stride,
        misaligned,
        same_row_twice,
    )
}


def masks(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Bool [rows, size]: row 0 all banned, row 1 one id allowed (the last), then about half, then about 1 %."""
    mask = torch.rand(rows, size, generator=generator) < 0.5
    mask[3::2] = torch.rand(mask[3::2].shape, generator=generator) < 0.01
    mask[:1] = False
    mask[1:2] = torch.arange(size) == size - 1
    return mask


def pack(mask: Tensor, junk: bool = True) -> Tensor:
    """Bitmask int32 [rows, ⌈size/32⌉] of bool [rows, size]; bits past the vocabulary are set where `junk`."""
    rows, size = mask.shape
    words = (size + 31) // 32
    padded = torch.full((rows, words * 32), junk)
    padded[:, :size] = mask
    bits = padded.view(rows, words, 32).to(torch.int64) << torch.arange(32)
    total = bits.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def on(tensors: Sequence[Tensor] | Tensor, device: str):
    """The tensors on `device`, strides and offset kept (a moved view is rebuilt over its moved memory)."""
    if not isinstance(tensors, Tensor):
        return [on(t, device) for t in tensors]
    if device == "cpu":
        return tensors
    base = tensors.new_empty(0).set_(tensors.untyped_storage())
    return base.to(device).as_strided(tensors.shape, tensors.stride(), tensors.storage_offset())


def assert_equal(a, b) -> None:
    """Two results of one operator are bitwise equal, field by field."""
    for name in a._fields:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype, name
        assert x.shape == y.shape, name
        same = torch.equal(x.cpu(), y.cpu())
        assert same, f"{name}: {x} is not {y}"


# Vocabularies


def vocab_tensors(vocab: oracle.Vocab, device: str = "cpu") -> kernels.VocabTensors:
    """The operators' view of a vocabulary of plain bytes, read off the oracle's definitions one id at a time."""
    models, size = range(len(vocab.models)), vocab.end + 1

    def table(values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    ends = [
        next((j for j in range(c + 1, vocab.end) if not vocab.strings[j].startswith(s)), vocab.end)
        for c, s in enumerate(vocab.strings)
    ]
    return kernels.VocabTensors(
        to_cid=[table(vocab.cid(m, i) for i in range(len(vocab.models[m]))) for m in models],
        exact_id=[table(vocab.exact(m, c) for c in range(size)) for m in models],
        piece_id=[table(vocab.piece(m, c) for c in range(size)) for m in models],
        allowed=[pack(torch.tensor([vocab.allowed(m)])).to(device) for m in models],
        eos_ids=[table(vocab.eos[m]) for m in models],
        prefix_end=table([*ends, size]),
        space_cid=vocab.index.get(b" ", -1),
        size=size,
    )


def random_vocab(rng: np.random.Generator, sizes: Sequence[int], letters: bytes = b"ab ") -> oracle.Vocab:
    """Models that can spell everything over `letters`, with random longer pieces, twins, holes and EOS ids."""
    models, eos = [], []
    for size in sizes:
        pieces: list[bytes | None] = [bytes([c]) for c in letters]
        while len(pieces) < size - 2:
            length = int(rng.integers(1, 5))
            piece = bytes(rng.choice(list(letters), length).tolist())
            pieces.append(piece if rng.random() < 0.95 else None)
        rng.shuffle(pieces)  # type: ignore[arg-type]
        ends = int(rng.integers(0, 3))
        eos.append(list(range(len(pieces), len(pieces) + ends)))
        models.append(pieces + [None] * ends)
    return oracle.Vocab(models, eos)


def settings_tensors(rows: Sequence[oracle.Settings], device: str = "cpu", **more) -> kernels.FuseSettings:
    """FuseSettings of a batch from one oracle.Settings per row."""
    names = [n for n in vars(rows[0]) if n != "weights"]
    weights = torch.tensor([list(r.weights) for r in rows], dtype=torch.float64)
    columns = {n: [getattr(r, n) for r in rows] for n in names}
    return kernels.FuseSettings.make(len(rows), weights.shape[1], device, weights=weights, **columns, **more)
