"""Find the nearest provider of each name while the compiler walks the flow.

The walk meets nodes in the order of their ids, so the providers known at any moment are those that
the next node may see; only the borders of unordered and graph flows hide some. Siblings share what
one of them found outside their flow. `Plan.candidates` finds the other providers later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wbengine import atom, deciders, flow
from wbengine._runtime.plan import Provider


class Frame:
    """A flow whose end the walk has not reached."""

    __slots__ = (
        "branch",
        "children",
        "controller",
        "enter",
        "flow",
        "head",
        "last",
        "links",
        "member",
        "outer",
        "starts",
        "view",
    )

    def __init__(
        self, item: flow.Flow, enter: int, branch: int, outer: Frame | None, controller: int
    ) -> None:
        self.flow = item
        #: The member of the surrounding flow: this flow, or the task for which it was created.
        self.member: Any = item
        self.enter = enter
        # A list costs less than a generator that stays suspended in each of many nested flows.
        self.children: Iterator[Any] = iter([node for node, _ in item.iter_nodes()])
        # The predecessor of all members: the retry controller, otherwise the enter node.
        self.head = enter
        self.controller = controller
        # The branch that contains this flow, in the innermost surrounding flow that is not linear.
        self.branch = branch
        self.outer = outer
        # In a linear flow, the end of the latest child; otherwise the latest child.
        self.last = enter
        self.starts: list[int] | None = None if item.kind == "linear" else []
        self.links = Links(item) if item.kind == "graph" else None
        #: Name to the nearest provider outside the latest child that is visible to this child.
        self.view: dict[str, Provider | None] | None = None


class Links:
    __slots__ = ("begins", "best", "ends", "incoming", "joins", "named", "outgoing")

    def __init__(self, item: flow.Flow) -> None:
        self.joins: dict[int, deciders.Join] = {
            id(node): meta[flow.NODE_JOIN]
            for node, meta in item.iter_nodes()
            if flow.NODE_JOIN in meta
        }
        self.incoming: dict[int, list[tuple[Any, dict[str, Any]]]] = {}
        for u, v, meta in item.iter_links():
            self.incoming.setdefault(id(v), []).append((u, meta))
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.outgoing: dict[int, list[int]] = {}
        # Name to the nodes to which the latest child is linked for this name.
        self.named: dict[str, list[int]] | None = None
        # For each name: child to the position of its nearest ancestor among the providers.
        self.best: dict[str, dict[int, int]] = {}


class Resolver:
    """The providers met so far. `items`, `pred` and `reasons` are the growing lists of the plan."""

    def __init__(
        self,
        items: Sequence[Any],
        pred: Sequence[tuple[int, ...]],
        reasons: Mapping[int, tuple[tuple[str, ...], ...]],
    ) -> None:
        self.items = items
        self.pred = pred
        self.reasons = reasons
        #: A tuple for a single provider, which is the most frequent case; otherwise a list.
        self.suppliers: dict[str, tuple[int, ...] | list[int]] = {}
        self.firsts: dict[int, dict[str, Provider | None]] = {}

    def add(self, node: int, item: atom.Atom, branch: int, scope: Frame | None) -> None:
        """Look up the names that an atom binds in `scope`; add the names it provides."""
        if item.rebind or item.revert_rebind or item.optional or item.revert_optional:
            self.firsts[node] = {
                bound_name: self.lookup(bound_name, branch, scope)
                for names in (
                    item.rebind.values(),
                    item.optional,
                    item.revert_rebind.values(),
                    item.revert_optional,
                )
                for bound_name in names
            }
        for provided in item.save_as:
            single = (node,)
            nodes = self.suppliers.setdefault(provided, single)
            if isinstance(nodes, list):
                nodes.append(node)
            elif nodes is not single:
                self.suppliers[provided] = [*nodes, node]

    def lookup(self, name: str, branch: int, scope: Frame | None) -> Provider | None:
        suppliers = self.suppliers.get(name)
        if suppliers is None:
            return None
        if suppliers[-1] >= branch:
            return self._provider(suppliers[-1], name)
        # Search outwards. The result for one branch is valid for its siblings and their content.
        missed: list[dict[str, Provider | None]] = []
        provider: Provider | None = None
        while scope is not None:
            if scope.view is None:
                scope.view = {}
            elif name in scope.view:
                provider = scope.view[name]
                break
            missed.append(scope.view)
            provider = self._outside(name, suppliers, scope)
            if provider is not None:
                break
            scope = scope.outer
        for view in missed:
            view[name] = provider
        return provider

    def _provider(self, node: int, name: str) -> Provider:
        return Provider(node, self.items[node].save_as[name])

    def _outside(self, name: str, ids: Sequence[int], frame: Frame) -> Provider | None:
        """Return the provider that the latest child sees in `frame` and in its branch."""
        if frame.links is not None:
            at = self._sibling(name, ids, frame, frame.links)
            if at >= 0:
                return self._provider(ids[at], name)
        # The head comes last because it is the farthest: no node of `frame` has a smaller id.
        at = bisect_right(ids, frame.head) - 1
        if at >= 0 and ids[at] >= frame.branch:
            return self._provider(ids[at], name)
        return None

    def _sibling(self, name: str, ids: Sequence[int], frame: Frame, links: Links) -> int:
        """Return the position in `ids` of a child's nearest providing ancestor, or -1."""
        child = frame.last
        low = bisect_right(ids, frame.head)
        if low == bisect_left(ids, child):
            return -1
        if links.named is None:
            links.named = {}
            for node, names in zip(self.pred[child], self.reasons.get(child, ()), strict=False):
                for reason in names:
                    links.named.setdefault(reason, []).append(node)
        for node in reversed(links.named.get(name, ())):
            at = bisect_right(ids, node) - 1
            if ids[at] >= links.begins[node]:
                return at
        return self._nearest(child, ids, ids[low], links.begins, links.best.setdefault(name, {}))

    def _nearest(
        self, child: int, ids: Sequence[int], low: int, begins: dict[int, int], best: dict[int, int]
    ) -> int:
        """Return the nearest provider for `child`.

        It is stored in `best`, with those of visited ancestors. Ids ascend along links, so no
        provider before an ancestor that provides the name is nearer than that ancestor: the search
        ends there.
        """
        stack = [child]
        while stack:
            top = stack[-1]
            if top in best:
                stack.pop()
                continue
            nearest, waiting = -1, len(stack)
            for end in self.pred[top]:
                if end < low:
                    continue
                at = bisect_right(ids, end) - 1
                begin = begins[end]
                if ids[at] < begin:
                    if begin not in best:
                        stack.append(begin)
                        continue
                    at = best[begin]
                nearest = max(nearest, at)
            if len(stack) == waiting:
                best[top] = nearest
                stack.pop()
        return best[child]
