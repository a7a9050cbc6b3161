"""The compiled form of a flow.

Nodes are small integers, ids ascend in topological order, and a flow is a contiguous range of ids:
its enter node, its retry controller (if any), its children, its exit node. Whether a node is inside
a flow is therefore a comparison of integers.

Each stored name has an ascending list of the nodes that provide it. Inside one branch of a flow
that is not linear, all nodes with smaller ids are predecessors, so a slice of that list contains
the visible providers. Only at the borders of unordered and graph flows are providers hidden or
searched.
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

END_SUFFIX: Final = "[$]"


class Provider(NamedTuple):
    """A node that provides a stored name, and the index in its result (None: the whole result)."""

    node: int
    index: Any


class Edge(NamedTuple):
    """A link with a decider; `source` is -1 if the link comes from a flow."""

    source: int
    decider: Callable[..., Any]
    depth: deciders.Depth
    #: The source, or the exit of the flow.
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A compiled flow: nodes, order and responsibilities.

    A plan is immutable after compilation and may be shared by runs and threads. Sequences are
    indexed by node id.
    """

    #: FLOW (an enter node), RETRY, TASK or FLOW_END.
    kinds: Sequence[int]
    items: Sequence[flow.Flow | atom.Atom]
    #: Names of atoms and flows; an exit node is called `name[$]`.
    names: Sequence[str]
    succ: Sequence[Sequence[int]]
    pred: Sequence[Sequence[int]]
    #: Enter node of the flow around a node; -1 around the root. For the enter and exit nodes of a
    #: flow, this is the flow around that flow.
    parent: Sequence[int]
    #: Enter node to exit node.
    end: Mapping[int, int]
    #: The retry controller responsible for failures of the node, or -1. A controller is responsible
    #: for the content of its flow, not for itself.
    controller: Sequence[int]
    #: Node to join rule, except for ALL.
    joins: Mapping[int, deciders.Join]
    #: Target to the links with deciders that lead to it. A target may be an enter node.
    deciders: Mapping[int, tuple[Edge, ...]]
    #: Enter nodes of the flows that were created for tasks with retries. Each has four nodes: enter
    #: node, retry controller, task, exit node.
    retried: Collection[int]
    by_name: Mapping[str, int]
    #: For each node, the nearest visible provider of each name that its atom binds.
    firsts: Mapping[int, Mapping[str, Provider | None]]

    # The branch of a node (the child of the innermost flow around it that is not linear), the enter
    # node of that flow (-1: linear up to the root), and the enter node of an exit.
    _branch: Sequence[int]
    _around: Sequence[int]
    _begin: Sequence[int]
    # Child of a graph flow to the names for which each of its `pred` was linked, if any.
    _reasons: Mapping[int, tuple[Collection[str], ...]]
    # Stored name to the nodes that provide it, ascending.
    _suppliers: Mapping[str, Sequence[int]]

    def __len__(self) -> int:
        return len(self.kinds)

    def scope(self, retry: int) -> range:
        """Return the range of a retry controller and its flow, without the exit node."""
        return range(retry, self.end[self.parent[retry]])

    def is_like_task(self, node: int) -> bool:
        """Return whether the node is a task, or the flow created for a single task."""
        return self.kinds[node] == TASK or node in self.retried

    def shown_name(self, node: int) -> str:
        """Return the name that users see: that of the task for nodes of a task's own flow."""
        for enter in (node, node - 1):
            if enter in self.retried:
                return self.names[enter + 2]
        return self.names[node]

    def whole(self, node: int) -> range:
        """Return the range of a node: for an enter node, the whole flow including its exit node."""
        return range(node, self.end.get(node, node) + 1)

    def is_atom(self, node: int) -> bool:
        return self.kinds[node] in (TASK, RETRY)

    def atoms(self) -> Iterator[int]:
        return (n for n, kind in enumerate(self.kinds) if kind in (TASK, RETRY))

    def has_workflows(self) -> bool:
        """Return whether the flow has a workflow. Cost: O(V)."""
        items: Sequence[Any] = self.items
        return any(
            kind == TASK and item.runs_steps for kind, item in zip(self.kinds, items, strict=True)
        )

    def provides(self, name: str) -> bool:
        return name in self._suppliers

    @property
    def provided_names(self) -> Collection[str]:
        return self._suppliers.keys()

    def first(self, node: int, name: str) -> Provider | None:
        """Return the nearest visible provider of a stored name, or None.

        O(1) for names that the atom itself binds; a search for others.
        """
        firsts = self.firsts.get(node)
        if firsts is not None and name in firsts:
            return firsts[name]
        return next(self.candidates(node, name), None)

    def candidates(self, node: int, name: str) -> Iterator[Provider]:
        """Iterate over the visible providers of a stored name, nearest first, lazily.

        The visible providers are the predecessors in the execution graph. A retry controller sees
        what its flow sees from outside.
        """
        for provider_node in self._visible(node, name):
            item: Any = self.items[provider_node]
            yield Provider(provider_node, item.save_as[name])

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
        """Yield providers among a child's ancestors; those linked for `name` first."""
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
        # Ids ascend along each link, so a heap yields each ancestor once, nearest first.
        heap = [-node for node in self.pred[branch] if node >= lowest]
        heapq.heapify(heap)
        seen = set(heap)
        while heap:
            node = -heapq.heappop(heap)
            if node not in named:
                yield from within(suppliers, self._begin[node], node + 1)
            for predecessor in self.pred[self._begin[node]]:
                if predecessor >= lowest and -predecessor not in seen:
                    seen.add(-predecessor)
                    heapq.heappush(heap, -predecessor)


def within(suppliers: Sequence[int], low: int, high: int) -> Iterator[int]:
    """Yield the nodes in [low, high), in descending order."""
    at = bisect_left(suppliers, high) - 1
    while at >= 0 and suppliers[at] >= low:
        yield suppliers[at]
        at -= 1
