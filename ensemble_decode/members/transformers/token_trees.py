"""Several continuations of one row in one forward: a tree behind its cached tokens, of which one path may stay.

The tree's keys and values lie in the row's own slot, behind its cached tokens, so the prefix is neither copied nor run
again; a mask gives every node the cached tokens before its fork and its own ancestors (docs/specfuse.md has the measurement).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ensemble_decode.errors import ContextError, InputError
from ensemble_decode.members.transformers import packing
from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.tree_mask import TreeMask
from ensemble_decode.members.tree import Tree


def forwards(
    slots: Sequence[int], trees: Sequence[Tree], cache: SlotCache, limit: int, context_length: int, name: str
) -> list[list[packing.Piece]]:
    """Which trees run together: all in one forward, or in several of about ``limit`` tokens. Makes room in the cache."""
    if len(slots) != len(trees) or len(set(slots)) != len(slots):
        raise InputError(f"{name}: {len(trees)} trees need as many slots, each once; got {list(slots)}")
    pieces, room = [], 0
    for row, (slot, tree) in enumerate(zip(slots, trees, strict=True)):
        trunk = cache.length(slot)
        if max(tree.forks, default=0) > trunk:
            raise InputError(f"{name}: row {row} forks at {max(tree.forks)}, its slot {slot} holds {trunk} tokens")
        if max(tree.positions, default=-1) >= context_length:
            raise ContextError(
                f"{name}: row {row} (slot {slot}) would have {max(tree.positions) + 1} tokens, the context length is "
                f"{context_length}"
            )
        if tree.ids:
            pieces.append(packing.Piece(row, slot, trunk, 0, len(tree.ids)))
            room = max(room, trunk + len(tree.ids))
    if cache.max_length is not None:  # the limit is one of the text; a tree lies flat behind it
        cache.max_length = max(cache.max_length, room)
    cache.grow(length=room)
    for piece in pieces:
        cache.touch(piece.slot, piece.end)
    out: list[list[packing.Piece]] = []
    held = limit
    for piece in pieces:
        if held + piece.count > limit:
            out.append([])
            held = 0
        out[-1].append(piece)
        held += piece.count
    return [sorted(part, key=lambda piece: piece.slot) for part in out]


def build(
    pieces: Sequence[packing.Piece],
    trees: Sequence[Tree],
    *,
    heads: Sequence[int],
    cache: SlotCache,
    buckets: Buckets,
    device: torch.device,
) -> tuple[packing.Step, dict[int, int]]:
    """The forward of some trees and, per row, the packed index of its first node."""
    step, places = packing.build(
        pieces,
        [tree.ids for tree in trees],
        heads=heads,
        slots_allocated=cache.slots,
        capacity=cache.capacity,
        buckets=buckets,
        device=device,
    )
    positions = np.zeros(step.ids.shape[1], np.int64)
    for piece in pieces:
        positions[places[piece.row] : places[piece.row] + piece.count] = trees[piece.row].positions
    step.positions = torch.from_numpy(positions[None]).to(device)
    for group, part in zip(step.groups, packing.similar(pieces), strict=True):
        group.aligned = False
        group.tree = TreeMask([trees[p.row] for p in part], [p.start for p in part], group.queries, device)
    step.stores = cache.layers
    return step, places


def keep(slots: Sequence[int], trees: Sequence[Tree], paths: Sequence[Sequence[int]], cache: SlotCache) -> None:
    """Make one path of each tree part of its row: cut the row at the path's fork and move the path's keys and values there.

    Valid until a slot is extended again. All rows move in one gather and one scatter per layer.
    """
    taken: list[int] = []
    where: list[int] = []
    home: list[int] = []
    for slot, tree, path in zip(slots, trees, paths, strict=True):
        trunk, fork = cache.length(slot), tree.forks[path[0]]
        home += [slot] * len(path)
        taken += [trunk + node for node in path]
        where += range(fork, fork + len(path))
        cache.rollback(slot, fork)
        cache.advance(slot, len(path), [tree.ids[node] for node in path])
    device = cache.device
    slot_index, source, target = (torch.tensor(x, dtype=torch.int64).to(device) for x in (home, taken, where))
    for layer in cache.layers:
        for store in (layer.keys, layer.values):
            store[slot_index, :, target] = store[slot_index, :, source]
