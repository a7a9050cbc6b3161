"""What is part of what in a compiled flow: a graph that can also be walked and drawn as a tree.

Importing this module imports networkx; nothing that runs a flow needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wbengine.types import graph, tree

__all__ = ["Hierarchy"]


class Hierarchy(graph.DiGraph):
    """Flows and atoms, each flow with an edge to each of its members.

    `root` is the same as a `types.tree.Node`; what TaskFlow's trees are asked for most is answered
    by it.
    """

    def __init__(
        self, incoming_graph_data: Any = None, name: str = "", root: tree.Node | None = None
    ) -> None:
        super().__init__(incoming_graph_data, name=name)
        #: None in the copies that networkx makes of parts.
        self.root = root

    @property
    def item(self) -> Any:
        """The outermost flow."""
        return None if self.root is None else self.root.item

    def dfs_iter(self, include_self: bool = False, right_to_left: bool = True) -> Iterator[Any]:
        """The nodes of the tree, each before those below it."""
        return self._tree.dfs_iter(include_self, right_to_left)

    def bfs_iter(self, include_self: bool = False, right_to_left: bool = False) -> Iterator[Any]:
        """The nodes of the tree, level by level."""
        return self._tree.bfs_iter(include_self, right_to_left)

    def find(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Any:
        """The node of the tree that stands for a flow or an atom, or None."""
        return self._tree.find(item, only_direct, include_self)

    def pformat(self, **options: Any) -> str:
        """Draw the tree, a line per node; options as for `types.tree.Node.pformat`."""
        return super().pformat() if self.root is None else self.root.pformat(**options)

    @property
    def _tree(self) -> tree.Node:
        if self.root is None:
            raise ValueError("This is a part of a hierarchy, which has no root")
        return self.root
