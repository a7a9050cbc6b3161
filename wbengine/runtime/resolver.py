"""Which provider an atom's names lead to, found out while the flow is being walked.

The walk meets everything in the order of ids, so the providers known at any moment are those that
may be visible to the node that comes next; only borders of unordered and graph flows hide some.
`Plan.candidates` tells the same later on, in full; here the first one is found for everybody, and
what one member of a flow found outside is kept for its siblings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wbengine import atom, deciders, flow
from wbengine.runtime.plan import Provider


class Frame:
    """A flow whose end has not been met yet."""

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
        #: What stands in the flow around it: the flow itself, or the task that it was made for.
        self.member: Any = item
        self.enter = enter
        # Cheaper than a generator that stays suspended in each of many nested flows.
        self.children: Iterator[Any] = iter([node for node, _ in item.iter_nodes()])
        # The node everything inside comes after: the retry, else the enter node.
        self.head = enter
        self.controller = controller
        # Where the flow itself stands: the branch of the innermost flow around that is not linear.
        self.branch = branch
        self.outer = outer
        # Of a linear flow: where its latest child ends.  Else: the latest child.
        self.last = enter
        self.starts: list[int] | None = None if item.kind == "linear" else []
        self.links = Links(item) if item.kind == "graph" else None
        #: Name -> the nearest provider outside the latest child, as that child sees it.
        self.view: dict[str, Provider | None] | None = None


class Links:
    """The links among the children of one graph flow."""

    __slots__ = ("begins", "best", "ends", "incoming", "joins", "named", "outgoing")

    def __init__(self, item: flow.Flow) -> None:
        #: Join rules of children, by `id`.
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
        # Name -> the nodes the latest child is linked to for it.
        self.named: dict[str, list[int]] | None = None
        # Name -> child -> position among the suppliers of the nearest one that is an ancestor.
        self.best: dict[str, dict[int, int]] = {}


class Resolver:
    """All providers met so far; `items`, `pred` and `reasons` are the growing ones of the plan."""

    def __init__(
        self,
        items: Sequence[Any],
        pred: Sequence[tuple[int, ...]],
        reasons: Mapping[int, tuple[tuple[str, ...], ...]],
    ) -> None:
        self.items = items
        self.pred = pred
        self.reasons = reasons
        #: A tuple, as long as there is one: so it is for most names.
        self.suppliers: dict[str, tuple[int, ...] | list[int]] = {}
        self.firsts: dict[int, dict[str, Provider | None]] = {}

    def add(self, node: int, item: atom.Atom, branch: int, scope: Frame | None) -> None:
        """Look up all that an atom binds, seen from `branch` of `scope`; note what it provides."""
        if item.rebind or item.revert_rebind or item.optional or item.revert_optional:
            self.firsts[node] = {
                bound: self.lookup(bound, branch, scope)
                for names in (
                    item.rebind.values(),
                    item.optional,
                    item.revert_rebind.values(),
                    item.revert_optional,
                )
                for bound in names
            }
        for provided in item.save_as:
            alone = (node,)
            known = self.suppliers.setdefault(provided, alone)
            if isinstance(known, list):
                known.append(node)
            elif known is not alone:
                self.suppliers[provided] = [*known, node]

    def lookup(self, name: str, branch: int, scope: Frame | None) -> Provider | None:
        """The nearest provider of `name` for the node that gets the next id."""
        suppliers = self.suppliers.get(name)
        if suppliers is None:
            return None
        if suppliers[-1] >= branch:
            return self._provider(suppliers[-1], name)
        # Further out: what one branch found there holds for its siblings, and for what they hold.
        missed: list[dict[str, Provider | None]] = []
        found: Provider | None = None
        while scope is not None:
            if scope.view is None:
                scope.view = {}
            elif name in scope.view:
                found = scope.view[name]
                break
            missed.append(scope.view)
            found = self._outside(name, suppliers, scope)
            if found is not None:
                break
            scope = scope.outer
        for view in missed:
            view[name] = found
        return found

    def _provider(self, node: int, name: str) -> Provider:
        return Provider(node, self.items[node].save_as[name])

    def _outside(self, name: str, ids: Sequence[int], frame: Frame) -> Provider | None:
        """What the latest child of `frame` sees of `frame`, and of the branch `frame` is in."""
        if frame.links is not None:
            at = self._sibling(name, ids, frame, frame.links)
            if at >= 0:
                return self._provider(ids[at], name)
        # The head last, as the nearest one: nothing of `frame` has a smaller id.
        at = bisect_right(ids, frame.head) - 1
        if at >= 0 and ids[at] >= frame.branch:
            return self._provider(ids[at], name)
        return None

    def _sibling(self, name: str, ids: Sequence[int], frame: Frame, links: Links) -> int:
        """Position in `ids` of the nearest provider among a graph child's ancestors, or -1."""
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
        """Fill `best` for `child` and for as many of its ancestors as that needs.

        Ids ascend along links, so the nearest provider behind an ancestor that provides the name
        itself is never nearer than that one: the search need not pass it.
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
