"""Whether a node may run after what is before it: its deciders, and its join rule.

Everything directly before the node is settled when it is asked for; nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wbengine.deciders import Depth, Join, pick_widest
from wbengine.runtime.marks import IGNORED
from wbengine.runtime.plan import FLOW_END, Edge, Plan

_NOBODY: Final[tuple[Edge, ...]] = ()


class Gates:
    """The nodes of a plan with deciders or a join rule, as the marks of one run tell of them."""

    __slots__ = ("_gone", "_marks", "_plan", "nodes")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        # What `gone` found out about exits of flows.
        self._gone: dict[int, bool] = {}
        #: Those with deciders or a join rule.
        self.nodes = plan.deciders.keys() | plan.joins.keys()

    def closed(self, node: int) -> bool:
        """Whether the node has to be voted on, with a `ballot` that may be empty."""
        if self._plan.joins.get(node) != Join.ANY:
            return bool(self.ballot(node))
        deciding = {edge.end for edge in self._plan.deciders.get(node, _NOBODY)}
        return not any(n not in deciding and not self.gone(n) for n in self._plan.pred[node])

    def ballot(self, node: int) -> list[Edge]:
        """The links whose deciders are asked."""
        edges = self._plan.deciders.get(node, _NOBODY)
        if node in self._plan.joins:
            return [edge for edge in edges if not self.gone(edge.end)]
        # TaskFlow's rule: a flow has its vote even if it was ignored.
        return [edge for edge in edges if edge.source < 0 or self._marks[edge.source] != IGNORED]

    def refused(self, node: int, nays: Sequence[Edge]) -> Depth | None:
        """How deep a node is ignored when these links of its ballot said no; None: it runs."""
        if self._plan.joins.get(node) == Join.ANY:
            if len(nays) < len(self.ballot(node)):
                return None
            if not nays or any(self.gone(n) for n in self._plan.pred[node]):
                return Depth.ALL
        return pick_widest(edge.depth for edge in nays) if nays else None

    def gone(self, node: int) -> bool:
        """Whether a link that begins at the node cannot be taken, because its source was ignored.

        Of a flow that is so when all its last members were.  O(1); the first time O(members) of a
        flow.
        """
        if self._plan.kinds[node] != FLOW_END:
            return self._marks[node] == IGNORED
        known = self._gone.get(node)
        if known is None:
            known = self._gone[node] = self._all_gone(node)
        return known

    def _all_gone(self, node: int) -> bool:
        kinds, pred, marks = self._plan.kinds, self._plan.pred, self._marks
        work = [node]
        while work:
            n = work.pop()
            if kinds[n] == FLOW_END:
                work += pred[n]
            elif marks[n] != IGNORED:
                return False
        return True

    def forget(self) -> None:
        """Marks of nodes that were settled have changed."""
        self._gone.clear()
