# mypy: allow-untyped-defs
"""Stage 2, the first half: one row of one model from stage 1's chunks and groups to its statistics and exact top k.

The k best groups by (maximum descending, group ascending) hold the k best elements: an element outside them has k
elements before it in the order, one in each. So only those groups are read again, and of them only elements not below
the k-th group's maximum are ordered. Ordering is by counting how many keys come before each, on the few that pass a
threshold; where more elements pass than there is room for (rows full of ties), they are extracted one after another.

Keys are int64: the ordered bits of the float32 value above, the complement of the index below, so that one comparison
is the order (value descending, index ascending).
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.stream import FLOAT_MAX, GROUP, LOG2E

LN2 = tl.constexpr(0.6931471805599453)
NONE = tl.constexpr(-(2**63))
GREATEST = tl.constexpr(2**63 - 1)
INDEX_MASK = tl.constexpr(0x7FFFFFFF)
TILE = tl.constexpr(1024)
"""Elements that one step of the second read covers: 8 groups."""


@triton.jit
def order_key(x, index):
    """Key of a value and an index below 2^31; −0 and +0 are one value."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & INDEX_MASK)
    return (bits.to(tl.int64) << 32) | (index ^ INDEX_MASK).to(tl.int64)


@triton.jit
def key_index(key):
    """The index that a packed key holds."""
    return (key & INDEX_MASK).to(tl.int32) ^ INDEX_MASK


