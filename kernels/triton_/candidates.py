# mypy: allow-untyped-defs
"""Device functions on candidates: the union of top-k sets and one model's scores of it."""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.stream import FLOAT_MAX

NO_CID = tl.constexpr(0x7FFFFFFF)
"""Stands for "no candidate" while candidates are compared: it sorts last."""


@triton.jit
def store_cids(ids, valid, to_cid_ptr, vocab, out_ptr, column, width):
    """Write the candidates of one model's ids, NO_CID where an id is missing or stands for none."""
    valid = valid & (ids >= 0) & (ids < vocab)
    cid = tl.load(to_cid_ptr + ids, mask=valid, other=-1)
    tl.store(out_ptr + column, tl.where(cid >= 0, cid, NO_CID), mask=column < width)


@triton.jit
def union(found_ptr, n, cids_ptr, UNION: tl.constexpr):
    """From n candidates in memory (overwritten) write the distinct ones, ascending, −1 padded to n; return their count.

    Each candidate is counted against all others: n is small, and a program's threads share the row.
    """
    tl.debug_barrier()
    at = tl.arange(0, UNION)
    cid = tl.load(found_ptr + at, mask=at < n, other=NO_CID)
    STEP: tl.constexpr = 32 if UNION <= 64 else (2048 // UNION if UNION <= 1024 else 1)
    repeats = tl.zeros([UNION], dtype=tl.int32)
    for start in range(0, n, STEP):
        j = start + tl.arange(0, STEP)
        other = tl.load(found_ptr + j, mask=j < n, other=NO_CID)
        same = (other[:, None] == cid[None, :]) & (j[:, None] < at[None, :])
        repeats += tl.sum(same.to(tl.int32), axis=0)
    first = (cid != NO_CID) & (repeats == 0)
    tl.debug_barrier()
    tl.store(found_ptr + at, tl.where(first, cid, NO_CID), mask=at < n)
    tl.debug_barrier()
    rank = tl.zeros([UNION], dtype=tl.int32)
    for start in range(0, n, STEP):
        j = start + tl.arange(0, STEP)
        other = tl.load(found_ptr + j, mask=j < n, other=NO_CID)
        rank += tl.sum((other[:, None] < cid[None, :]).to(tl.int32), axis=0)
    count = tl.sum(first.to(tl.int32))
    tl.store(cids_ptr + rank, cid, mask=first)
    tl.store(cids_ptr + at, -1, mask=(at >= count) & (at < n))
    tl.debug_barrier()
    return count


@triton.jit
def read_logits(row_ptr, ids, valid, vocab, allowed_ptr, MASKED: tl.constexpr):
    """Logits of `ids` as float32; −inf where an id is out of range, not allowed or NaN."""
    valid = valid & (ids >= 0) & (ids < vocab)
    if MASKED:
        valid = is_allowed(ids, valid, allowed_ptr)
    x = tl.load(row_ptr + ids, mask=valid, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def end_score(row_ptr, eos_ptr, eos_count, vocab, allowed_ptr, MASKED: tl.constexpr, EOS: tl.constexpr):
    """logsumexp of the logits of the EOS ids; −inf where there are none."""
    at = tl.arange(0, EOS)
    ids = tl.load(eos_ptr + at, mask=at < eos_count, other=-1)
    x = read_logits(row_ptr, ids, at < eos_count, vocab, allowed_ptr, MASKED)
    top = tl.max(x)
    finite_top = tl.clamp(top, -FLOAT_MAX, FLOAT_MAX)
    total = tl.sum(tl.exp(tl.minimum(x, FLOAT_MAX) - finite_top))
    return tl.where((top > float("-inf")) & (top < float("inf")), top + tl.log(tl.maximum(total, 1.0)), top)


@triton.jit
def candidate_scores(
    row_ptr, cids, ids_of_ptr, size, eos_ptr, eos_count, vocab, allowed_ptr, MASKED: tl.constexpr, EOS: tl.constexpr
):
    """One model's score of each candidate: the logit of its id, at END (the last candidate) that of all EOS ids."""
    valid = (cids >= 0) & (cids < size)
    ids = tl.load(ids_of_ptr + cids, mask=valid, other=-1)
    scores = read_logits(row_ptr, ids, valid, vocab, allowed_ptr, MASKED)
    end = end_score(row_ptr, eos_ptr, eos_count, vocab, allowed_ptr, MASKED, EOS)
    return tl.where(cids == size - 1, end, scores)


@triton.jit
def emitted_ids(cids, exact_ptr, piece_ptr):
    """The id that a model emits for each candidate but END: its exact id, else its first piece; −1 without either."""
    exact = tl.load(exact_ptr + cids, mask=cids >= 0, other=-1)
    piece = tl.load(piece_ptr + cids, mask=(cids >= 0) & (exact < 0), other=-1)
    return tl.where(exact >= 0, exact, piece)


@triton.jit
def is_allowed(ids, valid, allowed_ptr):
    """Whether the mask allows each id; False where it is not valid."""
    word = tl.load(allowed_ptr + ids // 32, mask=valid, other=0)
    return valid & (((word >> (ids & 31)) & 1) != 0)


@triton.jit
def out_of_reach(cids, exact_ptr, piece_ptr, size, eos_ptr, eos_count, allowed_ptr, EOS: tl.constexpr):
    """Whether the primary could emit each candidate (below `size`) only by an id that its mask bans."""
    ids = emitted_ids(cids, exact_ptr, piece_ptr)
    banned = (ids >= 0) & (is_allowed(ids, ids >= 0, allowed_ptr) == 0)
    at = tl.arange(0, EOS)
    eos = tl.load(eos_ptr + at, mask=at < eos_count, other=-1)
    ends = tl.max(is_allowed(eos, eos >= 0, allowed_ptr).to(tl.int32), axis=0) != 0
    return tl.where((cids == size - 1) & (eos_count > 0), ends == 0, banned)


@triton.jit
def probability(score, logsumexp):
    """exp(score − logsumexp), at most 1; 0 where either is −inf, 1 where both are +inf."""
    some = (score > float("-inf")) & (logsumexp > float("-inf"))
    delta = tl.minimum(score, FLOAT_MAX) - tl.clamp(logsumexp, -FLOAT_MAX, FLOAT_MAX)
    return tl.where(some, tl.exp(tl.minimum(delta, 0.0)), 0.0)
