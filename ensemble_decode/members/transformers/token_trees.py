"""Several continuations of one row in one forward: a tree behind its cached tokens, of which one path may stay.

The tree's keys and values lie in the row's own slot, behind its cached tokens, so the prefix is neither copied nor run
again. A mask gives every node the cached tokens before its fork and its own ancestors (docs/specfuse.md has the
measurement).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ensemble_decode.members.transformers import packing
from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.tree_mask import TreeMask
from ensemble_decode.members.tree import Tree


def forwards(
    slots: Sequence[int], trees: Sequence[Tree], lengths: Sequence[int], limit: int
) -> list[list[packing.Piece]]:
    """Share trees out over forwards of about ``limit`` tokens; a tree is never cut.

    Args:
        slots: The rows' slots.
        trees: One per slot; empty ones take part in no forward.
        lengths: Tokens that each row holds.
        limit: A forward takes no further tree that would make it longer than this.

    Returns:
        Per forward its trees, by slot.
    """
    out: list[list[packing.Piece]] = []
    taken = limit
    for row, (slot, tree, length) in enumerate(zip(slots, trees, lengths, strict=True)):
        if not tree.ids:
            continue
        piece = packing.Piece(row, slot, length, 0, len(tree.ids))
        if taken + piece.count > limit:
            out.append([])
            taken = 0
        out[-1].append(piece)
        taken += piece.count
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
    """Plan the forward of some trees.

    Args:
        pieces: One per tree that takes part, by slot.
        trees: All trees; ``piece.row`` says which is meant.
        heads: The numbers of KV heads that layers have.
        cache: Where keys and values go.
        buckets: How shapes are rounded.
        device: Where the forward runs.

    Returns:
        The forward, and per row the packed index of its tree's first node.
    """
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
    """Make one path of each tree part of its row.

    The row is cut at the path's fork, and the path's keys and values are moved there. All rows move in one gather and
    one scatter per layer.

    Args:
        slots: The rows' slots; none was extended since its tree was read.
        trees: The trees that were read.
        paths: Per row the nodes of one path.
        cache: Where keys and values lie.
    """
    taken: list[int] = []
    where: list[int] = []
    home: list[int] = []
    for slot, tree, path in zip(slots, trees, paths, strict=True):
        length, fork = cache.length(slot), tree.forks[path[0]]
        home += [slot] * len(path)
        taken += [length + node for node in path]
        where += range(fork, fork + len(path))
        cache.rollback(slot, fork)
        cache.advance(slot, len(path), [tree.ids[node] for node in path])
    device = cache.device
    slot_index, source, target = (torch.tensor(x, dtype=torch.int64).to(device) for x in (home, taken, where))
    for layer in cache.layers:
        for store in (layer.keys, layer.values):
            store[slot_index, :, target] = store[slot_index, :, source]
