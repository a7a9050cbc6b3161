"""The rows of a flow's table: what is inside what, as far as it fits on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.views import atoms
from wbengine.views import flow as flows
from wbengine.views.flow import QUEUED
from wbengine.views.structure import NodeView

__all__ = ["ORDERS", "ROWS", "SORTS", "Row", "Selection", "Table", "selected", "table"]

#: More rows than this are told by whole sub-flows, or on several pages.
ROWS: Final = 1200


@dataclass(frozen=True, slots=True)
class Row:
    """A flow, with or without what is in it, or an atom; `closed`: what is in it has no rows."""

    depth: int
    node: NodeView
    closed: bool = False

    @property
    def atom(self) -> atoms.AtomView | None:
        return self.node.atom

    @property
    def indent(self) -> int:
        return min(self.depth, 6)


@dataclass(frozen=True, slots=True)
class Table:
    """A page of rows; `around` are the flows around them, the outermost first.

    `start` and `end` count what is directly in the innermost of them, of `among` in all.
    """

    rows: Sequence[Row]
    around: Sequence[NodeView]
    start: int
    end: int
    among: int

    @property
    def before(self) -> int | None:
        """Where the page before begins."""
        return max(0, self.start - ROWS) if self.start else None

    @property
    def after(self) -> int | None:
        """Where the next page begins."""
        return self.end if self.end < self.among else None


#: What a table can be sorted by: the word of the address, and the value of a task.
ORDERS: Final[Mapping[str, Callable[[atoms.AtomView], Any]]] = {
    "name": lambda atom: atom.name,
    "state": lambda atom: atom.state,
    "executions": lambda atom: atom.executions,
    "worker": lambda atom: atom.worker,
    "began": lambda atom: atom.started,
    "took": lambda atom: atom.runtime,
}

#: The orders that a form offers: the word of the address, and what is read.
SORTS: Final[Mapping[str, str]] = {
    "name": "by name",
    "-name": "by name, Z to A",
    "state": "by state",
    "-state": "by state, Z to A",
    "worker": "by worker",
    "-worker": "by worker, Z to A",
    "-executions": "most executions first",
    "executions": "fewest executions first",
    "began": "first begun first",
    "-began": "last begun first",
    "-took": "longest first",
    "took": "shortest first",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tasks are wanted, in which order: that of the plan, or by one of `ORDERS`, the other
    way round with a minus before it.

    :raises ValueError: there is no such state, or no such order.
    """

    state: str = ""
    name: str = ""
    sort: str = ""

    def __post_init__(self) -> None:
        if self.state:
            known = (*states.ATOM_STATES, QUEUED)
            states.check_known("state of a task", self.state, known)
        if self.sort and self.sort.removeprefix("-") not in ORDERS:
            raise ValueError(f"sort={self.sort!r:.40} is none of {', '.join(ORDERS)}")

    def __bool__(self) -> bool:
        return bool(self.state or self.name or self.sort)

    def among(self, found: Iterable[atoms.AtomView]) -> list[atoms.AtomView]:
        """Those of them that are wanted.  What has no value to sort by comes last."""
        wanted = self.name.casefold()
        chosen = [
            atom
            for atom in found
            if self.state in ("", QUEUED if atom.queued else atom.state)
            and wanted in atom.name.casefold()
        ]
        if not self.sort:
            return chosen
        key = ORDERS[self.sort.removeprefix("-")]
        known = [atom for atom in chosen if key(atom) is not None]
        known.sort(key=key, reverse=self.sort.startswith("-"))
        return known + [atom for atom in chosen if key(atom) is None]

    def query(self, **changes: object) -> dict[str, object]:
        """What the address says of it, with some `changes`."""
        return {"state": self.state, "name": self.name, "sort": self.sort, **changes}

    def turned(self, order: str) -> str:
        """`sort` of the address that a click on a column leads to."""
        return f"-{order}" if self.sort == order else order


def table(view: flows.FlowView, under: int = 0, start: int = 0) -> Table:
    """What is in the flow at a node, from its child number `start` on.

    Sub-flows are opened, from the first on, as long as there is room.

    :raises NotFound: there is no such flow in it, or no such child.
    """
    around = _path(view, under)
    parent = around[-1]
    among = len(parent.children)
    if start and not 0 <= start < among:
        raise exceptions.NotFound(f"flow {parent.name!r} has {among} parts")
    shown = parent.children[start : start + ROWS]
    room = ROWS - len(shown)
    rows: list[Row] = []
    for child in shown:
        size = sum(child.counts.values())  # a row each, and some for flows
        is_open = size <= room
        room -= size if is_open else 0
        rows += _rows(child, 0) if is_open else [Row(0, child, closed=True)]
    return Table(rows, around, start, start + len(shown), among)


def selected(view: flows.FlowView, wanted: Selection, start: int = 0) -> Table:
    """The tasks that are `wanted`, wherever they are, from number `start` on.

    :raises NotFound: there are not so many.
    """
    found = wanted.among(view.atoms)
    if start and start >= len(found):
        raise exceptions.NotFound(f"there are {len(found)} such tasks")
    shown = found[start : start + ROWS]
    rows = [Row(0, NodeView(a.node, a.name, a.kind, a.state, {}, {}, a)) for a in shown]
    return Table(rows, [view.tree], start, start + len(shown), len(found))


def _path(view: flows.FlowView, wanted: int) -> list[NodeView]:
    """The flows from the outermost to the one at a node."""
    nodes = view.outline.nodes
    numbers: list[int] = []
    number = wanted if wanted < len(nodes) else None
    while number:
        numbers.append(number)
        number = nodes[number].parent
    path = [view.tree]
    for number in reversed(numbers):
        path += [child for child in path[-1].children if child.node == number]
    if path[-1].node != wanted or path[-1].kind != "flow":
        raise exceptions.NotFound(f"there is no flow at node {wanted}")
    return path


def _rows(node: NodeView, depth: int) -> Iterator[Row]:
    waiting = [(depth, node)]
    while waiting:
        depth, found = waiting.pop()
        yield Row(depth, found)
        waiting += [(depth + 1, child) for child in reversed(found.children)]
