"""Which tokens one forward takes, where their keys and values go, and which rows attend together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.layer_store import LayerStore
from ensemble_decode.members.transformers.tree_mask import TreeMask


@dataclass(frozen=True)
class Piece:
    """Consecutive new tokens of one row that go in one forward.

    Attributes:
        row: Which row of the call.
        slot: Its slot.
        start: Tokens of the row that are cached before these.
        offset: Which of the row's new tokens is the first of these.
        count: How many tokens.
    """

    row: int
    slot: int
    start: int
    offset: int
    count: int

    @property
    def end(self) -> int:
        """Tokens of the row that are cached after the forward."""
        return self.start + self.count


def chunks(slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], limit: int) -> list[list[Piece]]:
    """Cut ragged rows into forwards. Rows of similar length go together.

    Args:
        slots: The rows' slots.
        starts: Tokens that each row holds.
        counts: New tokens of each row.
        limit: The most tokens of one forward.

    Returns:
        Per forward its pieces, sorted by slot; a row's pieces come in order, in successive forwards.
    """
    order = sorted((r for r in range(len(slots)) if counts[r]), key=lambda r: (counts[r], slots[r]))
    forwards: list[list[Piece]] = []
    current: list[Piece] = []
    room = limit
    for r in order:
        done = 0
        while done < counts[r]:
            take = min(counts[r] - done, room)
            current.append(Piece(r, slots[r], starts[r] + done, done, take))
            done, room = done + take, room - take
            if room == 0:
                forwards.append(current)
                current, room = [], limit
    if current:
        forwards.append(current)
    return [sorted(pieces, key=lambda piece: piece.slot) for pieces in forwards]


def similar(pieces: Sequence[Piece], waste: float = 4.0, floor: int = 4096) -> list[list[Piece]]:
    """Split the pieces of one forward into groups that attend in one padded call each.

    A group pads every row to its longest query and its longest key range.

    Args:
        pieces: The pieces of one forward.
        waste: Pieces are put together, shortest first, as long as the padded score matrix stays under ``waste`` times
            the useful one,
        floor: or under ``floor`` elements per head.

    Returns:
        The groups, each sorted by slot.
    """
    groups: list[list[Piece]] = []
    useful = longest = widest = 0
    for piece in sorted(pieces, key=lambda piece: (piece.count * piece.end, piece.slot)):
        area = piece.count * piece.end
        if groups:
            padded = (len(groups[-1]) + 1) * max(longest, piece.count) * max(widest, piece.end)
            if padded <= max(floor, waste * (useful + area)):
                groups[-1].append(piece)
                useful, longest, widest = useful + area, max(longest, piece.count), max(widest, piece.end)
                continue
        groups.append([piece])
        useful, longest, widest = area, piece.count, piece.end
    return [sorted(group, key=lambda piece: piece.slot) for group in groups]


@dataclass
class Group:
    """Rows that attend in one padded call.

    Attributes:
        rows: Rows, padding included.
        queries: Positions of each row, padding included.
        keys: Positions that are read of every row.
        first: Which of the forward's tokens is the group's first.
        count: The group's tokens, which follow each other in the forward.
        begin: The first slot where the slots are contiguous, else None.
        slots: int64 ``[rows]``.
        slots32: The same as int32.
        take: int64 ``[rows · queries]``: where each padded query lies among the forward's tokens. None: as they come.
        put: int64 ``[count]``: where each of the group's tokens lies among the padded queries. None: as they come.
        positions: int64 ``[rows, queries]``, in the text.
        starts: int32 ``[rows]``: tokens cached before this forward.
        aligned: Every query sees every key that is read, sliding windows apart.
        tree: What queries see where the rows are trees of continuations.
        masks: The masks that layers have asked for so far; see ``attention.bias``.
    """

    rows: int
    queries: int
    keys: int
    first: int
    count: int
    begin: int | None
    slots: torch.Tensor
    slots32: torch.Tensor
    take: torch.Tensor | None
    put: torch.Tensor | None
    positions: torch.Tensor
    starts: torch.Tensor
    aligned: bool
    tree: TreeMask | None = None
    masks: dict[object, torch.Tensor | None] = field(default_factory=dict)


@dataclass
class Step:
    """Everything a forward needs beside the weights: new ids of several rows, packed into one sequence.

    Attributes:
        ids: int64 ``[1, N]``.
        positions: int64 ``[1, N]``, in the text.
        write: Per number of KV heads, int64 ``[N · heads]``: the flat cache positions of new keys and values,
            token-major. Padding goes to the spare position behind the cache.
        groups: The rows that attend together.
        tokens: ``N`` without padding.
        no_mask: float ``[1, 1, 1, 1]``; stands where models expect a mask of their own making.
        stores: The cache's layers.
        flash: The flash-attn call; None: SDPA.
        windows: Filled by attention where given: layer to the sliding window that it was called with.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    write: dict[int, torch.Tensor]
    groups: list[Group]
    tokens: int
    no_mask: torch.Tensor
    stores: Sequence[LayerStore] = ()
    flash: Callable[..., torch.Tensor] | None = None
    windows: dict[int, int | None] | None = None


