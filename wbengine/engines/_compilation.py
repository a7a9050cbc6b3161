"""Views of a compiled flow, for drawing, exporting and testing.

The graphs are created on first access, and the engine never reads them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import deciders, exceptions, task
from wbengine import flow as flow_module
from wbengine._runtime import plan as plan_module
from wbengine._tasks import functors
from wbengine._tasks import limit_attributes as permit_limits
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine.types import _outline as outline_module
from wbengine.types._outline import Outline, OutlineNode

if TYPE_CHECKING:
    # Imported where it is used: running a flow does not need networkx.
    from wbengine.engines import _hierarchy as hierarchies
    from wbengine.types import graph as graphs

__all__ = ["FLOW", "FLOW_END", "RETRY", "TASK", "Compilation", "Terminator"]

# Values of the node attribute `kind`.
TASK: Final = "task"
RETRY: Final = "retry"
FLOW: Final = "flow"
FLOW_END: Final = "flow_end"

_KINDS: Final = {
    plan_module.FLOW: FLOW,
    plan_module.RETRY: RETRY,
    plan_module.TASK: TASK,
    plan_module.FLOW_END: FLOW_END,
}

_MAX_DECIDER_LENGTH: Final = 60
_LIMITED: Final = (plan_module.TASK, plan_module.FLOW)
_START_KINDS: Final = frozenset({plan_module.FLOW, plan_module.RETRY})


class Terminator:
    """The end of `flow` in the execution graph; its name is the name of the flow with `[$]`."""

    def __init__(self, flow: Any, name: str) -> None:
        self.flow = flow
        self.name = name

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class Compilation:
    """The plan of a flow, and views of it."""

    TASK: Final = TASK
    RETRY: Final = RETRY
    FLOW: Final = FLOW
    FLOW_END: Final = FLOW_END

    def __init__(self, plan: plan_module.Plan) -> None:
        self.plan = plan
        #: Limits of the flow and its tasks, by node.
        self.limits = _limits_of(plan)

    @cached_property
    def has_start_times(self) -> bool:
        """Whether a task of the flow has an `eta` or `expires`."""
        # `isinstance` with these abstract classes is slow, so each class is checked once.
        maps = {each for each in set(map(type, self.plan.items)) if issubclass(each, task.Map)}
        items: Iterable[Any] = self.plan.items
        for kind, item in zip(self.plan.kinds, items, strict=True):
            if kind == plan_module.TASK:
                each = item.inner if type(item) in maps else item
                if each.eta is not None or each.expires is not None:
                    return True
        return False

    @cached_property
    def has_workflows(self) -> bool:
        """Whether the flow has a workflow, whose steps are known only when it runs."""
        return self.plan.has_workflows()

    @cached_property
    def has_retries(self) -> bool:
        """Whether the flow has a retry controller, or a task with `retries`."""
        return plan_module.RETRY in self.plan.kinds

    @cached_property
    def nodes(self) -> list[Any]:
        """The objects that represent the nodes of the plan in the graphs."""
        plan = self.plan
        return [
            Terminator(item, name) if kind == plan_module.FLOW_END else item
            for kind, item, name in zip(plan.kinds, plan.items, plan.names, strict=True)
        ]

    @cached_property
    def execution_graph(self) -> graphs.DiGraph:
        """The dependency graph.

        Nodes are atoms, flows (their start) and `Terminator`s (their end), with the attributes
        `kind`, `noop` (nothing runs there), `retry` (inside the flow of a retry), and `join` (for a
        join rule other than ALL). Edges have the attributes of their link: `manual`, `reasons`,
        `decider` and `decider_depth`. Edges that every flow of the kind has are `invariant`; those
        from a retry also have `retry`.
        """
        from wbengine.types import graph as graphs

        plan, nodes = self.plan, self.nodes
        graph = graphs.DiGraph(name=plan.names[0])
        for number, node in enumerate(nodes):
            attributes: dict[str, Any] = {
                "kind": _KINDS[plan.kinds[number]],
                "noop": not plan.is_atom(number),
            }
            if plan.controller[number] >= 0:
                attributes["retry"] = nodes[plan.controller[number]]
            if number in plan.joins:
                attributes["join"] = plan.joins[number]
            graph.add_node(node, **attributes)
        for number, node in enumerate(nodes):
            invariant = {flow_module.LINK_INVARIANT: True}
            controls = {**invariant, flow_module.LINK_RETRY: True}
            for after in plan.succ[number]:
                begins = plan.kinds[number] == plan_module.RETRY and after != plan.end[number - 1]
                graph.add_edges_from([(node, nodes[after], controls if begins else invariant)])
        for before, after, meta in self._links():
            data = graph.adj[nodes[before]].get(nodes[after])
            if data is not None:  # the flow may have changed since it was compiled
                data.clear()
                data.update(meta)
        return graph

    def _links(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield the links between members of all flows, with the nodes of their ends.

        As a target, a flow is the node of its start; as a source, the node of its end.
        """
        plan = self.plan
        begins = {id(item): node for node, item in reversed(list(enumerate(plan.items)))}
        # A task with retries is represented by the flow that was created for it.
        begins.update((id(plan.items[enter + 2]), enter) for enter in plan.retried)
        for node, item in enumerate(plan.items):
            if plan.kinds[node] != plan_module.FLOW:
                continue
            if node in plan.retried:
                continue
            assert isinstance(item, flow_module.Flow)
            for before, after, meta in item.iter_links():
                if id(before) in begins and id(after) in begins:
                    source = begins[id(before)]
                    yield plan.end.get(source, source), begins[id(after)], meta

    @property
    def outline(self) -> Outline:
        """The structure as plain data, which can be drawn later and elsewhere, without the code.

        Computed at each access: O(size of the flow). Engines with a backend store it with the
        records of the flow (`Connection.get_outline`).
        """
        return _outline_of(self.plan, self.limits)

    @cached_property
    def hierarchy(self) -> hierarchies.Hierarchy:
        """The membership tree, from the outermost flow to the atoms."""
        from wbengine.engines import _hierarchy as hierarchies
        from wbengine.types import tree

        plan, nodes = self.plan, self.nodes
        graph = hierarchies.Hierarchy(name=plan.names[0])
        branches: dict[int, tree.Node] = {}
        for number, node in enumerate(nodes):
            if plan.kinds[number] == plan_module.FLOW_END:
                continue
            kind, parent = _KINDS[plan.kinds[number]], plan.parent[number]
            graph.add_node(node, kind=kind)
            branches[number] = tree.Node(node, kind=kind)
            if parent >= 0:
                graph.add_edge(nodes[parent], node)
                branches[parent].add(branches[number])
        graph.root = branches[0]
        return graph


