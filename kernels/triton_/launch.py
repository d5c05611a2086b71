"""What every launcher here shares: whether Triton can run, the shapes of the two stages, and the scratch memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from ensemble_decode.kernels.types import FuseSettings, FuseStep, VocabTensors
from torch import Tensor

try:
    import triton
except ImportError:  # the package works without it, on torch and native code
    triton = None

CHUNK = 8192
"""Elements of one stage-1 program: a fixed size, so that a row's partial sums do not depend on the batch."""
GROUP = 128
"""Contiguous elements under one maximum."""
GROUPS = CHUNK // GROUP
PARTIALS = 4
"""float32 per chunk: maximum, Σe, Σe·z and the NaN flag."""
CANDIDATE_CHUNK = 2048
"""Candidates of one program over a whole vocabulary; fixed for the same reason as CHUNK."""
FULL_STATE = 6
FULL_PARTIALS = 5
FULL_BLOCK = 1 << 25
"""Candidates of all rows that `fuse_full` works on at a time: two float32 tables of this size bound its memory."""
MAX_MODELS = 8
MIN_VERSION = (3, 4)

STREAM_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
"""Stage 1: multiply-adds are fused on purpose (exp2 with one FMA); the option's default differs between releases."""
FINISH_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False, "maxnreg": 224}
"""Stage 2: no fusion, so that its sums round as the reference's do; registers allowed, since ptxas would rather
spill."""


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python (``TRITON_INTERPRET=1``)."""
    return triton is not None and bool(triton.knobs.runtime.interpret)


def unavailable_reason() -> str | None:
    """Why no operator here can run on this machine; None where they can."""
    if triton is None:
        return "triton is not installed"
    version = tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2])
    if version < MIN_VERSION:
        return f"triton {triton.__version__} is too old, {'.'.join(map(str, MIN_VERSION))} or newer is needed"
    if not interpreted() and not torch.cuda.is_available():
        return "there is no CUDA device; elsewhere triton runs only in its interpreter (TRITON_INTERPRET=1)"
    return None


def limit_reason(operator: str, args: tuple[Any, ...]) -> str | None:
    """Why `operator` cannot take these arguments; None where it can."""
    models = len(args[0]) if operator in ("union_topk", "fuse_step", "fuse_full") else 1
    if operator == "fuse_candidates":
        models = args[0].shape[0]
    if models > MAX_MODELS:
        return f"it takes at most {MAX_MODELS} models, got {models}"
    return None


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


class Rows(NamedTuple):
    """The logits of M models as the passes over candidates take them."""

    logits: tuple[Tensor, ...]
    strides: tuple[int, ...]
    vocab: tuple[int, ...]
    allowed: tuple[Tensor, ...]
    allowed_strides: tuple[int, ...]


class Stream(NamedTuple):
    """The logits of M models as stage 1 and stage 2 take them: tuples of M pointers and sizes."""

    logits: tuple[Tensor, ...]
    strides: tuple[int, ...]
    vocab: tuple[int, ...]
    allowed: tuple[Tensor, ...]
    allowed_strides: tuple[int, ...]
    masked: bool
    chunks: int
    partials: Tensor
    maxima: Tensor

    @property
    def batch(self) -> int:
        """Rows."""
        return self.logits[0].shape[0]

    @property
    def models(self) -> int:
        """Models."""
        return len(self.logits)

    @property
    def rows(self) -> Rows:
        """The logits and masks as kernels take them."""
        return Rows(self.logits, self.strides, self.vocab, self.allowed, self.allowed_strides)


def stream_of(logits: Sequence[Tensor], allowed: Sequence[Tensor] | None) -> Stream:
    """The arguments of stage 1 for M models, with the memory that it writes.

    partials f32 [B, M, chunks, 4] and maxima f32 [B, M, chunks · 64]; entries past a model's own vocabulary are not
    written and not read. A bitmask of one row serves every row.
    """
    batch, device = logits[0].shape[0], logits[0].device
    chunks = max((rows.shape[1] + CHUNK - 1) // CHUNK for rows in logits)
    shape = (batch, len(logits), chunks)
    masks = tuple(logits if allowed is None else allowed)
    return Stream(
        logits=tuple(logits),
        strides=tuple(rows.stride(0) for rows in logits),
        vocab=tuple(rows.shape[1] for rows in logits),
        allowed=masks,
        allowed_strides=tuple(0 if allowed is None or mask.shape[0] == 1 else mask.stride(0) for mask in masks),
        masked=allowed is not None,
        chunks=chunks,
        partials=torch.empty((*shape, PARTIALS), dtype=torch.float32, device=device),
        maxima=torch.empty((*shape[:2], chunks * GROUPS), dtype=torch.float32, device=device),
    )


def finish_sizes(chunks: int, k: int) -> dict[str, int]:
    """The compile-time sizes of stage 2, all powers of two.

    CHUNKS and SPAN: chunks and group maxima of a row; K: columns; ROOM: how many keys may pass a selection's threshold
    (random and heavy-tailed rows leave little more than k); COLUMNS: sets of groups that give the threshold.
    """
    padded, columns = next_power_of_two(chunks), max(16, next_power_of_two(k))
    span, room = padded * GROUPS, max(256, 4 * columns)
    return {
        "CHUNKS": padded,
        "SPAN": span,
        "K": columns,
        "ROOM": room,
        "COLUMNS": min(span, max(128, 2 * columns, columns * span // room)),
    }


def selection_scratch(stream: Stream, k: int) -> tuple[Tensor, Tensor]:
    """Scratch of `select.pick`: int64 [B, M, ROOM + COLUMNS] for order keys and int32 [B, M, 2 · K] for groups and
    ids."""
    shape, device, sizes = (stream.batch, stream.models), stream.partials.device, finish_sizes(stream.chunks, k)
    return (
        torch.empty((*shape, sizes["ROOM"] + sizes["COLUMNS"]), dtype=torch.int64, device=device),
        torch.empty((*shape, 2 * sizes["K"]), dtype=torch.int32, device=device),
    )


class Tables(NamedTuple):
    """The lists of a vocabulary that stage 2 reads, as tuples of contiguous tensors, one per model."""

    to_cid: tuple[Tensor, ...]
    exact_id: tuple[Tensor, ...]
    piece_id: tuple[Tensor, ...]
    eos_ids: tuple[Tensor, ...]


def vocab_tables(vocab: VocabTensors) -> Tables:
    """The tables of a vocabulary as kernels take them."""
    fields = (vocab.to_cid, vocab.exact_id, vocab.piece_id, vocab.eos_ids)
    return Tables(*(tuple(table.contiguous() for table in tables) for tables in fields))


def contiguous(settings: FuseSettings) -> FuseSettings:
    """The kernels index settings by row; a few numbers per row may be copied, logits never are."""
    return FuseSettings(*(field.contiguous() for field in settings))


def new_step(logits: Sequence[Tensor], width: int) -> FuseStep:
    """What `fuse_step` and `fuse_full` write, not yet filled: U = `width`."""
    models, batch, device = len(logits), logits[0].shape[0], logits[0].device
    f32, i32, flag = torch.float32, torch.int32, torch.bool
    shapes = dict.fromkeys(("cids", "probs"), (batch, width))
    shapes |= dict.fromkeys(("kl", "top_cid", "top_prob", "logsumexp", "model_entropy"), (models, batch))
    dtypes = dict.fromkeys(("cid", "primary_id", "cids", "count", "top_cid", "flags"), i32)
    dtypes |= dict.fromkeys(("ensembled", "sharpened"), flag)
    return FuseStep(
        **{
            name: torch.empty(shapes.get(name, (batch,)), dtype=dtypes.get(name, f32), device=device)
            for name in FuseStep._fields
        }
    )