def _group(
    pieces: list[Piece], first: int, buckets: Buckets, device: torch.device, slots_allocated: int, capacity: int
) -> Group:
    rows, longest = len(pieces), max(piece.count for piece in pieces)
    rows_padded, queries = buckets.rows(rows), buckets.queries(longest)
    keys = min(buckets.keys(max(piece.end for piece in pieces)), capacity)
    count = sum(piece.count for piece in pieces)
    slots = np.zeros(rows_padded, np.int64)
    starts = np.zeros(rows_padded, np.int32)
    # padding rows repeat the first row, so that whatever a kernel writes for them is what is there anyway
    slots[:] = pieces[0].slot
    starts[:] = pieces[0].start
    slots[:rows] = [piece.slot for piece in pieces]
    starts[:rows] = [piece.start for piece in pieces]
    lowest = pieces[0].slot
    together = pieces[-1].slot - lowest == rows - 1 and lowest + rows_padded <= slots_allocated
    if buckets.padded and lowest:  # a shape per first slot would be too many
        together = False
    dense = rows_padded == rows and all(piece.count == queries for piece in pieces)
    take = put = None
    if not dense:
        grid = np.full((rows_padded, queries), first, np.int64)
        where = np.zeros(buckets.tokens(count), np.int64)
        at = 0
        for r, piece in enumerate(pieces):
            grid[r, : piece.count] = np.arange(first + at, first + at + piece.count)
            where[at : at + piece.count] = np.arange(r * queries, r * queries + piece.count)
            at += piece.count
        grid[rows:] = grid[0]
        take, put = torch.from_numpy(grid.reshape(-1)).to(device), torch.from_numpy(where).to(device)
    # padded queries sit past their row's end; the last key they could see is the last one that is read
    positions = np.minimum(starts[:, None].astype(np.int64) + np.arange(queries), keys - 1)
    aligned = not buckets.padded and queries == 1 and all(piece.end == keys for piece in pieces)
    return Group(
        rows=rows_padded,
        queries=queries,
        keys=keys,
        first=first,
        count=count,
        begin=lowest if together else None,
        slots=torch.from_numpy(slots).to(device),
        slots32=torch.from_numpy(slots.astype(np.int32)).to(device),
        take=take,
        put=put,
        positions=torch.from_numpy(positions).to(device),
        starts=torch.from_numpy(starts).to(device),
        aligned=aligned,
    )


def build(
    pieces: Sequence[Piece],
    new_ids: Sequence[Sequence[int]],
    *,
    heads: Sequence[int],
    slots_allocated: int,
    capacity: int,
    buckets: Buckets,
    device: torch.device,
) -> tuple[Step, dict[int, int]]:
    """Plan one forward.

    Args:
        pieces: What it takes, sorted by slot; a row at most once.
        new_ids: All new ids, per row.
        heads: The numbers of KV heads that layers have.
        slots_allocated: Slots of the cache.
        capacity: Positions of each.
        buckets: How shapes are rounded.
        device: Where the forward runs.

    Returns:
        The forward, and per row the packed index of its piece's first token.
    """
    groups: list[Group] = []
    ids: list[int] = []
    places: dict[int, int] = {}
    positions: list[np.ndarray] = []
    rows_slots: list[np.ndarray] = []
    parts = [list(pieces)] if buckets.padded else similar(pieces)
    for part in parts:
        groups.append(_group(part, len(ids), buckets, device, slots_allocated, capacity))
        for piece in part:
            places[piece.row] = len(ids)
            ids.extend(new_ids[piece.row][piece.offset : piece.offset + piece.count])
            positions.append(np.arange(piece.start, piece.end, dtype=np.int64))
            rows_slots.append(np.full(piece.count, piece.slot, np.int64))
    tokens = len(ids)
    position, slot = np.concatenate(positions), np.concatenate(rows_slots)
    padding = buckets.tokens(tokens) - tokens
    write = {}
    for h in set(heads):
        flat = ((slot[:, None] * h + np.arange(h)) * capacity + position[:, None]).reshape(-1)
        spare = np.full(padding * h, slots_allocated * h * capacity, np.int64)
        write[h] = torch.from_numpy(np.concatenate([flat, spare])).to(device)
    packed = torch.tensor([ids + [0] * padding], dtype=torch.int64)
    step = Step(
        ids=packed.to(device),
        positions=torch.from_numpy(np.pad(position, (0, padding))[None]).to(device),
        write=write,
        groups=groups,
        tokens=tokens,
        no_mask=torch.zeros(1, 1, 1, 1, device=device),
    )
    return step, places