def _limits_of(plan: plan_module.Plan) -> dict[int, permit_limits.Limit]:
    """Return the limits of a flow and its tasks by node. Most flows have none.

    :raises CompilationFailure: if a limit is invalid, or two limits with the same name differ.
    """
    limited: list[tuple[int, Any]] = [
        # Without a rate or concurrency, attributes `limit` or `concurrency_key` belong to the user.
        (node, item)
        for node, (kind, item) in enumerate(zip(plan.kinds, plan.items, strict=True))
        if kind in _LIMITED and not (item.rate_limit is item.concurrency is None)  # type: ignore[union-attr]
    ]
    limits_by_node: dict[int, permit_limits.Limit] = {}
    by_name: dict[str, tuple[str, permit_limits.Limit]] = {}
    for node, item in limited:
        try:
            what, limit = _limit(node, item)
        except (TypeError, ValueError) as error:
            raise exceptions.CompilationFailure(str(error)) from error
        limits_by_node[node] = limit
        other, first = by_name.setdefault(limit.name, (what, limit))
        if limit.quota != first.quota:
            raise exceptions.CompilationFailure(
                f"All uses of limit {limit.name!r} must have the same value, got"
                f" {first.quota.label} for {other} and {limit.quota.label} for {what}"
            )
    return limits_by_node


def _limit(node: int, item: Any) -> tuple[str, permit_limits.Limit]:
    if isinstance(item, flow_module.Flow):
        what = f"flow {item.name!r}"
        if node:
            raise ValueError(
                f"Only tasks and the outermost flow can have a limit, got nested {what}"
            )
        limit = permit_limits.limit_of(item, what, item.name, None)
        return what, limit._replace(name=f"flow {limit.name}")
    owner: task.Task = item.inner if isinstance(item, task.Map) else item
    what = f"task {owner.name!r}"
    known = {*owner.rebind, *owner._signatures()[0].names}
    return what, permit_limits.limit_of(owner, what, functors.code_of(owner), known)


