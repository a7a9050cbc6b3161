"""The rows of a flow's table: what is inside what, as far as it fits on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wbengine import exceptions
from wbengine.views import atoms
from wbengine.views import flow as flows
from wbengine.views.structure import NodeView

__all__ = ["ROWS", "Row", "Table", "of_state", "table"]

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


def of_state(view: flows.FlowView, state: str, start: int = 0) -> Table:
    """All tasks in a state, wherever they are, from number `start` on.

    :raises NotFound: there are not so many.
    """
    found = [atom for atom in view.atoms if atom.state == state]
    if start and start >= len(found):
        raise exceptions.NotFound(f"{len(found)} tasks are in {state}")
    shown = found[start : start + ROWS]
    rows = [Row(0, NodeView(a.node, a.name, a.kind, a.state, Counter(), a)) for a in shown]
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
