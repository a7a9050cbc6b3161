"""A compiled flow, as users look at it.

The engine runs the `plan`.  The graphs are views for drawing, exporting and testing; they are made
when first asked for, and nothing that runs ever reads them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import deciders, task
from wbengine import flow as flow_module
from wbengine._tasks import functors
from wbengine.permits import limits as permit_limits
from wbengine.runtime import plan as plan_module
from wbengine.types import outline as outline_module
from wbengine.types.outline import Outline, OutlineNode

if TYPE_CHECKING:
    # Imported where it is used: running a flow needs no networkx.
    from wbengine.engines import hierarchy as hierarchies
    from wbengine.types import graph as graphs

__all__ = ["FLOW", "FLOW_END", "RETRY", "TASK", "Compilation", "Terminator"]

# The values of the node attribute `kind`.
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

#: The longest name of a decider in an outline.
_LONGEST: Final = 60
NO_LIMITS: Final[Mapping[int, permit_limits.Limit]] = {}
_BEGINNINGS: Final = frozenset({plan_module.FLOW, plan_module.RETRY})


class Terminator:
    """The node in the execution graph where `flow` ends; its name is the flow's with `[$]`."""

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

    def __init__(
        self, plan: plan_module.Plan, limits: Mapping[int, permit_limits.Limit] = NO_LIMITS
    ) -> None:
        self.plan = plan
        #: Those of its tasks, by node.
        self.limits = limits

    @cached_property
    def nodes(self) -> list[Any]:
        """The objects that stand for the plan's nodes in the graphs."""
        plan = self.plan
        return [
            Terminator(item, name) if kind == plan_module.FLOW_END else item
            for kind, item, name in zip(plan.kinds, plan.items, plan.names, strict=True)
        ]

    @cached_property
    def execution_graph(self) -> graphs.DiGraph:
        """What waits for what.

        Nodes are atoms, flows (where they begin) and `Terminator`s (where they end), with the
        attributes `kind`, `noop` (nothing runs there), inside a retry's flow `retry`, and `join`
        for a join rule other than ALL.  Edges carry what is known of the link they stand for:
        `manual`, `reasons`, `decider` and `decider_depth`; those that every flow of the kind has
        are `invariant`, and from a retry `retry`.
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
            if data is not None:  # a flow may have been changed since
                data.clear()
                data.update(meta)
        return graph

    def _links(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """What the flows say of the links between their members, by the nodes that stand for them.

        A member's node is where it begins, and for what comes after it where it ends.
        """
        plan = self.plan
        begins = {id(item): node for node, item in reversed(list(enumerate(plan.items)))}
        # A task with retries stands where the flow does that was made for it.
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
        """The structure as plain data, which can be drawn elsewhere, and later, without the code.

        Made anew each time: O(size of the flow).  Engines with a backend keep it with the flow's
        records (`Connection.get_outline`).
        """
        return _outline_of(self.plan, self.limits)

    @cached_property
    def hierarchy(self) -> hierarchies.Hierarchy:
        """What is part of what: a tree from the outermost flow to the atoms."""
        from wbengine.engines import hierarchy as hierarchies
        from wbengine.types import tree

        plan, nodes = self.plan, self.nodes
        found = hierarchies.Hierarchy(name=plan.names[0])
        branches: dict[int, tree.Node] = {}
        for number, node in enumerate(nodes):
            if plan.kinds[number] == plan_module.FLOW_END:
                continue
            kind, parent = _KINDS[plan.kinds[number]], plan.parent[number]
            found.add_node(node, kind=kind)
            branches[number] = tree.Node(node, kind=kind)
            if parent >= 0:
                found.add_edge(nodes[parent], node)
                branches[parent].add(branches[number])
        found.root = branches[0]
        return found


def _outline_of(plan: plan_module.Plan, limits: Mapping[int, permit_limits.Limit]) -> Outline:
    """Everything that is in a plan.

    Links between flows are between the flows themselves, and not between where one ends and the
    other begins.
    """
    notes = _notes(plan)
    places: list[int] = []
    found: list[tuple[Any, ...]] = []
    known: dict[type, tuple[str, str | None, str | None]] = {}
    columns = zip(plan.kinds, plan.items, plan.names, plan.parent, strict=True)
    end = plan_module.FLOW_END
    for node, (kind, item, name, parent) in enumerate(columns):
        if kind == end:
            places.append(places[plan._begin[node]])
            continue
        told = known.get(type(item))
        if told is None:
            told = _told(kind, item)
            if not isinstance(item, task.FunctorTask | task.WaitFor):
                known[type(item)] = told
        places.append(len(found))
        within = places[parent] if parent >= 0 else None
        found.append((name, told[0], within, told[1], notes.get(node), told[2]))
    for node, limit in limits.items():
        found[places[node]] = (*found[places[node]], limit.quota.label)
    edges = [(places[before], places[after]) for before, after in _links(plan)]
    return Outline(tuple([OutlineNode(*told) for told in found]), tuple(edges))


def _links(plan: plan_module.Plan) -> list[tuple[int, int]]:
    """What comes after what; not what every flow has: from where it begins to what is inside."""
    kinds, end = plan.kinds, plan_module.FLOW_END
    return [
        (node, after)
        for node, (kind, afters) in enumerate(zip(kinds, plan.succ, strict=True))
        if kind not in _BEGINNINGS
        for after in afters
        if kinds[after] != end
    ]


def _told(kind: int, item: Any) -> tuple[str, str | None, str | None]:
    """The kind of a node, the function or class that an atom is made of, and the signal that a task
    waits for.
    """
    if kind == plan_module.FLOW:
        return outline_module.FLOW, None, None
    name = functors.code_of(item)
    if kind == plan_module.RETRY:
        return outline_module.RETRY, name, None
    signal = item.signal if isinstance(item, task.WaitFor) else None
    return outline_module.MAP if item.fans_out else outline_module.TASK, name, signal


def _notes(plan: plan_module.Plan) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for node, rule in plan.joins.items():
        if rule is not deciders.Join.ALL:
            found.setdefault(node, []).append(f"join {rule}")
    for node, edges in plan.deciders.items():
        for edge in edges:
            end = plan.names[edge.end].removesuffix(plan_module.END_SUFFIX)
            depth = "" if edge.depth is deciders.Depth.ALL else f", depth {edge.depth}"
            found.setdefault(node, []).append(f"after {end!r} if {_called(edge.decider)}{depth}")
    return {node: "; ".join(told) for node, told in found.items()}


def _called(decider: Callable[..., Any]) -> str:
    name = getattr(decider, "__qualname__", None)
    return name.rpartition(".")[2] if isinstance(name, str) else reprlib.repr(decider)[:_LONGEST]