@triton.jit
def count_before(keys, keys_ptr, n, N: tl.constexpr):
    """How many of the n keys in memory are greater than each of the N `keys`; a bounded tile at a time."""
    STEP: tl.constexpr = 32 if N <= 64 else (2048 // N if N <= 1024 else 1)
    rank = tl.zeros([N], dtype=tl.int32)
    for start in range(0, n, STEP):
        at = start + tl.arange(0, STEP)
        other = tl.load(keys_ptr + at, mask=at < n, other=NONE)
        rank += tl.sum((other[:, None] > keys[None, :]).to(tl.int32), axis=0)
    return rank


@triton.jit
def _store_ranked(keys_ptr, n, k, out_ptr, ROOM: tl.constexpr):
    """Write the indices of the k greatest of n keys in order; return the k-th key (NONE where n < k)."""
    tl.debug_barrier()
    at = tl.arange(0, ROOM)
    keys = tl.load(keys_ptr + at, mask=at < n, other=NONE)
    rank = count_before(keys, keys_ptr, n, ROOM)
    tl.store(out_ptr + rank, key_index(keys), mask=(at < n) & (rank < k))
    kth = tl.max(tl.where((at < n) & (rank == k - 1), keys, NONE))
    tl.debug_barrier()
    return kth


@triton.jit
def _pick_groups(
    maxima_ptr, groups, k, keys_ptr, out_ptr, SPAN: tl.constexpr, ROOM: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write the k best groups in order; return how many there are and the k-th one's key."""
    at = tl.arange(0, SPAN)
    maximum = tl.load(maxima_ptr + at, mask=at < groups, other=float("-inf"))
    keys = tl.where(maximum > float("-inf"), order_key(maximum, at), NONE)
    # The k-th greatest maximum of k or more disjoint sets of groups is a lower bound of the k-th greatest group.
    columns = tl.max(tl.reshape(keys, [SPAN // COLUMNS, COLUMNS]), axis=0)
    columns_ptr = keys_ptr + ROOM
    tl.store(columns_ptr + tl.arange(0, COLUMNS), columns)
    tl.debug_barrier()
    rank = count_before(columns, columns_ptr, COLUMNS, COLUMNS)
    bound = tl.max(tl.where(rank >= k - 1, columns, NONE))
    passed = (keys >= bound) & (keys != NONE)
    # Keys differ, so k sets reach the bound, of SPAN / COLUMNS groups each: COLUMNS is chosen so that ROOM holds them.
    n = tl.sum(passed.to(tl.int32))
    tl.store(keys_ptr + tl.cumsum(passed.to(tl.int32), axis=0) - 1, keys, mask=passed)
    kth = _store_ranked(keys_ptr, n, k, out_ptr, ROOM)
    return tl.minimum(n, k), kth


@triton.jit
def _tile_keys(logits_ptr, allowed_ptr, vocab, groups_ptr, first, picked, floor, MASKED: tl.constexpr):
    """Keys of 8 picked groups from the `first`-th on; NONE for what is not allowed, NaN, −inf or below the floor."""
    at = first * GROUP + tl.arange(0, TILE)
    group = tl.load(groups_ptr + at // GROUP, mask=at // GROUP < picked, other=0)
    index = group * GROUP + at % GROUP
    inside = (at // GROUP < picked) & (index < vocab)
    x = tl.load(logits_ptr + index, mask=inside, other=float("-inf")).to(tl.float32)
    if MASKED:
        word = tl.load(allowed_ptr + index // 32, mask=inside, other=0)
        inside = inside & (((word >> (index & 31)) & 1) != 0)
    keys = order_key(x, index)
    return tl.where(inside & (x > float("-inf")) & (keys >= floor), keys, NONE)


@triton.jit
def pick(
    logits_ptr,
    allowed_ptr,
    vocab,
    maxima_ptr,
    k,
    keys_ptr,
    ints_ptr,
    MASKED: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """Write the ids of the k best elements of a row at ``ints_ptr + K``; return how many there are.

    ``keys_ptr`` has room for ROOM + COLUMNS keys, ``ints_ptr`` for 2 · K; SPAN is the number of maxima read at once.
    """
    picked, kth = _pick_groups(maxima_ptr, (vocab + GROUP - 1) // GROUP, k, keys_ptr, ints_ptr, SPAN, ROOM, COLUMNS)
    floor = kth & ~0xFFFFFFFF
    ids_ptr = ints_ptr + K
    n = picked * 0
    for first in range(0, picked, TILE // GROUP):
        keys = _tile_keys(logits_ptr, allowed_ptr, vocab, ints_ptr, first, picked, floor, MASKED)
        passed = (keys != NONE).to(tl.int32)
        at = n + tl.cumsum(passed, axis=0) - 1
        tl.store(keys_ptr + at, keys, mask=(passed != 0) & (at < ROOM))
        n += tl.sum(passed)
    if n <= ROOM:
        _store_ranked(keys_ptr, n, k, ids_ptr, ROOM)
    else:
        last = kth * 0 + GREATEST
        for i in range(k):
            best = kth * 0 + NONE
            for first in range(0, picked, TILE // GROUP):
                keys = _tile_keys(logits_ptr, allowed_ptr, vocab, ints_ptr, first, picked, floor, MASKED)
                best = tl.maximum(best, tl.max(tl.where(keys < last, keys, NONE)))
            tl.store(ids_ptr + i, key_index(best))
            last = best
        tl.debug_barrier()
    return tl.minimum(n, k)


@triton.jit
def merge(partials_ptr, chunks, CHUNKS: tl.constexpr):
    """Maximum m, log Σ exp(x − m), entropy in nats and flags of a row from its chunks' partial sums, in a fixed
    order."""
    at = tl.arange(0, CHUNKS)
    live = at < chunks
    m = tl.load(partials_ptr + at * 4, mask=live, other=float("-inf"))
    e = tl.load(partials_ptr + at * 4 + 1, mask=live, other=0.0)
    ez = tl.load(partials_ptr + at * 4 + 2, mask=live, other=0.0)
    nan = tl.max(tl.load(partials_ptr + at * 4 + 3, mask=live, other=0.0))
    top = tl.max(m)
    shift = (tl.clamp(m, -FLOAT_MAX, FLOAT_MAX) - tl.clamp(top, -FLOAT_MAX, FLOAT_MAX)) * LOG2E
    scale = tl.exp2(shift)
    sum_e = tl.sum(e * scale)
    sum_ez = tl.sum(tl.where(scale > 0.0, (ez + e * shift) * scale, 0.0))
    some = top > float("-inf")
    safe = tl.where(some, sum_e, 1.0)
    log2_e = tl.log2(safe)
    log_sum = log2_e * LN2
    entropy = tl.where(some, tl.maximum((log2_e - sum_ez / safe) * LN2, 0.0), 0.0)
    flags = tl.where(nan > 0.0, 1, 0) | tl.where(some, 0, 2)
    return top, log_sum, entropy, flags
