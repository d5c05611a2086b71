# mypy: allow-untyped-defs
"""E(c) = Σ w_m P_m(exact_id_m[c]) over every candidate of every vocabulary → gate, sharpen, choose (GaC).

Ten launches whatever the batch, all of them kernels of this package, nothing read by the host: the stream, one program
per row for the models' statistics, five passes over the candidates (`full`), two for sampling (`full_sample`, which
return at once in rows that are greedy), and one program per row that selects the k most probable and the choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from ensemble_decode.kernels.triton_.full import full_decide_kernel, full_normalise_kernel, full_sharpen_kernel
from ensemble_decode.kernels.triton_.full_mean import full_mean_kernel, full_sums_kernel
from ensemble_decode.kernels.triton_.full_sample import full_filter_kernel, full_gumbel_kernel
from ensemble_decode.kernels.triton_.fuse_step import emitted_id, model_statistics
from ensemble_decode.kernels.triton_.launch import (
    CANDIDATE_CHUNK,
    CHUNK,
    FINISH_OPTIONS,
    FULL_BLOCK,
    FULL_PARTIALS,
    FULL_STATE,
    GROUP,
    contiguous,
    finish_sizes,
    new_step,
    next_power_of_two,
    selection_scratch,
    stream_of,
    vocab_tables,
)
from ensemble_decode.kernels.triton_.select import key_index, pick
from ensemble_decode.kernels.triton_.stream import launch_stream
from ensemble_decode.kernels.types import FuseSettings, FuseStep, VocabTensors
from torch import Tensor


@triton.jit(do_not_specialize=["batch", "k"])
def full_statistics_kernel(
    rows,
    partials_ptr,
    maxima_ptr,
    chunks,
    keys_ptr,
    ints_ptr,
    tables,
    eos_counts,
    size,
    shifts_ptr,
    tops_ptr,
    out,
    batch,
    k,
    M: tl.constexpr,
    EOS: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """Combine the chunks of every model into its log-sum-exp, entropy and top id."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K)
    flags = 0
    for m in tl.static_range(M):
        cell = row * M + m
        ids_ptr = ints_ptr + cell * 2 * K
        found, top, log_sum, top_id, _, flag = model_statistics(
            rows.logits[m] + row * rows.strides[m],
            rows.allowed[m] + row * rows.allowed_strides[m],
            rows.vocab[m],
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
        tl.store(shifts_ptr + cell * 2, top)
        tl.store(shifts_ptr + cell * 2 + 1, log_sum)
        if m == 0:
            best = tl.load(ids_ptr + K + column, mask=column < found, other=-1)
            tl.store(
                tops_ptr + row * k + column, tl.load(tables.to_cid[m] + best, mask=best >= 0, other=-1), column < k
            )
            tl.store(out.primary_id + row, top_id)
        flags = flags | flag
    tl.store(out.flags + row, flags)


@triton.jit(do_not_specialize=["k"])
def full_finish_kernel(
    rows,
    tables,
    eos_counts,
    size,
    settings,
    probs_ptr,
    stride,
    maxima_ptr,
    groups,
    chunks,
    best_ptr,
    scores_ptr,
    places_ptr,
    keys_ptr,
    ints_ptr,
    out,
    k,
    EOS: tl.constexpr,
    PASSES: tl.constexpr,
    SPAN: tl.constexpr,
    ROOM: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """The choice and the most probable candidates of each row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K)
    probs_ptr += row * stride
    ids_ptr = ints_ptr + row * 2 * K
    keys_ptr += row * (ROOM + COLUMNS)
    found = pick(
        probs_ptr, probs_ptr, size, maxima_ptr + row * groups, k, keys_ptr, ids_ptr, False, SPAN, ROOM, COLUMNS, K
    )
    listed = column < found
    cids = tl.load(ids_ptr + K + column, mask=listed, other=-1)
    tl.store(out.cids + row * k + column, cids, mask=column < k)
    tl.store(out.probs + row * k + column, tl.load(probs_ptr + cids, mask=listed, other=0.0), mask=column < k)
    tl.store(out.count + row, found)

    choice = tl.load(out.cid + row)
    at = tl.arange(0, PASSES)
    live = at < chunks
    if tl.load(out.ensembled + row):
        if tl.load(settings.temperature + row) > 0.0:
            score = tl.load(scores_ptr + row * chunks + at, mask=live, other=float("-inf"))
            place = tl.load(places_ptr + row * chunks + at, mask=live, other=0)
            choice = tl.min(tl.where(live & (score == tl.max(score, axis=0)), place, size - 1), axis=0)
        else:
            keys = tl.load(best_ptr + row * chunks + at, mask=live, other=-(2**63))
            choice = key_index(tl.max(keys, axis=0))
        emitted = emitted_id(
            choice,
            rows.logits[0] + row * rows.strides[0],
            tables.exact_id[0],
            tables.piece_id[0],
            size,
            tables.eos_ids[0],
            eos_counts[0],
            rows.vocab[0],
            rows.allowed[0] + row * rows.allowed_strides[0],
            EOS,
        )
        tl.store(out.cid + row, choice)
        tl.store(out.primary_id + row, emitted)
    elif choice < 0:
        tl.store(out.primary_id + row, -1)


def fuse_full(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int) -> FuseStep:
    """See `ensemble_decode.kernels.fuse_full`."""
    batch = logits[0].shape[0]
    if batch == 0:
        return new_step(logits, k)
    step = max(1, FULL_BLOCK // vocab.size)
    blocks = [_block(logits, vocab, settings, k, slice(at, min(at + step, batch))) for at in range(0, batch, step)]
    if len(blocks) == 1:
        return blocks[0]
    axis = dict.fromkeys(("kl", "top_cid", "top_prob", "logsumexp", "model_entropy"), 1)
    return FuseStep(*(torch.cat([getattr(b, name) for b in blocks], axis.get(name, 0)) for name in FuseStep._fields))


def _block(logits: Sequence[Tensor], vocab: VocabTensors, settings: FuseSettings, k: int, rows_of: slice) -> FuseStep:
    """`fuse_full` on some rows of the batch."""
    logits = [x[rows_of] for x in logits]
    allowed = [mask if mask.shape[0] == 1 else mask[rows_of] for mask in vocab.allowed]
    settings = contiguous(settings.rows(rows_of))
    models, batch, device = len(logits), logits[0].shape[0], logits[0].device
    out = new_step(logits, k)
    stream = stream_of(logits, allowed)
    tables = vocab_tables(vocab)
    eos_counts = tuple(eos.shape[0] for eos in vocab.eos_ids)
    eos = next_power_of_two(max(1, *eos_counts))
    padded = next_power_of_two(models)
    chunks = (vocab.size + CANDIDATE_CHUNK - 1) // CANDIDATE_CHUNK
    passes = next_power_of_two(chunks)
    stride = chunks * CANDIDATE_CHUNK
    groups = stride // GROUP
    # A thread holds as many elements of [models, candidates] whatever the number of models; 64 Ki registers a program.
    warps = 2 * max(2, padded)
    # The means keep two such tiles alive and would spill: of many models they take the candidates in parts.
    parts = 4 if padded > 4 else 1
    wide = {**FINISH_OPTIONS, "num_warps": warps, "maxnreg": min(224, 2048 // warps)}

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=device)

    shifts, tops = empty(models, 2), empty(k, dtype=torch.int32)
    keys, ints = selection_scratch(stream, k)
    launch_stream(stream)
    full_statistics_kernel[(batch,)](
        stream.rows, stream.partials, stream.maxima, stream.chunks, keys, ints, tables, eos_counts, vocab.size, shifts,
        tops, out, batch, k, M=models, EOS=eos, **finish_sizes(stream.chunks, k), **FINISH_OPTIONS,
    )  # fmt: skip

    grid = (batch, chunks)
    sums = empty(chunks, 2 * padded + 1)
    sized: dict[str, int] = {"M": models, "MODELS": padded, "EOS": eos}
    full_sums_kernel[grid](stream.rows, tables, eos_counts, shifts, vocab.size, sums, chunks, **sized, **wide)
    mean, other = empty(stride), empty(stride)
    partials = empty(chunks, FULL_PARTIALS + padded)
    full_mean_kernel[grid](
        stream.rows, tables, eos_counts, shifts, vocab.size, sums, settings, mean, other, stride, partials, chunks,
        **sized, CHUNKS=passes, PARTS=parts, **wide,
    )  # fmt: skip
    state, boost = empty(FULL_STATE), empty(k)
    full_decide_kernel[(batch,)](
        shifts, vocab.size, sums, settings, mean, other, stride, partials, chunks, tops, k,
        vocab.prefix_end.contiguous(), vocab.space_cid, state, boost, out, batch,
        M=models, MODELS=padded, CHUNKS=passes, **FINISH_OPTIONS,
    )  # fmt: skip
    totals, best = empty(chunks, 2), empty(chunks, dtype=torch.int64)
    full_sharpen_kernel[grid](
        settings, mean, other, stride, chunks, tops, boost, k, state, totals, best, **FINISH_OPTIONS
    )
    maxima = empty(groups)
    full_normalise_kernel[grid](
        settings, mean, other, stride, chunks, totals, state, maxima, groups, CHUNKS=passes, **FINISH_OPTIONS
    )

    bounds, scores, places = (
        empty(2, dtype=torch.int32),
        empty(chunks, dtype=torch.float64),
        empty(chunks, dtype=torch.int32),
    )
    full_filter_kernel[(batch,)](other, stride, settings, state, bounds, **{**FINISH_OPTIONS, "num_warps": 8})
    full_gumbel_kernel[grid](other, stride, settings, state, bounds, chunks, scores, places, **FINISH_OPTIONS)

    sizes = finish_sizes((groups * GROUP + CHUNK - 1) // CHUNK, k)
    del sizes["CHUNKS"]
    keys, ints = empty(sizes["ROOM"] + sizes["COLUMNS"], dtype=torch.int64), empty(2 * sizes["K"], dtype=torch.int32)
    full_finish_kernel[(batch,)](
        stream.rows, tables, eos_counts, vocab.size, settings, mean, stride, maxima, groups, chunks, best, scores,
        places, keys, ints, out, k, EOS=eos, PASSES=passes, **sizes, **FINISH_OPTIONS,
    )  # fmt: skip
    return out
