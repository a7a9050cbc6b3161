"""From a tree of flows to a `Plan`, in one walk without recursion.

The walk keeps one frame per open flow.  Whatever it meets gets the next id, so that ids ascend in
topological order (graph flows hand out their children in such an order) and whatever a node can see
has been met before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final

from wbengine import atom, exceptions, flow, retry, task
from wbengine import deciders as deciders_module
from wbengine._core.plan import (
    END_SUFFIX,
    FLOW,
    FLOW_END,
    RETRY,
    TASK,
    Edge,
    Plan,
    Provider,
    Suppliers,
)

_NONE: Final[tuple[int, ...]] = ()


def compile(root: flow.Flow | task.Task) -> Plan:
    """Turn a flow (or one task) into a plan.

    Reads `root` once and changes nothing in it; O(V+E) in time and memory.  Required names are not
    checked here: inputs may come later.

    :raises Duplicate: two atoms have the same name.
    :raises ValueError: the same atom or flow object is met twice.
    :raises CompilationFailure: something in there is neither a task nor a flow.
    """
    return _Compiler().compile(root)


class _Frame:
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
        "outer",
        "starts",
        "view",
    )

    def __init__(
        self, item: flow.Flow, enter: int, branch: int, outer: _Frame | None, controller: int
    ) -> None:
        self.flow = item
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
        self.links = _Links(item) if item.kind == "graph" else None
        #: Name -> the nearest provider outside the latest child, as that child sees it.
        self.view: dict[str, Provider | None] | None = None


class _Links:
    """The links among the children of one graph flow."""

    __slots__ = ("begins", "best", "decided", "ends", "incoming", "named", "outgoing")

    def __init__(self, item: flow.Flow) -> None:
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


class _Compiler:
    def __init__(self) -> None:
        self.kinds = bytearray()
        self.items: list[Any] = []
        self.names: list[str] = []
        self.succ: list[tuple[int, ...]] = []
        self.pred: list[tuple[int, ...]] = []
        self.parent: list[int] = []
        self.controller: list[int] = []
        self.branch: list[int] = []
        self.around: list[int] = []
        self.begin: list[int] = []
        self.end: dict[int, int] = {}
        self.deciders: dict[int, tuple[Edge, ...]] = {}
        self.by_name: dict[str, int] = {}
        self.reasons: dict[int, tuple[tuple[str, ...], ...]] = {}
        self.suppliers: dict[str, Suppliers] = {}
        self.firsts: dict[int, dict[str, Provider | None]] = {}
        self.flows: set[int] = set()
        self.visits = 0

    def compile(self, root: Any) -> Plan:
        if isinstance(root, task.Task):
            self._atom(TASK, root, None, 0, _NONE)
        elif isinstance(root, flow.Flow):
            self._walk(root)
        else:
            raise exceptions.CompilationFailure(
                f"Only a flow or a task can be compiled, not {root!r}"
            )
        return Plan(
            kinds=bytes(self.kinds),
            items=self.items,
            names=self.names,
            succ=self.succ,
            pred=self.pred,
            parent=self.parent,
            end=self.end,
            controller=self.controller,
            deciders=self.deciders,
            by_name=self.by_name,
            visits=self.visits + len(self.kinds),
            _branch=self.branch,
            _around=self.around,
            _begin=self.begin,
            _reasons=self.reasons,
            _suppliers=self.suppliers,
            _firsts=self.firsts,
        )

    # -- the walk

    def _walk(self, root: flow.Flow) -> None:
        stack = [self._enter(root, None)]
        while stack:
            frame = stack[-1]
            for item in frame.children:
                if isinstance(item, task.Task):
                    node = len(self.kinds)
                    self._atom(TASK, item, frame, node, self._preds(frame, item))
                    self._ended(frame, item, node, node)
                elif isinstance(item, flow.Flow):
                    stack.append(self._enter(item, frame))
                    break
                else:
                    raise exceptions.CompilationFailure(
                        f"Flow {frame.flow.name!r} holds {item!r}, which is neither a task nor"
                        " a flow"
                    )
            else:
                stack.pop()
                self._leave(frame, stack[-1] if stack else None)

    def _node(
        self, kind: int, item: Any, name: str, frame: _Frame | None, preds: tuple[int, ...]
    ) -> int:
        """Append a node inside `frame`."""
        node = len(self.kinds)
        self.kinds.append(kind)
        self.items.append(item)
        self.names.append(name)
        self.succ.append(_NONE)
        self.pred.append(preds)
        self.begin.append(node)
        if frame is None:
            self.parent.append(-1)
            self.controller.append(-1)
            self.branch.append(0)
            self.around.append(-1)
            return node
        self.parent.append(frame.enter)
        self.controller.append(frame.controller)
        if frame.starts is not None:
            self.branch.append(node)
            self.around.append(frame.enter)
        else:
            self.branch.append(frame.branch)
            self.around.append(-1 if frame.outer is None else frame.outer.enter)
        return node

    def _enter(self, item: flow.Flow, frame: _Frame | None) -> _Frame:
        if id(item) in self.flows:
            raise ValueError(f"Flow {item.name!r} is in there twice; each may be used once")
        self.flows.add(id(item))
        preds = _NONE if frame is None else self._preds(frame, item)
        node = self._node(FLOW, item, item.name, frame, preds)
        if frame is None:
            inner = _Frame(item, node, 0, None, -1)
        elif frame.starts is not None:
            inner = _Frame(item, node, node, frame, frame.controller)
        else:
            inner = _Frame(item, node, frame.branch, frame.outer, frame.controller)
        if item.retry is not None:
            self._retry(item.retry, inner, frame)
        return inner

    def _retry(self, item: retry.Retry, inner: _Frame, frame: _Frame | None) -> None:
        """Append the retry of the flow just entered: it stands, and sees, where its flow does."""
        enter = inner.enter
        node = len(self.kinds)
        self._atom(RETRY, item, frame, enter, (enter,))
        self.parent[node] = enter
        self.branch[node] = self.branch[enter]
        self.around[node] = self.around[enter]
        self.succ[enter] = (node,)
        self.visits += 1
        inner.head = inner.last = inner.controller = node

    def _atom(
        self, kind: int, item: atom.Atom, frame: _Frame | None, at: int, preds: tuple[int, ...]
    ) -> None:
        """Append an atom that sees what the node `at` of `frame` sees."""
        name = item.name
        known = self.by_name.get(name)
        if known is not None:
            if self.items[known] is item:
                raise ValueError(f"Atom {name!r} is in there twice; each may be used once")
            raise exceptions.Duplicate(
                f"Two atoms are named {name!r} ({self.items[known]!r} and {item!r});"
                " names must be unique in the whole flow, nested flows included"
            )
        node = self._node(kind, item, name, frame, preds)
        self.by_name[name] = node
        if item.rebind or item.revert_rebind or item.optional or item.revert_optional:
            if frame is None:
                branch, scope = 0, None
            elif frame.starts is not None:
                branch, scope = at, frame
            else:
                branch, scope = frame.branch, frame.outer
            self.firsts[node] = {
                bound: self._lookup(bound, branch, scope)
                for names in (
                    item.rebind.values(),
                    item.optional,
                    item.revert_rebind.values(),
                    item.revert_optional,
                )
                for bound in names
            }
        for provided, index in item.save_as.items():
            suppliers = self.suppliers.get(provided)
            if suppliers is None:
                suppliers = self.suppliers[provided] = Suppliers([], [])
            suppliers.ids.append(node)
            suppliers.providers.append(Provider(node, index))

    def _leave(self, frame: _Frame, parent: _Frame | None) -> None:
        item, enter = frame.flow, frame.enter
        starts, links = frame.starts, frame.links
        node = len(self.kinds)
        if starts is None:
            preds: tuple[int, ...] = (frame.last,)
            self.succ[frame.last] = (node,)
        elif not starts:
            preds = (frame.head,)
            self.succ[frame.head] = (node,)
        else:
            out = (node,)
            ends = [self.end.get(start, start) for start in starts]
            if links is None:
                first = tuple(starts)
                preds = first if starts == ends else tuple(ends)
                for end in ends:
                    self.succ[end] = out
            else:
                first = tuple(n for n in starts if self.pred[n][0] == frame.head)
                for end in ends:
                    self.succ[end] = tuple(links.outgoing.get(end, out))
                preds = tuple(end for end in ends if end not in links.outgoing)
            self.succ[frame.head] = first
            self.visits += len(first)
        self.visits += len(preds)
        self._node(FLOW_END, item, item.name + END_SUFFIX, parent, preds)
        self.begin[node] = enter
        self.branch[node] = self.branch[enter]
        self.around[node] = self.around[enter]
        self.end[enter] = node
        if parent is not None:
            self._ended(parent, item, enter, node)

    # -- edges

    def _preds(self, frame: _Frame, item: Any) -> tuple[int, ...]:
        """What the next child of `frame` comes after; the child is about to get the next id."""
        node = len(self.kinds)
        self.visits += 1
        if frame.starts is None:
            self.succ[frame.last] = (node,)
            return (frame.last,)
        frame.last = node
        frame.starts.append(node)
        links = frame.links
        if links is not None:
            links.named = None
            frame.view = None
            incoming = links.incoming.get(id(item))
            if incoming:
                return self._linked(links, incoming, node)
        # One tuple for all: the exit node reads them, nobody changes them.
        first = frame.starts[0]
        return (frame.head,) if first == node else self.pred[first]

    def _linked(
        self, links: _Links, incoming: list[tuple[Any, dict[str, Any]]], node: int
    ) -> tuple[int, ...]:
        self.visits += len(incoming)
        arrows = sorted(((links.ends[id(u)], u, meta) for u, meta in incoming), key=_by_end)
        named = False
        edges = []
        for end, u, meta in arrows:
            links.outgoing.setdefault(end, []).append(node)
            named = named or bool(meta.get("reasons"))
            decider = meta.get("decider")
            if decider is not None:
                depth = deciders_module.Depth.translate(
                    meta.get("decider_depth") or deciders_module.Depth.ALL
                )
                edges.append(Edge(-1 if isinstance(u, flow.Flow) else end, decider, depth))
        if named:
            self.reasons[node] = tuple(tuple(meta.get("reasons") or ()) for _, _, meta in arrows)
        if edges:
            self.deciders[node] = tuple(edges)
        return tuple(end for end, _, _ in arrows)

    def _ended(self, frame: _Frame, item: Any, start: int, end: int) -> None:
        """A child of `frame` is complete."""
        if frame.starts is None:
            frame.last = end
            return
        if frame.links is not None:
            frame.links.begins[end] = start
            frame.links.ends[id(item)] = end

    # -- names

    def _lookup(self, name: str, branch: int, scope: _Frame | None) -> Provider | None:
        """The nearest provider of `name` for the node that gets the next id."""
        self.visits += 1
        suppliers = self.suppliers.get(name)
        if suppliers is None:
            return None
        if suppliers.ids[-1] >= branch:
            return suppliers.providers[-1]
        # Further out: what one branch found there holds for its siblings, and for what they hold.
        missed: list[dict[str, Provider | None]] = []
        found: Provider | None = None
        while scope is not None:
            self.visits += 1
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

    def _outside(self, name: str, suppliers: Suppliers, frame: _Frame) -> Provider | None:
        """What the latest child of `frame` sees of `frame`, and of the branch `frame` is in."""
        if frame.links is not None:
            at = self._sibling(name, suppliers.ids, frame, frame.links)
            if at >= 0:
                return suppliers.providers[at]
        # The head last, as the nearest one: nothing of `frame` has a smaller id.
        at = bisect_right(suppliers.ids, frame.head) - 1
        if at >= 0 and suppliers.ids[at] >= frame.branch:
            return suppliers.providers[at]
        return None

    def _sibling(self, name: str, ids: list[int], frame: _Frame, links: _Links) -> int:
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
        self, child: int, ids: list[int], low: int, begins: dict[int, int], best: dict[int, int]
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
                self.visits += 1
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


def _by_end(arrow: tuple[int, Any, dict[str, Any]]) -> int:
    return arrow[0]
