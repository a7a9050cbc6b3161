"""networkx graphs with the additional methods of TaskFlow.

Importing this module imports networkx, which running a flow does not need.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import networkx as nx

if TYPE_CHECKING:
    _Graph = nx.Graph[Any]
    _DiGraph = nx.DiGraph[Any]
else:
    _Graph = nx.Graph
    _DiGraph = nx.DiGraph


class Graph(_Graph):
    """An undirected graph with TaskFlow's methods."""

    def __init__(self, incoming_graph_data: Any = None, name: str = "") -> None:
        super().__init__(incoming_graph_data, name=name)
        self.frozen = False

    # TaskFlow's names and order of parameters, which differ from networkx.
    def add_node(  # type: ignore[override]
        self, n: Hashable, attr_dict: Mapping[str, Any] | None = None, **attr: Any
    ) -> None:
        """Add a node, or update its attributes. `attr_dict` replaces keyword attributes."""
        super().add_node(n, **(attr if attr_dict is None else attr_dict))

    def add_edge(  # type: ignore[override]
        self, u: Hashable, v: Hashable, attr_dict: Mapping[str, Any] | None = None, **attr: Any
    ) -> None:
        """Add an edge, or update its attributes. `attr_dict` replaces keyword attributes."""
        super().add_edge(u, v, **(attr if attr_dict is None else attr_dict))

    def freeze(self) -> Any:
        """Make the graph immutable, and return it."""
        return self if self.frozen else nx.freeze(self)

    def pformat(self) -> str:
        """Return a text that describes the graph."""
        return os.linesep.join(_described(self, "<->"))

    def export_to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz."""
        return _dot(self)

    def fresh_copy(self) -> Self:
        """Return an empty graph of the same class."""
        return type(self)()


class DiGraph(Graph, _DiGraph):
    """A directed graph."""

    def pformat(self) -> str:
        """Return a text that describes the graph, including cycles."""
        lines = _described(self, "->")
        cycles = list(nx.simple_cycles(self)) if not self.is_directed_acyclic() else []
        lines.append(f"Cycles: {len(cycles)}")
        lines.extend("  " + " --> ".join(map(str, [*cycle, cycle[0]])) for cycle in cycles)
        return os.linesep.join(lines)

    def topological_sort(self) -> Iterator[Any]:
        return iter(nx.topological_sort(self))

    def is_directed_acyclic(self) -> bool:
        return bool(nx.is_directed_acyclic_graph(self))

    def no_successors_iter(self) -> Iterator[Any]:
        """Iterate over the nodes without successors."""
        return (node for node, degree in self.out_degree() if not degree)

    def no_predecessors_iter(self) -> Iterator[Any]:
        """Iterate over the nodes without predecessors."""
        return (node for node, degree in self.in_degree() if not degree)

    def bfs_predecessors_iter(self, n: Hashable) -> Iterator[Any]:
        """Iterate over all ancestors of a node, nearest first, each once."""
        seen = {n}
        queue = deque([n])
        while queue:
            for node in self.predecessors(queue.popleft()):
                if node not in seen:
                    seen.add(node)
                    queue.append(node)
                    yield node


class OrderedGraph(Graph):
    """Equivalent to `Graph`: all graphs preserve the order of insertion."""


class OrderedDiGraph(DiGraph):
    """Equivalent to `DiGraph`: all graphs preserve the order of insertion."""


def merge_graphs(
    graph: Any,
    *graphs: Any,
    allow_overlaps: bool = False,
    overlap_detector: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Return a graph with all nodes and edges, and the name of the first graph.

    :param overlap_detector: called with the merged graph and the next graph; returns the number of
        common nodes. Not called if overlaps are allowed.
    :raises ValueError: if graphs overlap, or the detector is not callable.
    """
    if overlap_detector is not None and not callable(overlap_detector):
        raise ValueError(f"Overlap detector must be callable, got {overlap_detector!r}")
    detect = overlap_detector if overlap_detector is not None else _common_nodes
    merged = graph
    for other in graphs:
        if not allow_overlaps and (count := detect(merged, other)):
            raise ValueError(f"Cannot merge graph {other} into {merged}: they share {count} nodes")
        merged = nx.compose(merged, other)
    if graphs:
        merged.name = graph.name
    return merged


def _common_nodes(one: Any, other: Any) -> int:
    return sum(1 for node in other if node in one)


def _described(graph: Any, arrow: str) -> list[str]:
    def line(text: str, data: Any) -> str:
        return f"{text} ({data})" if data else text

    return [
        f"Name: {graph.name}",
        f"Type: {type(graph).__name__}",
        f"Frozen: {nx.is_frozen(graph)}",
        f"Density: {nx.density(graph):0.3f}",
        f"Nodes: {graph.number_of_nodes()}",
        *(line(f"  - {node}", data) for node, data in graph.nodes(data=True)),
        f"Edges: {graph.number_of_edges()}",
        *(line(f"  {u} {arrow} {v}", data) for u, v, data in graph.edges(data=True)),
    ]


def _dot(graph: Any) -> str:
    kind, arrow = ("digraph", "->") if graph.is_directed() else ("graph", "--")
    # Different nodes may have the same text.
    names = {node: f"n{number}" for number, node in enumerate(graph)}
    lines = [
        f"{kind} {_quoted(graph.name)} {{",
        *(
            f"  {names[node]} [{_attributes({'label': node, **data})}];"
            for node, data in graph.nodes(data=True)
        ),
        *(
            f"  {names[u]} {arrow} {names[v]}" + (f" [{_attributes(data)}];" if data else ";")
            for u, v, data in graph.edges(data=True)
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _attributes(data: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_quoted(value)}" for key, value in data.items())


def _quoted(value: Any) -> str:
    text = ", ".join(sorted(map(str, value))) if isinstance(value, set) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
