"""Rows of the table of a flow's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.drawing import _step_rows
from wbengine.views import _atoms
from wbengine.views import flow_status as flows
from wbengine.views._atoms import QUEUED
from wbengine.views._structure import NodeView

__all__ = ["SORT_KEYS", "MAX_ROWS", "SORT_LABELS", "Row", "Selection", "Table", "selected", "table"]

#: Maximum number of rows. Sub-flows beyond it are closed: each is one row.
MAX_ROWS: Final = 1200
#: Maximum number of rows for the steps of all workflows of a page, if there are fewer workflows.
MAX_STEP_ROWS: Final = 200
_MAX_INDENT: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """An atom or a flow.

    :ivar closed: whether the rows of the flow's contents are hidden.
    :ivar steps: rows for the steps of a workflow; the latest ones.
    """

    depth: int
    node: NodeView
    closed: bool = False
    steps: Sequence[_step_rows.Row] = ()

    @property
    def atom(self) -> _atoms.AtomView | None:
        return self.node.atom

    @property
    def indent(self) -> int:
        return min(self.depth, _MAX_INDENT)

    @property
    def step_indent(self) -> int:
        return min(self.depth + 1, _MAX_INDENT)


@dataclass(frozen=True, slots=True)
class Table:
    """A page of rows; `path` are the enclosing flows, outermost first.

    The innermost flow has `total` children. The page shows those from `start` to `end`.
    """

    rows: Sequence[Row]
    path: Sequence[NodeView]
    start: int
    end: int
    total: int

    @property
    def before(self) -> int | None:
        """The start of the previous page, or None."""
        return max(0, self.start - MAX_ROWS) if self.start else None

    @property
    def after(self) -> int | None:
        """The start of the next page, or None."""
        return self.end if self.end < self.total else None


#: Sort orders in the URL, and their keys.
SORT_KEYS: Final[Mapping[str, Callable[[_atoms.AtomView], Any]]] = {
    "name": lambda atom: atom.name,
    "state": lambda atom: atom.shown_state,
    "executions": lambda atom: atom.executions,
    "worker": lambda atom: atom.worker,
    "began": lambda atom: atom.execution_start,
    "took": lambda atom: atom.execution_runtime,
}

SORT_LABELS: Final[Mapping[str, str]] = {
    "name": "by name",
    "-name": "by name, Z to A",
    "state": "by state",
    "-state": "by state, Z to A",
    "worker": "by worker",
    "-worker": "by worker, Z to A",
    "-executions": "most executions first",
    "executions": "fewest executions first",
    "began": "earliest start first",
    "-began": "latest start first",
    "-took": "longest first",
    "took": "shortest first",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter and order of tasks.

    `sort` is empty (the order of the flow) or one of `SORT_KEYS`, with a minus for descending.

    :raises ValueError: if the state or the order is unknown.
    """

    state: str = ""
    name: str = ""
    sort: str = ""

    def __post_init__(self) -> None:
        if self.state:
            known_states = (*states.ATOM_STATES, QUEUED, states.WAITING)
            states.check_known("state of a task", self.state, known_states)
        if self.sort and self.sort.removeprefix("-") not in SORT_KEYS:
            raise ValueError(f"sort must be one of {', '.join(SORT_KEYS)}, got {self.sort!r:.40}")

    def __bool__(self) -> bool:
        return bool(self.state or self.name or self.sort)

    def filter(self, candidates: Iterable[_atoms.AtomView]) -> list[_atoms.AtomView]:
        """Return the selected atoms, sorted. Atoms without a value are last."""
        name_part = self.name.casefold()
        matching = [
            atom
            for atom in candidates
            if self.state in ("", atom.shown_state) and name_part in atom.name.casefold()
        ]
        if not self.sort:
            return matching
        key = SORT_KEYS[self.sort.removeprefix("-")]
        sortable = [atom for atom in matching if key(atom) is not None]
        sortable.sort(key=key, reverse=self.sort.startswith("-"))
        return sortable + [atom for atom in matching if key(atom) is None]

    def query(self, **changes: object) -> dict[str, object]:
        """Return the parameters for the URL, with some `changes`."""
        return {"state": self.state, "name": self.name, "sort": self.sort, **changes}

    def toggled(self, order: str) -> str:
        """Return the order after a click on a column header."""
        return f"-{order}" if self.sort == order else order


def table(view: flows.FlowView, under: int = 0, start: int = 0) -> Table:
    """Return the children of the flow at node `under`, from number `start`.

    Sub-flows are opened in order until `MAX_ROWS` is reached.

    :raises NotFound: if there is no such flow or child.
    """
    path = _path(view, under)
    parent = path[-1]
    # The outermost node is an atom if an engine runs a single task or workflow.
    parts = parent.children if parent.atom is None else [parent]
    total = len(parts)
    if start and not 0 <= start < total:
        raise exceptions.NotFound(
            f"start must be below {total}, the number of parts of flow {parent.name!r}"
        )
    children = parts[start : start + MAX_ROWS]
    room = MAX_ROWS - len(children)
    rows: list[Row] = []
    for child in children:
        size = sum(child.counts.values())  # An upper bound of the number of rows.
        is_open = size <= room
        room -= size if is_open else 0
        rows += _rows(child, 0) if is_open else [Row(0, child, closed=True)]
    return Table(_with_steps(rows), path, start, start + len(children), total)


def selected(view: flows.FlowView, selection: Selection, start: int = 0) -> Table:
    """Return the selected tasks of the whole flow, from number `start`.

    :raises NotFound: if there are not so many.
    """
    matching = selection.filter(view.atoms)
    if start and start >= len(matching):
        raise exceptions.NotFound(
            f"start must be below {len(matching)}, the number of selected tasks"
        )
    page = matching[start : start + MAX_ROWS]
    rows = [Row(0, NodeView(a.node, a.name, a.kind, a.state, {}, {}, a)) for a in page]
    return Table(_with_steps(rows), [view.tree], start, start + len(page), len(matching))


def _path(view: flows.FlowView, wanted_node: int) -> list[NodeView]:
    nodes = view.outline.nodes
    numbers: list[int] = []
    number = wanted_node if wanted_node < len(nodes) else None
    while number:
        numbers.append(number)
        number = nodes[number].parent
    path = [view.tree]
    for number in reversed(numbers):
        path += [child for child in path[-1].children if child.node == number]
    if path[-1].node != wanted_node or (wanted_node and path[-1].kind != "flow"):
        raise exceptions.NotFound(f"node {wanted_node} is not a flow")
    return path


def _rows(node: NodeView, depth: int) -> Iterator[Row]:
    stack = [(depth, node)]
    while stack:
        depth, current = stack.pop()
        yield Row(depth, current)
        stack += [(depth + 1, child) for child in reversed(current.children)]


def _with_steps(rows: Sequence[Row]) -> Sequence[Row]:
    workflow_count = sum(row.atom is not None and row.atom.steps is not None for row in rows)
    if not workflow_count:
        return rows
    limit = max(MAX_STEP_ROWS // workflow_count, 2)
    return [
        row
        if row.atom is None or row.atom.steps is None
        else dataclasses.replace(row, steps=_step_rows.rows(row.atom.steps, limit))
        for row in rows
    ]
