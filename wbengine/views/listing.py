"""Lists of flows page by page, and what can be said of a huge one at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions
from wbengine import states as st
from wbengine.persistence import base, listing, owners
from wbengine.persistence.listing import FlowRow
from wbengine.types import outline as outlines
from wbengine.views import flow, formatting, redaction
from wbengine.views.redaction import Redactor

__all__ = [
    "FlowSummary",
    "ListingView",
    "PARTS",
    "Part",
    "RowView",
    "SCHEMA",
    "page",
    "row_of",
    "size",
    "summary",
]

SCHEMA: Final = "wbengine/flows/1"


@dataclass(frozen=True, slots=True)
class RowView:
    """A flow in a list.

    `owner` says who runs it, in words (None: nobody), `owner_short` in two of them; `owner_died`:
    and is certainly dead.
    `created` and `updated` are unix seconds, `progress` is from 0 to 1, `error` one line.
    """

    uuid: str
    name: str
    book_uuid: str
    book_name: str
    state: str
    created: float | None
    updated: float | None
    counts: Mapping[str, int]
    total: int
    progress: float
    owner: str | None
    owner_short: str | None
    owner_died: bool
    error: str | None
    tags: Mapping[str, str]

    @property
    def shown_state(self) -> str:
        """Its state; INTERRUPTED where it was run by an engine that is gone."""
        return flow.shown_state(self.state, self.owner, self.owner_died)

    def to_dict(self) -> dict[str, Any]:
        left_out = ("book_uuid", "book_name", "owner_short")
        return {
            **formatting.as_dict(self, without=left_out),
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "interrupted": self.shown_state == flow.INTERRUPTED,
        }


@dataclass(frozen=True, slots=True)
class ListingView:
    """A page of flows; `after` is where the next page begins (None: there is none)."""

    flows: tuple[RowView, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **formatting.as_dict(self)}


def page(
    connection: base.Connection,
    *,
    states: Collection[str] | None = None,
    name: str | None = None,
    since: float | None = None,
    book: str | None = None,
    uuid: str | None = None,
    newest_first: bool = True,
    limit: int = listing.LIMIT,
    after: str | None = None,
    text: str | None = None,
    tags: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
) -> ListingView:
    """A page of the flows that are kept; what the filters mean says `Connection.list_flows`.

    :raises ValueError: there is no such state, or `limit` or `after` make no sense.
    """
    found = connection.list_flows(
        states=states,
        name=name,
        since=since,
        book=book,
        uuid=uuid,
        newest_first=newest_first,
        limit=limit,
        after=after,
        text=text,
        tags=tags,
    )
    redactor = redactor or Redactor()
    rows = [row_of(row, redaction.redactor_for(connection, row, redactor)) for row in found.flows]
    return ListingView(tuple(rows), found.after)


def row_of(row: listing.FlowRow, redactor: Redactor) -> RowView:
    """A line of a list; `redactor` knows the secrets of the flow."""
    total = sum(row.counts.values())
    done = row.counts.get(st.SUCCESS, 0) + row.counts.get(st.IGNORE, 0)
    return RowView(
        uuid=row.uuid,
        name=redactor.text(row.name),
        book_uuid=row.book_uuid,
        book_name=redactor.text(row.book_name),
        state=row.state,
        created=row.created,
        updated=row.updated,
        counts=row.counts,
        total=total,
        progress=1.0 if row.state == st.SUCCESS else done / total if total else 0.0,
        owner=None if row.lease is None else redactor.text(owners.in_words(row.lease)),
        owner_short=None if row.lease is None else redactor.text(formatting.owner(row.lease)),
        owner_died=row.lease is not None and owners.died(row.lease),
        error=redaction.error_line(row, redactor),
        tags=redaction.tags(row.tags, redactor),
    )


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
class FlowSummary:
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


def summary(
    connection: base.Connection, uuid: str, redactor: Redactor | None = None
) -> FlowSummary:
    """Read a line of a list, the outline, and one record.

    :raises NotFound: the flow is not kept.
    """
    redactor = redactor or Redactor()
    row = _row(connection, uuid)
    knowing = redaction.redactor_for(connection, row, redactor)
    parts, among = _parts(connection.get_outline(uuid), knowing)
    return FlowSummary(row_of(row, knowing), parts, among)


def _row(connection: base.Connection, uuid: str) -> FlowRow:
    for row in connection.list_flows(uuid=uuid, limit=1).flows:
        return row
    raise exceptions.NotFound(f"there is no flow {uuid}")


def _parts(outline: outlines.Outline | None, redactor: Redactor) -> tuple[tuple[Part, ...], int]:
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
        Part(number, redactor.text(nodes[number].name), nodes[number].kind, sizes[number])
        for number in list(sizes)[:PARTS]
    ]
    return tuple(shown), len(sizes)
