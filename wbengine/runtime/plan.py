"""The frozen form of a flow that the engine works with.

A plan is what `compiler.compile` makes of a tree of flows: nodes are small integers, ids ascend in
topological order, and a flow is one contiguous range of ids: its enter node, its retry when it has
one, its children, its exit node.  "Is this node inside that flow" is a comparison of integers, and
"everything inside that flow" is a `range`.

Names are resolved without any table per atom.  Every stored name has one ascending list of the
nodes that provide it.  Inside one branch of a flow that is not linear, whatever has a smaller id
is a predecessor, so a slice of that list *is* the list of visible providers; only at the borders
of unordered and graph flows something has to be hidden or searched.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from wbengine import atom, deciders, flow

FLOW: Final = 0
RETRY: Final = 1
TASK: Final = 2
FLOW_END: Final = 3

#: Appended to a flow's name to name its exit node.
END_SUFFIX: Final = "[$]"


class Provider(NamedTuple):
    """A node that provides a stored name, and where in its result (`None`: the whole result)."""

    node: int
    index: Any


class Edge(NamedTuple):
    """A link that carries a decider; `source` is -1 when the link comes from a flow."""

    source: int
    decider: Callable[..., Any]
    depth: deciders.Depth
    #: The node that the link begins at: the source, or the exit of the flow.
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to run, in which order, and who answers for what.

    Nothing in it changes after compilation; it may be shared by any number of runs and threads.
    Sequences are indexed by node id.
    """

    #: FLOW (an enter node), RETRY, TASK or FLOW_END.
    kinds: Sequence[int]
    #: The atom of a RETRY or TASK; the flow of an enter or exit node.
    items: Sequence[flow.Flow | atom.Atom]
    #: Atom and flow names; an exit node is called `name[$]`.
    names: Sequence[str]
    succ: Sequence[Sequence[int]]
    pred: Sequence[Sequence[int]]
    #: Enter node of the flow around a node; that of a flow's own enter and exit is the flow around
    #: *that* flow.  -1 around the root.
    parent: Sequence[int]
    #: Enter node -> exit node.
    end: Mapping[int, int]
    #: The retry that answers for a failure of the node, -1 when there is none.  A retry answers for
    #: what is inside its flow, not for itself.
    controller: Sequence[int]
    #: Node -> its join rule, where it is not ALL.  A node may be an enter node.
    joins: Mapping[int, deciders.Join]
    #: Target -> the links with deciders that lead to it.  A target may be an enter node.
    deciders: Mapping[int, tuple[Edge, ...]]
    #: Enter nodes of the flows that were made for one task each, which has retries: the enter node,
    #: its retry, the task, the exit node.
    retried: Collection[int]
    #: Node ids of tasks and retries.
    by_name: Mapping[str, int]
    #: The nearest visible provider of each name an atom binds, by node: `first` without search.
    firsts: Mapping[int, Mapping[str, Provider | None]]

    # How names are resolved: the branch a node is in (the child of the innermost flow around it
    # that is not linear), that flow's enter node (-1: linear up to the root), the enter node of an
    # exit.
    _branch: Sequence[int]
    _around: Sequence[int]
    _begin: Sequence[int]
    # Child of a graph flow -> the names each of its `pred` was linked for, when there are any.
    _reasons: Mapping[int, tuple[Collection[str], ...]]
    # Stored name -> the nodes that provide it, ascending.
    _suppliers: Mapping[str, Sequence[int]]

    def __len__(self) -> int:
        return len(self.kinds)

    def scope(self, retry: int) -> range:
        """The retry node itself and everything inside its flow, up to (without) the exit node."""
        return range(retry, self.end[self.parent[retry]])

    def is_like_task(self, node: int) -> bool:
        """Whether a link to the node leads to a task: to itself, or to the flow made for it."""
        return self.kinds[node] == TASK or node in self.retried

    def whole(self, node: int) -> range:
        """The node, and of a flow's enter node all that is in the flow, its exit node included."""
        return range(node, self.end.get(node, node) + 1)

    def is_atom(self, node: int) -> bool:
        return self.kinds[node] in (TASK, RETRY)

    def atoms(self) -> Iterator[int]:
        """The node ids of all tasks and retries, ascending."""
        return (n for n, kind in enumerate(self.kinds) if kind in (TASK, RETRY))

    def provides(self, name: str) -> bool:
        """Whether any atom of the plan provides the stored name, visible or not."""
        return name in self._suppliers

    def first(self, node: int, name: str) -> Provider | None:
        """The nearest visible provider of a stored name, or None.

        O(1) for the names that the atom itself binds; a search for any other.
        """
        firsts = self.firsts.get(node)
        if firsts is not None and name in firsts:
            return firsts[name]
        return next(self.candidates(node, name), None)

    def candidates(self, node: int, name: str) -> Iterator[Provider]:
        """Every visible provider of a stored name, nearest first, found as far as it is asked for.

        Visible is what is a predecessor in the execution graph.  A retry sees what its flow sees
        from outside.
        """
        for found in self._visible(node, name):
            item: Any = self.items[found]
            yield Provider(found, item.save_as[name])

    def _visible(self, node: int, name: str) -> Iterator[int]:
        suppliers = self._suppliers.get(name)
        if suppliers is None:
            return
        branch, around, limit = self._branch[node], self._around[node], node
        while True:
            yield from within(suppliers, branch, limit)
            if around < 0:
                return
            if self.items[around].kind == "graph":  # type: ignore[union-attr]
                yield from self._siblings(suppliers, around, branch, name)
            if self.kinds[around + 1] == RETRY:
                yield from within(suppliers, around + 1, around + 2)
            branch, around, limit = self._branch[around], self._around[around], around

    def _siblings(
        self, suppliers: Sequence[int], around: int, branch: int, name: str
    ) -> Iterator[int]:
        """Providers among the ancestors of a graph flow's child: those linked for `name` first."""
        head = around + 1 if self.kinds[around + 1] == RETRY else around
        at = bisect_right(suppliers, head)
        if at == len(suppliers) or suppliers[at] >= branch:
            return
        lowest = suppliers[at]
        reasons = self._reasons.get(branch, ())
        pairs = zip(self.pred[branch], reasons, strict=False)
        named = [node for node, names in pairs if name in names]
        for node in reversed(named):
            yield from within(suppliers, self._begin[node], node + 1)
        # Ids ascend along every link: a heap meets the ancestors nearest first, each once.
        heap = [-node for node in self.pred[branch] if node >= lowest]
        heapq.heapify(heap)
        seen = set(heap)
        while heap:
            node = -heapq.heappop(heap)
            if node not in named:
                yield from within(suppliers, self._begin[node], node + 1)
            for before in self.pred[self._begin[node]]:
                if before >= lowest and -before not in seen:
                    seen.add(-before)
                    heapq.heappush(heap, -before)


def within(suppliers: Sequence[int], low: int, high: int) -> Iterator[int]:
    """Those in [low, high), greatest first."""
    at = bisect_left(suppliers, high) - 1
    while at >= 0 and suppliers[at] >= low:
        yield suppliers[at]
        at -= 1