def _outline_of(plan: plan_module.Plan, limits: Mapping[int, permit_limits.Limit]) -> Outline:
    """Return the outline of a plan.

    Links between flows connect the flows themselves, not their ends and starts. A task with retries
    is one node.
    """
    notes = _notes(plan)
    places: list[int] = []
    rows: list[tuple[Any, ...]] = []
    reverting: list[str] = []
    by_type: dict[type, tuple[str, str | None, str | None, bool]] = {}
    columns = zip(plan.kinds, plan.items, plan.names, strict=True)
    end = plan_module.FLOW_END
    for node, (kind, item, name) in enumerate(columns):
        if kind == end:
            places.append(places[plan._begin[node]])
            continue
        if node in plan.retried or node - 1 in plan.retried:
            places.append(len(rows))  # the place of the task, which follows
            continue
        outer = node - 2 if node - 2 in plan.retried else node
        parent = plan.parent[outer]
        description = by_type.get(type(item))
        if description is None:
            description = _describe(kind, item)
            if not isinstance(item, task.FunctorTask | WaitingTask | task.Map):
                by_type[type(item)] = description
        places.append(len(rows))
        if description[3]:
            reverting.append(name)
        within = places[parent] if parent >= 0 else None
        rows.append(
            (name, description[0], within, description[1], notes.get(outer), description[2])
        )
    for node, limit in limits.items():
        rows[places[node]] = (*rows[places[node]], limit.quota.label)
    for node, names in _used_inputs(plan).items():
        row = rows[places[node]]
        rows[places[node]] = (*row, *((names,) if len(row) > 6 else (None, names)))
    edges = [(places[before], places[after]) for before, after in _links(plan)]
    nodes = tuple([OutlineNode(*description) for description in rows])
    return Outline(nodes, tuple(edges), tuple(reverting))


def _used_inputs(plan: plan_module.Plan) -> dict[int, tuple[str, ...]]:
    """Return the names of the values that only inputs provide to an atom, by node."""
    items: Sequence[Any] = plan.items
    return {
        node: tuple(
            [
                name
                for name, provider in providers.items()
                if provider is None and name not in (items[node].inject or ())
            ]
        )
        for node, providers in plan.firsts.items()
        if None in providers.values()
    }


def _links(plan: plan_module.Plan) -> list[tuple[int, int]]:
    kinds, end = plan.kinds, plan_module.FLOW_END
    return [
        (node, after)
        for node, (kind, afters) in enumerate(zip(kinds, plan.succ, strict=True))
        if kind not in _START_KINDS
        for after in afters
        if kinds[after] != end
    ]


def _describe(kind: int, item: Any) -> tuple[str, str | None, str | None, bool]:
    """Return kind, code and signal of a node, and whether its reversion has an effect."""
    if kind == plan_module.FLOW:
        return outline_module.FLOW, None, None, False
    name = functors.code_of(item.inner if isinstance(item, task.Map) else item)
    if kind == plan_module.RETRY:
        return outline_module.RETRY, name, None, False
    signal = item.signal if isinstance(item, task.WaitFor) else None
    if item.runs_steps:
        signal = outline_module.ANY_SIGNAL
    kind_name = outline_module.MAP if item.fans_out else outline_module.TASK
    return kind_name, name, signal, functors.has_revert(item)


def _notes(plan: plan_module.Plan) -> dict[int, str]:
    by_node: dict[int, list[str]] = {}
    for node, rule in plan.joins.items():
        if rule is not deciders.Join.ALL:
            by_node.setdefault(node, []).append(f"join {rule}")
    for node, edges in plan.deciders.items():
        for edge in edges:
            end = plan.shown_name(plan._begin[edge.end])
            depth = "" if edge.depth is deciders.Depth.ALL else f", depth {edge.depth}"
            by_node.setdefault(node, []).append(
                f"after {end!r} if {_decider_name(edge.decider)}{depth}"
            )
    for node in plan.retried:
        retried: Any = plan.items[node + 2]
        by_node.setdefault(node, []).append(_retries_text(retried.retries, retried.retry_for))
    return {node: "; ".join(texts) for node, texts in by_node.items()}


def _retries_text(retries: int | None, retry_for: float | str | None) -> str:
    number = "retries" if retries is None else "1 retry" if retries == 1 else f"{retries} retries"
    if retry_for is None:
        return number
    return f"{number} for {retry_for if isinstance(retry_for, str) else f'{retry_for:g}s'}"


def _decider_name(decider: Callable[..., Any]) -> str:
    name = getattr(decider, "__qualname__", None)
    return (
        name.rpartition(".")[2]
        if isinstance(name, str)
        else reprlib.repr(decider)[:_MAX_DECIDER_LENGTH]
    )
