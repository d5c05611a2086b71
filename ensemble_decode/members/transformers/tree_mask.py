"""Which cached tokens and which nodes every node of a token tree sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ensemble_decode.members.tree import Tree


class TreeMask:
    """Which keys of its slot every query of a group sees, for groups whose rows are trees.

    Padded queries see the cached tokens alone.

    Args:
        trees: One per row.
        trunks: Cached tokens before each tree.
        queries: Queries of each row, padding included.
        device: Where attention runs.
    """

    def __init__(self, trees: Sequence[Tree], trunks: Sequence[int], queries: int, device: torch.device):
        rows = len(trees)
        forks = np.repeat(np.asarray(trunks, np.int64)[:, None], queries, axis=1)
        positions = forks.copy()
        ancestors = np.zeros((rows, queries, queries), bool)
        for r, tree in enumerate(trees):
            count = len(tree.ids)
            forks[r, :count], positions[r, :count] = tree.forks, tree.positions
            for node, parent in enumerate(tree.parents):
                if parent >= 0:
                    ancestors[r, node] = ancestors[r, parent]
                ancestors[r, node, node] = True
        self._trunks = torch.tensor(list(trunks), dtype=torch.int64).to(device)
        self._forks, self._positions = torch.from_numpy(forks).to(device), torch.from_numpy(positions).to(device)
        self._ancestors = torch.from_numpy(ancestors).to(device)

    def visible(self, keys: int, window: int | None) -> torch.Tensor:
        """Which keys are seen.

        Args:
            keys: Positions that are read of every slot.
            window: Keys that a query sees, its own included, counted in text positions, not in places in the slot;
                None: all.

        Returns:
            bool ``[rows, queries, keys]``.
        """
        rows, queries = self._forks.shape
        key = torch.arange(keys, device=self._forks.device).expand(rows, -1)
        node = key - self._trunks[:, None]
        inside = (node >= 0) & (node < queries)
        node = node.clamp(0, queries - 1)
        related = self._ancestors.gather(2, node[:, None].expand(-1, queries, -1)) & inside[:, None]
        seen = (key[:, None] < self._forks[:, :, None]) | related
        if window is not None:
            at = torch.where(inside, self._positions.gather(1, node), key)
            seen &= at[:, None] > self._positions[:, :, None] - window
        return seen
