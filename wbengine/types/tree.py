"""Trees that can be searched and printed. No recursion, so any depth is supported."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from wbengine.types import graph

Matcher = Callable[["Node"], Any]


class FrozenNode(Exception):
    """A change of a frozen tree was attempted."""

    def __init__(self) -> None:
        super().__init__("Frozen node(s) can't be modified")


class Node:
    """A node with its content (`item`), attributes (`metadata`) and children."""

    STARTING_PREFIX: ClassVar[str] = ""
    EMPTY_SPACE_SEP: ClassVar[str] = " "
    HORIZONTAL_CONN: ClassVar[str] = "__"
    VERTICAL_CONN: ClassVar[str] = "|"
    LINE_SEP: ClassVar[str] = os.linesep

    def __init__(self, item: Any, **kwargs: Any) -> None:
        self.item = item
        self.metadata: dict[str, Any] = kwargs
        self.parent: Node | None = None
        self.frozen = False
        self._children: list[Node] = []

    def freeze(self) -> None:
        """Make this node and its descendants immutable."""
        for node in self.dfs_iter(include_self=True):
            node.frozen = True

    def _check(self) -> None:
        if self.frozen:
            raise FrozenNode

    def add(self, child: Node) -> None:
        """Append a child.

        :raises FrozenNode: if this node is frozen.
        """
        self._check()
        child.parent = self
        self._children.append(child)

    def disassociate(self) -> int:
        """Remove this node from its parent. Return the number of removed references.

        :raises FrozenNode: if this node is frozen.
        """
        self._check()
        parent, self.parent = self.parent, None
        if parent is None:
            return 0
        before = len(parent._children)
        parent._children = [child for child in parent._children if child is not self]
        return before - len(parent._children)

    def remove(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Node:
        """Remove and return the node of `item`.

        :raises ValueError: if there is none.
        :raises FrozenNode: if this node is frozen.
        """
        self._check()
        node = self.find(item, only_direct, include_self)
        if node is None:
            raise ValueError(f"Item {item!r} cannot be removed: it is not in the tree")
        node.disassociate()
        return node

    def empty(self) -> bool:
        return not self._children

    def child_count(self, only_direct: bool = True) -> int:
        """Return the number of children, or of all descendants."""
        return len(self._children) if only_direct else sum(1 for _ in self.dfs_iter())

    def path_iter(self, include_self: bool = True) -> Iterator[Node]:
        """Iterate from this node up to the root."""
        node = self if include_self else self.parent
        while node is not None:
            yield node
            node = node.parent

    def find_first_match(
        self, matcher: Matcher, only_direct: bool = False, include_self: bool = True
    ) -> Node | None:
        """Return the first node in depth-first order for which `matcher(node)` is true, or None."""
        if only_direct:
            nodes: Iterator[Node] = iter([*([self] if include_self else []), *self._children])
        else:
            nodes = self.dfs_iter(include_self=include_self)
        return next((node for node in nodes if matcher(node)), None)

    def find(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Node | None:
        """Return the first node with an equal item, or None."""
        return self.find_first_match(lambda node: node.item == item, only_direct, include_self)

    def index(self, item: Any) -> int:
        """Return the position of an item among the children.

        :raises ValueError: if there is no such child.
        """
        for place, child in enumerate(self._children):
            if child.item == item:
                return place
        raise ValueError(f"{item!r} is not the item of a child")

    def __contains__(self, item: object) -> bool:
        return self.find(item) is not None

    def __getitem__(self, index: int) -> Node:
        return self._children[index]

    def __len__(self) -> int:
        return len(self._children)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Node]:
        return iter(self._children)

    def reverse_iter(self) -> Iterator[Node]:
        return reversed(self._children)

    def dfs_iter(self, include_self: bool = False, right_to_left: bool = True) -> Iterator[Node]:
        """Iterate over all descendants, parents first.

        :param right_to_left: True: in the order of insertion; False: in reverse order. (The name is
            TaskFlow's.)
        """
        stack = [self] if include_self else self._backwards(right_to_left)
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node._backwards(right_to_left))

    def _backwards(self, right_to_left: bool) -> list[Node]:
        return self._children[::-1] if right_to_left else self._children[:]

    def bfs_iter(self, include_self: bool = False, right_to_left: bool = False) -> Iterator[Node]:
        """Iterate over all descendants, level by level. `right_to_left` is as in `dfs_iter`."""
        queue = deque([self] if include_self else self._backwards(not right_to_left))
        while queue:
            node = queue.popleft()
            yield node
            queue.extend(node._backwards(not right_to_left))

    def pformat(
        self,
        stringify_node: Callable[[Node], str] | None = None,
        linesep: str = LINE_SEP,
        vertical_conn: str = VERTICAL_CONN,
        horizontal_conn: str = HORIZONTAL_CONN,
        empty_space: str = EMPTY_SPACE_SEP,
        starting_prefix: str = STARTING_PREFIX,
    ) -> str:
        """Return a drawing of the tree with one line for each node. O(size of the drawing).

        >>> root = Node('city')
        >>> root.add(Node('park'))
        >>> root[0].add(Node('pond'))
        >>> root.add(Node('port'))
        >>> print(root.pformat())
        city
        |__park
        |  |__pond
        |__port
        """
        to_text = stringify_node if stringify_node is not None else lambda node: str(node.item)
        connection = vertical_conn + horizontal_conn
        below = vertical_conn + empty_space * len(horizontal_conn)
        last_below = empty_space * len(connection)
        lines = [starting_prefix + to_text(self)]
        # Stack of nodes to draw, each with the prefix of its line.
        stack = [(child, starting_prefix) for child in reversed(self._children)]
        last_ids = {id(self._children[-1])} if self._children else set()
        while stack:
            node, prefix = stack.pop()
            lines.append(prefix + connection + to_text(node))
            if node._children:
                prefix += last_below if id(node) in last_ids else below
                last_ids.add(id(node._children[-1]))
                stack.extend((child, prefix) for child in reversed(node._children))
        return linesep.join(lines)

    def to_digraph(self) -> graph.OrderedDiGraph:
        """Return a graph of the items, with the metadata as attributes."""
        # Imported here, because trees are also used without networkx.
        from wbengine.types import graph

        digraph = graph.OrderedDiGraph()
        for node in self.bfs_iter(include_self=True, right_to_left=True):
            digraph.add_node(node.item, **node.metadata)
            if node is not self and node.parent is not None:
                digraph.add_edge(node.parent.item, node.item)
        return digraph

    def __repr__(self) -> str:
        return f"<Node {self.item!r} ({len(self._children)} below)>"
