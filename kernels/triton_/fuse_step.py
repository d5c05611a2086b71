# mypy: allow-untyped-defs
"""logits → top k → union U → scores on U → E → choice, for M models in two launches: the stream and this kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.candidates import (
    emitted_ids,
    end_score,
    is_allowed,
    out_of_reach,
    probability,
    read_logits,
    store_cids,
    union,
)
from ensemble_decode.kernels.triton_.fuse import fuse
from ensemble_decode.kernels.triton_.launch import (
    FINISH_OPTIONS,
    contiguous,
    finish_sizes,
    new_step,
    next_power_of_two,
    selection_scratch,
    stream_of,
    vocab_tables,
)
from ensemble_decode.kernels.triton_.select import merge, pick
from ensemble_decode.kernels.triton_.stream import CHUNK, launch_stream
from ensemble_decode.kernels.types import FuseSettings, FuseStep, VocabTensors
from torch import Tensor


@triton.jit
def emitted_id(choice, row_ptr, exact_ptr, piece_ptr, size, eos_ptr, eos_count, vocab, allowed_ptr, EOS: tl.constexpr):
    """The id that a model emits for a candidate: its exact id, else the first piece; for END its likeliest EOS id."""
    ids = emitted_ids(choice, exact_ptr, piece_ptr)
    if (choice == size - 1) & (eos_count > 0):
        at = tl.arange(0, EOS)
        eos = tl.load(eos_ptr + at, mask=at < eos_count, other=-1)
        x = read_logits(row_ptr, eos, at < eos_count, vocab, allowed_ptr, True)
        allowed = is_allowed(eos, eos >= 0, allowed_ptr)
        best = tl.min(tl.where((x == tl.max(x, axis=0)) & allowed, at, EOS), axis=0)
        ids = tl.load(eos_ptr + best, mask=best < EOS, other=-1)
    return ids


@triton.jit
def top_candidate(top, to_cid_ptr, size, eos_ptr, eos_count, EOS: tl.constexpr):
    """Candidate of a model's own top id: END for any EOS id, −1 where it has none."""
    at = tl.arange(0, EOS)
    eos = tl.load(eos_ptr + at, mask=at < eos_count, other=-1)
    cid = tl.load(to_cid_ptr + top, mask=top >= 0, other=-1)
    is_eos = tl.max(((eos == top) & (at < eos_count)).to(tl.int32), axis=0) != 0
    return tl.where(is_eos & (top >= 0), size - 1, cid)


