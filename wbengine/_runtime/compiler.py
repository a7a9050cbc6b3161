"""Compile a tree of flows into a `Plan`, in one walk without recursion.

Ids ascend in topological order, because graph flows iterate over their children in such an order.
All providers that a node can use are visited before the node.
"""

from __future__ import annotations

from typing import Any, Final

from wbengine import atom, exceptions, flow, retry, task
from wbengine import deciders as deciders_module
from wbengine._runtime import task_retries
from wbengine._runtime.plan import END_SUFFIX, FLOW, FLOW_END, RETRY, TASK, Edge, Plan
from wbengine._runtime.resolver import Frame, Links, Resolver

_NONE: Final[tuple[int, ...]] = ()

#: Up to this number of tasks, appending them one by one is faster than appending them together.
_FEW: Final = 4


def compile(root: flow.Flow | task.Task) -> Plan:
    """Compile a flow, or a single task, into a plan.

    This reads `root` once and does not change it. It takes O(V+E) time and memory. Required names
    are not checked here, because inputs may be added later.

    :raises Duplicate: if two atoms have the same name.
    :raises ValueError: if the same atom or flow object occurs twice.
    :raises NotAFlow: if a member is neither a task nor a flow.
    :raises CompilationFailure: if the priority of a task is not a number, or an option of its
        retries is invalid.
    """
    return _Compiler().compile(root)


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
        self.joins: dict[int, deciders_module.Join] = {}
        self.retried: set[int] = set()
        self.by_name: dict[str, int] = {}
        self.reasons: dict[int, tuple[tuple[str, ...], ...]] = {}
        self.resolver = Resolver(self.items, self.pred, self.reasons)
        self.flows: set[int] = set()
        # Task classes that were checked: each is checked only once, to save time.
        self.tasks: set[type] = set()

    def compile(self, root: Any) -> Plan:
        if self._is_task(root) and (root.retries or type(root.retries) is not int):
            self._retried(root, None)
        elif isinstance(root, task.Task):
            self._atom(TASK, root, None, 0, _NONE)
        elif isinstance(root, flow.Flow):
            self._walk(root)
        else:
            raise exceptions.NotAFlow(f"Only a flow or a task can be compiled, got {root!r}")
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
            joins=self.joins,
            retried=self.retried,
            by_name=self.by_name,
            _branch=self.branch,
            _around=self.around,
            _begin=self.begin,
            _reasons=self.reasons,
            _suppliers=self.resolver.suppliers,
            firsts=self.resolver.firsts,
        )

    def _is_task(self, item: Any) -> bool:
        is_task = isinstance(item, task.Task)
        if is_task:
            self.tasks.add(type(item))
            if not item.backoff is item.retry_on is item.retry_for is None:
                task_retries.check(item)
        return is_task

    def _walk(self, root: flow.Flow) -> None:
        stack, tasks = [self._enter(root, None)], self.tasks
        while stack:
            frame = stack[-1]
            row: list[task.Task] = []
            for item in frame.children:
                if type(item) in tasks or self._is_task(item):
                    retries = item.retries
                    if retries or type(retries) is not int:
                        self._tasks(frame, row)
                        self._retried(item, frame)
                        row = []
                    else:
                        row.append(item)
                    continue
                if not isinstance(item, flow.Flow):
                    raise exceptions.NotAFlow(
                        f"Flow {frame.flow.name!r} must contain only tasks and flows, got {item!r}"
                    )
                self._tasks(frame, row)
                stack.append(self._enter(item, frame))
                break
            else:
                self._tasks(frame, row)
                stack.pop()
                self._leave(frame, stack[-1] if stack else None)

    def _retried(self, item: task.Task, frame: Frame | None) -> None:
        """Append a task with `retries` as a flow of this task with a retry controller."""
        if item.name in self.by_name:
            raise self._refusal(item, -1)
        inner = self._enter(task_retries.flow_of(item), frame, item)
        self.retried.add(inner.enter)
        self._tasks(inner, [item])
        self._leave(inner, frame)

    def _tasks(self, frame: Frame, row: list[task.Task]) -> None:
        if frame.links is None and len(row) > _FEW:
            self._row(frame, row)
            return
        for item in row:
            node = len(self.kinds)
            self._atom(TASK, item, frame, node, self._preds(frame, item))
            self._ended(frame, item, node, node)

    def _row(self, frame: Frame, row: list[task.Task]) -> None:
        """Append many tasks of a flow without links; values that they share are computed once."""
        count, first = len(row), len(self.kinds)
        # All lists share these integers: a flow may have many tasks.
        nodes, add = [*range(first, first + count)], self.resolver.add
        self.kinds += bytes((TASK,)) * count
        self.items += row
        self.names += [item.name for item in row]
        self.begin += nodes
        self.parent += [frame.enter] * count
        self.controller += [frame.controller] * count
        by_name = self.by_name
        for node, item in zip(nodes, row, strict=True):
            first_node = by_name.setdefault(item.name, node)
            if first_node != node or not isinstance(item.priority, (int, float)):
                raise self._refusal(item, node)
        if frame.starts is None:
            # A tuple `(node,)` is shared: it is the successors of the node before `node` and the
            # predecessors of the node after it.
            line = [(frame.last,), *[(node,) for node in nodes]]
            self.pred += line[:-1]
            self.succ[frame.last] = line[1]
            self.succ += line[2:]
            self.succ.append(_NONE)
            branch, scope = frame.branch, frame.outer
            self.branch += [branch] * count
            self.around += [-1 if scope is None else scope.enter] * count
            for node, item in zip(nodes, row, strict=True):
                add(node, item, branch, scope)
        else:
            self.pred += [self.pred[frame.starts[0]] if frame.starts else (frame.head,)] * count
            self.succ += [_NONE] * count
            frame.starts += nodes
            self.branch += nodes
            self.around += [frame.enter] * count
            for node, item in zip(nodes, row, strict=True):
                add(node, item, node, frame)
        frame.last = nodes[-1]

    def _refusal(self, item: atom.Atom, node: int) -> Exception:
        name = item.name
        if self.by_name[name] == node:
            return exceptions.CompilationFailure(
                f"The priority of atom {name!r} must be a number, got {item.priority!r}"
            )
        other_item = self.items[self.by_name[name]]
        if other_item is item:
            return ValueError(f"Atom {name!r} occurs twice in the flow: use each atom once")
        return exceptions.Duplicate(
            f"Two atoms have the name {name!r} ({other_item!r} and {item!r}): names must be"
            " unique in the whole flow, including nested flows"
        )

    def _node(
        self, kind: int, item: Any, name: str, frame: Frame | None, preds: tuple[int, ...]
    ) -> int:
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

    def _enter(
        self, item: flow.Flow, frame: Frame | None, member: task.Task | None = None
    ) -> Frame:
        """Append the enter node of a flow. In `frame`, the flow may stand for `member`."""
        if id(item) in self.flows:
            raise ValueError(f"Flow {item.name!r} occurs twice in the flow: use each flow once")
        self.flows.add(id(item))
        preds = _NONE if frame is None else self._preds(frame, member or item)
        node = self._node(FLOW, item, item.name, frame, preds)
        if frame is None:
            inner = Frame(item, node, 0, None, -1)
        elif frame.starts is not None:
            inner = Frame(item, node, node, frame, frame.controller)
        else:
            inner = Frame(item, node, frame.branch, frame.outer, frame.controller)
        inner.member = member or item
        if item.retry is not None:
            self._retry(item.retry, inner, frame)
        return inner

    def _retry(self, item: retry.Retry, inner: Frame, frame: Frame | None) -> None:
        """Append the retry controller of the flow just entered; it sees what the flow sees."""
        enter = inner.enter
        node = len(self.kinds)
        self._atom(RETRY, item, frame, enter, (enter,))
        self.parent[node] = enter
        self.branch[node] = self.branch[enter]
        self.around[node] = self.around[enter]
        self.succ[enter] = (node,)
        inner.head = inner.last = inner.controller = node

    def _atom(
        self, kind: int, item: atom.Atom, frame: Frame | None, at: int, preds: tuple[int, ...]
    ) -> None:
        """Append an atom that sees the same values as the node `at` of `frame`."""
        node = self._node(kind, item, item.name, frame, preds)
        first_node = self.by_name.setdefault(item.name, node)
        if first_node != node or not isinstance(item.priority, (int, float)):
            raise self._refusal(item, node)
        if frame is None:
            self.resolver.add(node, item, 0, None)
        elif frame.starts is not None:
            self.resolver.add(node, item, at, frame)
        else:
            self.resolver.add(node, item, frame.branch, frame.outer)

    def _leave(self, frame: Frame, parent: Frame | None) -> None:
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
        self._node(FLOW_END, item, item.name + END_SUFFIX, parent, preds)
        self.begin[node] = enter
        self.branch[node] = self.branch[enter]
        self.around[node] = self.around[enter]
        self.end[enter] = node
        gated = enter in self.deciders or enter in self.joins
        if gated and max(self.kinds.find(kind, enter) for kind in (TASK, RETRY)) < 0:
            # The flow contains no atom that could be ignored, so no decider is called.
            self.deciders.pop(enter, None)
            self.joins.pop(enter, None)
        if parent is not None:
            self._ended(parent, frame.member, enter, node)

    def _preds(self, frame: Frame, item: Any) -> tuple[int, ...]:
        """Return the predecessors of the next child of `frame`, which gets the next id."""
        node = len(self.kinds)
        if frame.starts is None:
            self.succ[frame.last] = (node,)
            return (frame.last,)
        frame.last = node
        frame.starts.append(node)
        links = frame.links
        if links is not None:
            links.named = None
            frame.view = None
            if links.joins and id(item) in links.joins:
                self.joins[node] = links.joins[id(item)]
            incoming = links.incoming.get(id(item))
            if incoming:
                return self._linked(links, incoming, node)
        # A shared tuple: the exit node reads it, and nothing changes it.
        first = frame.starts[0]
        return (frame.head,) if first == node else self.pred[first]

    def _linked(
        self, links: Links, incoming: list[tuple[Any, dict[str, Any]]], node: int
    ) -> tuple[int, ...]:
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
                source = -1
                if not isinstance(u, flow.Flow):
                    source = end if self.kinds[end] == TASK else end - 1
                edges.append(Edge(source, decider, depth, end))
        if named:
            self.reasons[node] = tuple(tuple(meta.get("reasons") or ()) for _, _, meta in arrows)
        if edges:
            self.deciders[node] = tuple(edges)
        return tuple(end for end, _, _ in arrows)

    def _ended(self, frame: Frame, item: Any, start: int, end: int) -> None:
        if frame.starts is None:
            frame.last = end
            return
        if frame.links is not None:
            frame.links.begins[end] = start
            frame.links.ends[id(item)] = end


def _by_end(arrow: tuple[int, Any, dict[str, Any]]) -> int:
    return arrow[0]
