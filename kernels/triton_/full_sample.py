# mypy: allow-untyped-defs
"""Sampling from whole vocabularies: the filters as one bound on (log probability, candidate), then Gumbel-max by
chunks.

Nothing is sorted. Everything that top-k and top-p keep comes before one element of the order (log probability
descending, candidate ascending), which bisection over the ordered bits of float32 finds: about 30 readings of the row
for each filter that is on, by one program, in rows that sample. Sums are taken in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.full import STATE
from ensemble_decode.kernels.triton_.full_mean import SPAN
from ensemble_decode.kernels.triton_.sample import gumbel
from ensemble_decode.kernels.triton_.select import INDEX_MASK

TILE = tl.constexpr(8192)
LEAST = tl.constexpr(-2139095041)
"""Ordered bits of −inf."""


@triton.jit
def _ordered(x):
    """int32 in the order of the floats."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & INDEX_MASK)


@triton.jit
def _value(ordered):
    """The float of ordered bits."""
    return (ordered ^ ((ordered >> 31) & INDEX_MASK)).to(tl.float32, bitcast=True)


@triton.jit
def _number_from(log_ptr, stride, bound):
    """How many candidates are not below the bound, which is above −inf."""
    number = tl.zeros([TILE], dtype=tl.int32)
    for start in range(0, stride, TILE):
        at = start + tl.arange(0, TILE)
        log = tl.load(log_ptr + at, mask=at < stride, other=float("-inf"))
        number += (_ordered(log) >= bound).to(tl.int32)
    return tl.sum(number, axis=0)


@triton.jit
def _mass_above(log_ptr, stride, bound, floor, top):
    """Σ exp(log − top) of the candidates above the bound and not below the floor."""
    mass = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, stride, TILE):
        at = start + tl.arange(0, TILE)
        log = tl.load(log_ptr + at, mask=at < stride, other=float("-inf"))
        ordered = _ordered(log)
        mass += tl.where((ordered > bound) & (ordered >= floor), tl.exp(log - top), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _kth_place(log_ptr, stride, bound, k):
    """Candidate id of the k-th one (from 1) that lies on the bound."""
    found = stride * 0
    place = stride * 0
    for start in range(0, stride, TILE):
        at = start + tl.arange(0, TILE)
        log = tl.load(log_ptr + at, mask=at < stride, other=float("-inf"))
        on = _ordered(log) == bound
        rank = found + tl.cumsum(on.to(tl.int32), axis=0)
        place = tl.maximum(place, tl.max(tl.where(on & (rank <= k), at, 0), axis=0))
        found += tl.sum(on.to(tl.int32), axis=0)
    return place


@triton.jit
def full_filter_kernel(log_ptr, stride, settings, state_ptr, bounds_ptr):
    """The bounds of top-k, top-p and min-p in each row."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(settings.temperature + row) > 0.0:
        log_ptr += row * stride
        top = tl.load(state_ptr + row * STATE + 5)
        greatest = _ordered(top)
        top_k = tl.load(settings.sample_top_k + row)
        top_p = tl.load(settings.top_p + row)
        floor = greatest * 0 + LEAST
        if top_k > 0:
            high = greatest
            while floor < high:
                # The ceiling of the middle; both ends lie within half of int32 or differ in sign, hence 64 bits.
                middle = ((floor.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)
                enough = _number_from(log_ptr, stride, middle) >= top_k
                floor = tl.where(enough, middle, floor)
                high = tl.where(enough, high, middle - 1)
        bound = floor
        place = stride
        if top_p < 1.0:
            limit = top_p * _mass_above(log_ptr, stride, floor - 1, floor, top)
            high = greatest
            while bound < high:
                middle = ((bound.to(tl.int64) + high.to(tl.int64)) >> 1).to(tl.int32)
                enough = _mass_above(log_ptr, stride, middle, floor, top) < limit
                high = tl.where(enough, middle, high)
                bound = tl.where(enough, bound, middle + 1)
            weight = tl.exp(_value(bound) - top)
            left = (limit - _mass_above(log_ptr, stride, bound, floor, top)) / tl.where(weight > 0.0, weight, 1.0)
            # The tie of rank r stays while the mass before it, r weights after what is above, is below the limit.
            kept = tl.where(weight > 0.0, tl.minimum(tl.ceil(left), 2147483520.0), 2147483520.0).to(tl.int32)
            place = _kth_place(log_ptr, stride, bound, tl.maximum(kept, 1))
        tl.store(bounds_ptr + row * 2, bound)
        tl.store(bounds_ptr + row * 2 + 1, place)


@triton.jit
def full_gumbel_kernel(log_ptr, stride, settings, state_ptr, bounds_ptr, chunks, scores_ptr, places_ptr):
    """The Gumbel maximum of each chunk over what the filters leave."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    if tl.load(settings.temperature + row) > 0.0:
        cids = chunk * SPAN + tl.arange(0, SPAN)
        log = tl.load(log_ptr + row * stride + cids)
        top = tl.load(state_ptr + row * STATE + 5)
        bound = tl.load(bounds_ptr + row * 2)
        ordered = _ordered(log)
        keep = (ordered > bound) | ((ordered == bound) & (cids <= tl.load(bounds_ptr + row * 2 + 1)))
        keep = keep & (log > float("-inf")) & (log - top >= tl.log(tl.load(settings.min_p + row)))
        noise = gumbel(cids, tl.load(settings.seed + row), tl.load(settings.row + row), tl.load(settings.step + row))
        score = tl.where(keep, tl.where(keep, log, 0.0).to(tl.float64) + noise, float("-inf"))
        best = tl.max(score, axis=0)
        tl.store(scores_ptr + row * chunks + chunk, best)
        tl.store(places_ptr + row * chunks + chunk, tl.min(tl.where(keep & (score == best), cids, stride), axis=0))
