"""A compiled flow, as users look at it.

The engine runs the `plan`.  The graphs are views for drawing, exporting and testing; they are made
when first asked for, and nothing that runs ever reads them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine._core import plan as plan_module

if TYPE_CHECKING:
    # Imported where it is used: running a flow does not need it.
    import networkx as nx

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

    def __init__(self, plan: plan_module.Plan) -> None:
        self.plan = plan

    @cached_property
    def nodes(self) -> list[Any]:
        """The objects that stand for the plan's nodes in the graphs."""
        plan = self.plan
        return [
            Terminator(item, name) if kind == plan_module.FLOW_END else item
            for kind, item, name in zip(plan.kinds, plan.items, plan.names, strict=True)
        ]

    @cached_property
    def execution_graph(self) -> nx.DiGraph[Any]:
        """What waits for what.

        Nodes are atoms, flows (where they begin) and `Terminator`s (where they end), with the
        attributes `kind`, `noop` (nothing runs there) and, inside a retry's flow, `retry`.  Edges
        from a link with a decider carry `decider` and `decider_depth`.
        """
        import networkx as nx

        plan, nodes = self.plan, self.nodes
        graph: nx.DiGraph[Any] = nx.DiGraph(name=plan.names[0])
        for number, node in enumerate(nodes):
            attributes: dict[str, Any] = {
                "kind": _KINDS[plan.kinds[number]],
                "noop": not plan.is_atom(number),
            }
            if plan.controller[number] >= 0:
                attributes["retry"] = nodes[plan.controller[number]]
            graph.add_node(node, **attributes)
        for number, node in enumerate(nodes):
            graph.add_edges_from((node, nodes[after]) for after in plan.succ[number])
        for target, edges in plan.deciders.items():
            for edge in edges:
                if edge.source >= 0:
                    graph.add_edge(
                        nodes[edge.source],
                        nodes[target],
                        decider=edge.decider,
                        decider_depth=edge.depth,
                    )
        return graph

    @cached_property
    def hierarchy(self) -> nx.DiGraph[Any]:
        """What is part of what: a tree from the outermost flow to the atoms."""
        import networkx as nx

        plan, nodes = self.plan, self.nodes
        tree: nx.DiGraph[Any] = nx.DiGraph(name=plan.names[0])
        for number, node in enumerate(nodes):
            if plan.kinds[number] == plan_module.FLOW_END:
                continue
            tree.add_node(node, kind=_KINDS[plan.kinds[number]])
            if plan.parent[number] >= 0:
                tree.add_edge(nodes[plan.parent[number]], node)
        return tree
