"""What can be said of a huge flow at once: what a list says of it, and what it consists of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from wbengine import exceptions
from wbengine.persistence import base
from wbengine.persistence.listing import FlowRow
from wbengine.types import outline as outlines
from wbengine.views import acquainted, listing
from wbengine.views.listing import RowView
from wbengine.views.masking import Masker

__all__ = ["PARTS", "Glimpse", "Part", "read", "size"]

#: So many parts are told one by one.
PARTS: Final = 200


@dataclass(frozen=True, slots=True)
class Part:
    """What is directly in a flow: another one of so many tasks, or a task."""

    node: int
    name: str
    kind: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A flow of which no task was read; `among` is how many parts there are, of `parts` the first.

    How they are is not known yet, only how many tasks of the whole are in which state.
    """

    row: RowView
    parts: tuple[Part, ...]
    among: int


def size(connection: base.Connection, uuid: str) -> int:
    """How many tasks a flow has.

    :raises NotFound: the flow is not kept.
    """
    return sum(_row(connection, uuid).counts.values())


def read(connection: base.Connection, uuid: str, masker: Masker | None = None) -> Glimpse:
    """Read a line of a list, the outline, and one record.

    :raises NotFound: the flow is not kept.
    """
    masker = masker or Masker()
    row = _row(connection, uuid)
    knowing = acquainted.masker_of(connection, row, masker)
    parts, among = _parts(connection.get_outline(uuid), knowing)
    return Glimpse(listing.row_of(row, knowing), parts, among)


def _row(connection: base.Connection, uuid: str) -> FlowRow:
    for row in connection.list_flows(uuid=uuid, limit=1).flows:
        return row
    raise exceptions.NotFound(f"there is no flow {uuid}")


def _parts(outline: outlines.Outline | None, masker: Masker) -> tuple[tuple[Part, ...], int]:
    if outline is None:
        return (), 0
    nodes = outline.nodes
    # What is inside comes behind what it is in.
    top = [0] * len(nodes)
    sizes: Counter[int] = Counter()
    for number, node in enumerate(nodes):
        if node.parent is not None:
            top[number] = number if node.parent == 0 else top[node.parent]
            sizes[top[number]] += node.kind not in (outlines.FLOW, outlines.RETRY)
    shown = [
        Part(number, masker.text(nodes[number].name), nodes[number].kind, sizes[number])
        for number in list(sizes)[:PARTS]
    ]
    return tuple(shown), len(sizes)
