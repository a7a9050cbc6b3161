"""Lists of flows with their children below them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine.persistence import base
from wbengine.views import _flow_list, redaction

__all__ = ["Branch", "branches", "children_of", "lines", "shortened"]

#: Maximum number of children of a flow, and of levels, that a tree shows.
MAX_CHILDREN: Final = 20
_MAX_DEPTH: Final = 8


class Branch(NamedTuple):
    """A flow with its first children.

    :ivar counts: number of all its children by state.
    """

    row: _flow_list.RowView
    counts: Mapping[str, int]
    children: tuple[Branch, ...]

    @property
    def omitted(self) -> int:
        """Number of children that `children` does not contain."""
        return sum(self.counts.values()) - len(self.children)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.row.to_dict(),
            "children": dict(self.counts),
            "child_flows": [child.to_dict() for child in self.children],
        }


def branches(
    connection: base.Connection,
    rows: Iterable[_flow_list.RowView],
    redactor: redaction.Redactor,
    depth: int = _MAX_DEPTH,
) -> list[Branch]:
    """Return flows with their children, down to a number of levels."""
    result = []
    for row in rows:
        counts = connection.count_children(row.uuid) if depth else {}
        children = children_of(connection, row.uuid, redactor) if counts else ()
        below = branches(connection, children, redactor, depth - 1)
        result.append(Branch(row, counts, tuple(below)))
    return result


def children_of(
    connection: base.Connection, flow_uuid: str, redactor: redaction.Redactor
) -> Collection[_flow_list.RowView]:
    """Return the first children of a flow, oldest first."""
    page = _flow_list.page(
        connection, parent=flow_uuid, newest_first=False, limit=MAX_CHILDREN, redactor=redactor
    )
    return page.flows


def lines(tree: Iterable[Branch], indent: str = "") -> Iterable[tuple[str, _flow_list.RowView]]:
    """Yield the rows of a tree in order, each with the text that indents its name."""
    for branch in tree:
        yield indent, branch.row
        yield from lines(branch.children, f"{indent}  ")


def shortened(tree: Iterable[Branch]) -> Iterable[Branch]:
    """Yield the flows of a tree some of whose children are omitted."""
    for branch in tree:
        if branch.omitted:
            yield branch
        yield from shortened(branch.children)
