"""Token trees: several continuations of one row that are read in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Tree:
    """Continuations of one row; those that begin alike share nodes.

    Node n holds ``ids[n]`` at text position ``positions[n]``. It sees the row's first ``forks[n]`` tokens, then its
    ancestors.

    Attributes:
        ids: Token id of each node.
        parents: The last ancestor of each node, −1 where a token of the row comes before.
        forks: How many of the row's tokens each node's path continues.
        positions: Text position of each node.
        wanted: Nodes whose logits are read, in the order of the returned rows.
    """

    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    forks: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    _nodes: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    def add(self, fork: int, ids: Sequence[int]) -> list[int]:
        """Add a path.

        Args:
            fork: How many of the row's tokens the path continues.
            ids: Token ids of the path.

        Returns:
            The nodes of the path, one per id; nodes that another path already has are shared.
        """
        path: list[int] = []
        parent = -1
        for depth, token in enumerate(ids):
            key = (fork, parent, token)
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = len(self.ids)
                self.ids.append(token)
                self.parents.append(parent)
                self.forks.append(fork)
                self.positions.append(fork + depth)
            path.append(node)
            parent = node
        return path

    def want(self, node: int) -> int:
        """Ask for the logits behind a node.

        Args:
            node: A node that ``add`` returned.

        Returns:
            Which of the tree's rows of logits they will be.
        """
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = len(self.wanted)
            self.wanted.append(node)
        return row

    def tokens_to(self, node: int) -> list[int]:
        """The ids of a node's path, its own last; what a member without tree attention reads as a plain row."""
        ids: list[int] = []
        while node >= 0:
            ids.append(self.ids[node])
            node = self.parents[node]
        return ids[::-1]
