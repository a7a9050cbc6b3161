"""The membership of flows and atoms in a compiled flow, as a graph and as a tree.

Importing this module imports networkx. Running a flow does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wbengine.types import graph, tree

__all__ = ["Hierarchy"]


class Hierarchy(graph.DiGraph):
    """A graph of flows and atoms, with an edge from each flow to each of its members.

    `root` is the same structure as a `types.tree.Node`, which implements TaskFlow's tree methods.
    """

    def __init__(
        self, incoming_graph_data: Any = None, name: str = "", root: tree.Node | None = None
    ) -> None:
        super().__init__(incoming_graph_data, name=name)
        self.root = root

    @property
    def item(self) -> Any:
        return None if self.root is None else self.root.item

    def dfs_iter(self, include_self: bool = False, right_to_left: bool = True) -> Iterator[Any]:
        return self._tree.dfs_iter(include_self, right_to_left)

    def bfs_iter(self, include_self: bool = False, right_to_left: bool = False) -> Iterator[Any]:
        return self._tree.bfs_iter(include_self, right_to_left)

    def find(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Any:
        """Return the tree node of a flow or an atom, or None."""
        return self._tree.find(item, only_direct, include_self)

    def pformat(self, **options: Any) -> str:
        """Draw the tree, one line for each node; options as for `types.tree.Node.pformat`."""
        return super().pformat() if self.root is None else self.root.pformat(**options)

    @property
    def _tree(self) -> tree.Node:
        if self.root is None:
            raise ValueError("This node has no root: it is only a part of a hierarchy")
        return self.root