@triton.jit
def model_statistics(
    row_ptr,
    allowed_ptr,
    vocab,
    partials_ptr,
    maxima_ptr,
    k,
    keys_ptr,
    ids_ptr,
    to_cid_ptr,
    eos_ptr,
    eos_count,
    size,
    out,
    place,
    EOS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """One row of one model after stage 1: write its k best ids at ``ids_ptr + K`` and what `FuseStep` holds per model.

    Return how many ids there are, the largest logit m, log Σ exp(x − m), the top id, its candidate and the flags.
    """
    top, log_sum, entropy, flags = merge(partials_ptr, (vocab + CHUNK - 1) // CHUNK, CHUNKS)
    found = pick(row_ptr, allowed_ptr, vocab, maxima_ptr, k, keys_ptr, ids_ptr, True, SPAN, ROOM, COLUMNS, K)
    top_id = tl.load(ids_ptr + K, mask=found > 0, other=-1)
    top_cid = top_candidate(top_id, to_cid_ptr, size, eos_ptr, eos_count, EOS)
    tl.store(out.top_cid + place, top_cid)
    tl.store(out.top_prob + place, probability(top, top + log_sum))
    tl.store(out.logsumexp + place, top + log_sum)
    tl.store(out.model_entropy + place, entropy)
    return found, top, log_sum, top_id, top_cid, flags


@triton.jit(do_not_specialize=["batch", "k"])
def fuse_step_kernel(
    logits,
    strides,
    vocab,
    allowed,
    allowed_strides,
    partials_ptr,
    maxima_ptr,
    chunks,
    keys_ptr,
    ints_ptr,
    found_ptr,
    tables,
    eos_counts,
    prefix_end_ptr,
    size,
    space_cid,
    settings,
    out,
    batch,
    k,
    M: tl.constexpr,
    MODELS: tl.constexpr,
    EOS: tl.constexpr,
    UNION: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """One program per row: union, scores, aggregate, gate, sharpen, choose."""
    row = tl.program_id(0).to(tl.int64)
    width = M * k
    model = tl.arange(0, MODELS)
    column = tl.arange(0, K)
    used = tl.load(settings.top_k + row)
    found_ptr += row * (M * K + K)
    tops_ptr = found_ptr + M * K
    logsumexp = tl.full([MODELS], float("-inf"), dtype=tl.float32)
    flags = 0
    primary_id = -1
    primary_cid = -1
    primary_max = float("-inf")

    for m in tl.static_range(M):
        cell = row * M + m
        ids_ptr = ints_ptr + cell * 2 * K
        found, top, log_sum, top_id, top_cid, flag = model_statistics(
            logits[m] + row * strides[m],
            allowed[m] + row * allowed_strides[m],
            vocab[m],
            partials_ptr + cell * chunks * 4,
            maxima_ptr + cell * chunks * (SPAN // CHUNKS),
            k,
            keys_ptr + cell * (ROOM + COLUMNS),
            ids_ptr,
            tables.to_cid[m],
            tables.eos_ids[m],
            eos_counts[m],
            size,
            out,
            m * batch + row,
            EOS,
            CHUNKS,
            SPAN,
            ROOM,
            COLUMNS,
            K,
        )
        best = tl.load(ids_ptr + K + column, mask=column < found, other=-1)
        used_columns = (column < found) & (column < used)
        store_cids(best, used_columns, tables.to_cid[m], vocab[m], found_ptr + m * k, column, k)
        if m == 0:
            cid = tl.load(tables.to_cid[m] + best, mask=best >= 0, other=-1)
            tl.store(tops_ptr + column, cid, mask=column < k)
            primary_id = top_id
            primary_cid = top_cid
            primary_max = top
        logsumexp = tl.where(model == m, top + log_sum, logsumexp)
        flags = flags | flag

    cids_ptr = out.cids + row * width
    tl.store(out.count + row, union(found_ptr, width, cids_ptr, UNION))
    at = tl.arange(0, UNION)
    cids = tl.load(cids_ptr + at, mask=at < width, other=-1)
    exclude = tl.load(settings.oov + row) == 1
    scores = tl.full([MODELS, UNION], float("-inf"), dtype=tl.float32)
    for m in tl.static_range(M):
        row_ptr = logits[m] + row * strides[m]
        allowed_ptr = allowed[m] + row * allowed_strides[m]
        exact = tl.load(tables.exact_id[m] + cids, mask=cids >= 0, other=-1)
        piece = tl.load(tables.piece_id[m] + cids, mask=cids >= 0, other=-1)
        ids = tl.where(exclude, exact, piece)
        own = read_logits(row_ptr, ids, cids >= 0, vocab[m], allowed_ptr, True)
        end = end_score(row_ptr, tables.eos_ids[m], eos_counts[m], vocab[m], allowed_ptr, True, EOS)
        own = tl.where(cids == size - 1, end, own)
        scores = tl.where((model == m)[:, None], own[None, :], scores)

    unreachable = out_of_reach(
        cids,
        tables.exact_id[0],
        tables.piece_id[0],
        size,
        tables.eos_ids[0],
        eos_counts[0],
        allowed[0] + row * allowed_strides[0],
        EOS,
    )
    scores = tl.where(unreachable[None, :], float("-inf"), scores)

    choice, ensembled, fused_flags = fuse(
        scores,
        cids,
        logsumexp,
        tops_ptr,
        k,
        primary_max,
        primary_cid,
        prefix_end_ptr,
        size,
        space_cid,
        settings,
        out,
        row,
        batch,
        width,
        M,
        MODELS,
        UNION,
    )
    emitted = emitted_id(
        choice,
        logits[0] + row * strides[0],
        tables.exact_id[0],
        tables.piece_id[0],
        size,
        tables.eos_ids[0],
        eos_counts[0],
        vocab[0],
        allowed[0] + row * allowed_strides[0],
        EOS,
    )
    tl.store(out.cid + row, choice)
    tl.store(out.primary_id + row, tl.where(choice >= 0, tl.where(ensembled, emitted, primary_id), -1))
    tl.store(out.flags + row, flags | fused_flags)


def fuse_step(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_step`."""
    models, batch = len(logits), logits[0].shape[0]
    out = new_step(logits, models * k)
    if batch == 0:
        return out
    stream = stream_of(logits, vocab.allowed)
    sizes = finish_sizes(stream.chunks, k)
    keys, ints = selection_scratch(stream, k)
    launch_stream(stream)
    fuse_step_kernel[(batch,)](
        stream.logits,
        stream.strides,
        stream.vocab,
        stream.allowed,
        stream.allowed_strides,
        stream.partials,
        stream.maxima,
        stream.chunks,
        keys,
        ints,
        torch.empty((batch, (models + 1) * sizes["K"]), dtype=torch.int32, device=keys.device),
        vocab_tables(vocab),
        tuple(eos.shape[0] for eos in vocab.eos_ids),
        vocab.prefix_end.contiguous(),
        vocab.size,
        vocab.space_cid,
        contiguous(settings),
        out,
        batch,
        k,
        M=models,
        MODELS=next_power_of_two(models),
        EOS=next_power_of_two(max(1, *(eos.shape[0] for eos in vocab.eos_ids))),
        UNION=next_power_of_two(models * k),
        **sizes,
        # The candidates of more than four models are too many for the registers of four warps.
        **{**FINISH_OPTIONS, "num_warps": 4 if models <= 4 else 8},
    )
    return out
