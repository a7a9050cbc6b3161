"""Trees of anything, that can be searched and drawn as text.  No depth is too deep for them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from wbengine.types import graph

Matcher = Callable[["Node"], Any]


class FrozenNode(Exception):
    """A frozen tree was to be changed."""

    def __init__(self) -> None:
        super().__init__("Frozen node(s) can't be modified")


class Node:
    """A thing (`item`), what is known of it (`metadata`), and the nodes below it."""

    #: What `pformat` draws with.
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

    # Changing.

    def freeze(self) -> None:
        """Let nobody change this node and those below it any more."""
        for node in self.dfs_iter(include_self=True):
            node.frozen = True

    def _check(self) -> None:
        if self.frozen:
            raise FrozenNode

    def add(self, child: Node) -> None:
        """Put `child` below this node, after those that are there.

        :raises FrozenNode: this node is frozen.
        """
        self._check()
        child.parent = self
        self._children.append(child)

    def disassociate(self) -> int:
        """Take this node away from its parent; how many times was it there?

        :raises FrozenNode: this node is frozen.
        """
        self._check()
        parent, self.parent = self.parent, None
        if parent is None:
            return 0
        before = len(parent._children)
        parent._children = [child for child in parent._children if child is not self]
        return before - len(parent._children)

    def remove(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Node:
        """Take the node of `item` out of the tree; returns it.

        :raises ValueError: there is none.
        :raises FrozenNode: this node is frozen.
        """
        self._check()
        found = self.find(item, only_direct, include_self)
        if found is None:
            raise ValueError(f"Item {item!r} is not in the tree, so it cannot be removed")
        found.disassociate()
        return found

    # Looking.

    def empty(self) -> bool:
        """Is nothing below it?"""
        return not self._children

    def child_count(self, only_direct: bool = True) -> int:
        """How many nodes are below it: the next level only, or all."""
        return len(self._children) if only_direct else sum(1 for _ in self.dfs_iter())

    def path_iter(self, include_self: bool = True) -> Iterator[Node]:
        """From this node up to the root."""
        node = self if include_self else self.parent
        while node is not None:
            yield node
            node = node.parent

    def find_first_match(
        self, matcher: Matcher, only_direct: bool = False, include_self: bool = True
    ) -> Node | None:
        """The first node, in depth-first order, that `matcher(node)` says yes to."""
        if only_direct:
            nodes: Iterator[Node] = iter([*([self] if include_self else []), *self._children])
        else:
            nodes = self.dfs_iter(include_self=include_self)
        return next((node for node in nodes if matcher(node)), None)

    def find(self, item: Any, only_direct: bool = False, include_self: bool = True) -> Node | None:
        """The first node of an equal item."""
        return self.find_first_match(lambda node: node.item == item, only_direct, include_self)

    def index(self, item: Any) -> int:
        """The place of an item on the next level.

        :raises ValueError: it is not there.
        """
        for place, child in enumerate(self._children):
            if child.item == item:
                return place
        raise ValueError(f"{item!r} is not contained in any child")

    def __contains__(self, item: object) -> bool:
        return self.find(item) is not None

    def __getitem__(self, index: int) -> Node:
        return self._children[index]

    def __len__(self) -> int:
        return len(self._children)

    def __bool__(self) -> bool:
        """A node is a thing, not a container: true also when nothing is below it."""
        return True

    # Walking.

    def __iter__(self) -> Iterator[Node]:
        """The next level, in the order added."""
        return iter(self._children)

    def reverse_iter(self) -> Iterator[Node]:
        """The next level, the latest added first."""
        return reversed(self._children)

    def dfs_iter(self, include_self: bool = False, right_to_left: bool = True) -> Iterator[Node]:
        """Every node below, each before those below it.

        `right_to_left` (TaskFlow's word): in the order added; else the latest added first.
        """
        stack = [self] if include_self else self._backwards(right_to_left)
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node._backwards(right_to_left))

    def _backwards(self, right_to_left: bool) -> list[Node]:
        return self._children[::-1] if right_to_left else self._children[:]

    def bfs_iter(self, include_self: bool = False, right_to_left: bool = False) -> Iterator[Node]:
        """Every node below, level by level; `right_to_left` as for `dfs_iter`."""
        queue = deque([self] if include_self else self._backwards(not right_to_left))
        while queue:
            node = queue.popleft()
            yield node
            queue.extend(node._backwards(not right_to_left))

    # Showing.

    def pformat(
        self,
        stringify_node: Callable[[Node], str] | None = None,
        linesep: str = LINE_SEP,
        vertical_conn: str = VERTICAL_CONN,
        horizontal_conn: str = HORIZONTAL_CONN,
        empty_space: str = EMPTY_SPACE_SEP,
        starting_prefix: str = STARTING_PREFIX,
    ) -> str:
        """Draw the tree, a line per node; the cost is that of what is drawn.

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
        say = stringify_node if stringify_node is not None else lambda node: str(node.item)
        connection = vertical_conn + horizontal_conn
        below = vertical_conn + empty_space * len(horizontal_conn)
        last_below = empty_space * len(connection)
        lines = [starting_prefix + say(self)]
        # (node, what stands before its connection), the next one to draw on top.
        stack = [(child, starting_prefix) for child in reversed(self._children)]
        lasts = {id(self._children[-1])} if self._children else set()
        while stack:
            node, before = stack.pop()
            lines.append(before + connection + say(node))
            if node._children:
                before += last_below if id(node) in lasts else below
                lasts.add(id(node._children[-1]))
                stack.extend((child, before) for child in reversed(node._children))
        return linesep.join(lines)

    def to_digraph(self) -> graph.OrderedDiGraph:
        """The same as a graph of the items, with the metadata as attributes."""
        # Not on top: a tree needs no networkx.
        from wbengine.types import graph

        made = graph.OrderedDiGraph()
        for node in self.bfs_iter(include_self=True, right_to_left=True):
            made.add_node(node.item, **node.metadata)
            if node is not self and node.parent is not None:
                made.add_edge(node.parent.item, node.item)
        return made

    def __repr__(self) -> str:
        return f"<Node {self.item!r} ({len(self._children)} below)>"
