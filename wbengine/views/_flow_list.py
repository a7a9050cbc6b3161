"""Pages of flows, and summaries of large flows."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import states as st
from wbengine.persistence import _listing, _owners, base
from wbengine.persistence._listing import FlowRow
from wbengine.persistence._pauses import TaskPause
from wbengine.types import _outline as outlines
from wbengine.types import _tags
from wbengine.views import _formatting, _shown_states, redaction
from wbengine.views._atoms import WaitView
from wbengine.views.redaction import Redactor

__all__ = [
    "FlowSummary",
    "ListingView",
    "MAX_PARTS",
    "Part",
    "RowView",
    "SCHEMA",
    "page",
    "row_of",
    "shown_state",
    "size",
    "summary",
]

SCHEMA: Final = "wbengine/flows/1"


@dataclass(frozen=True, slots=True)
class RowView:
    """A flow in a list.

    :ivar shown_state: the displayed state; see `shown_states.shown_state`.
    :ivar created: Unix time, like `updated`.
    :ivar progress: completed fraction, from 0.0 to 1.0.
    :ivar owner: description of the process that runs the flow, or None.
    :ivar owner_short: host and process id of the owner, or None.
    :ivar owner_died: whether the owner has certainly ended.
    :ivar error: reason of the failure in one line, or None.
    :ivar waits_for: the first 20 signals that the flow waits for, if no other task of it runs.
    :ivar will_wait_for: those that it waits for when an engine runs it again, if it is suspended or
        was interrupted.
    :ivar step_counts: number of steps by state, in the latest attempt of each workflow.
    :ivar paused_by: the pauses of task types for which the flow is parked: pattern, sender, reason.
    :ivar queue: the queue of a flow that was submitted, or None.
    :ivar parent: uuid of the parent of a child flow, or None.
    :ivar code: app and version of the code that executed the latest task or step, or None.
    """

    uuid: str
    name: str
    book_uuid: str
    book_name: str
    state: str
    shown_state: str
    created: float | None
    updated: float | None
    counts: Mapping[str, int]
    total: int
    progress: float
    owner: str | None
    owner_short: str | None
    owner_died: bool
    error: str | None
    tags: Mapping[str, redaction.TagValue]
    waits_for: tuple[WaitView, ...] = ()
    will_wait_for: tuple[WaitView, ...] = ()
    step_counts: Mapping[str, int] = field(default_factory=dict)
    paused_by: tuple[str, ...] = ()
    queue: str | None = None
    parent: str | None = None
    code: str | None = None

    @property
    def done(self) -> str:
        """The number of complete tasks and steps, such as "5 of 7 steps"."""
        return _formatting.done(self.counts, self.step_counts)

    @property
    def tag_texts(self) -> Mapping[str, str]:
        return _tags.texts_of(self.tags)

    @property
    def shown_counts(self) -> Mapping[str, int]:
        """The counts for a progress bar: those of the steps if the flow is one workflow."""
        return self.step_counts if self.step_counts and self.total == 1 else self.counts

    def to_dict(self) -> dict[str, Any]:
        omitted_fields = ("book_uuid", "book_name", "owner_short")
        return {
            **_formatting.as_dict(self, without=omitted_fields),
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "interrupted": self.shown_state == _shown_states.INTERRUPTED,
        }


@dataclass(frozen=True, slots=True)
class ListingView:
    """A page of flows. `after` is the cursor of the next page; None on the last page."""

    flows: tuple[RowView, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **_formatting.as_dict(self)}


def page(
    connection: base.Connection,
    *,
    states: Collection[str] | None = None,
    name: str | None = None,
    since: float | None = None,
    book: str | None = None,
    uuid: str | None = None,
    newest_first: bool = True,
    limit: int = _listing.LIMIT,
    after: str | None = None,
    text: str | None = None,
    tags: _tags.Selection | None = None,
    error: str | None = None,
    resent: bool = False,
    engine: str | None = None,
    queue: str | None = None,
    parent: str | None = None,
    roots: bool = False,
    code: str | None = None,
    redactor: Redactor | None = None,
) -> ListingView:
    """Return a page of flows. `Connection.list_flows` describes the filters.

    :param states: stored or displayed states (`shown_states.LISTED`).
    :raises ValueError: if a state, a tag, `limit`, `after` or `engine` is invalid.
    """
    read = functools.partial(
        connection.list_flows,
        states=None if states is None else _shown_states.stored_states(states),
        name=name,
        since=since,
        book=book,
        uuid=uuid,
        newest_first=newest_first,
        text=text,
        tags=tags,
        error=error,
        resent=resent,
        engine=engine,
        queue=queue,
        parent=parent,
        roots=roots,
        code=code,
        commanded=states is not None and _shown_states.have_command(states),
    )
    flow_page = _page(read, states, limit, after)
    redactor = redactor or Redactor()
    pauses = _pauses_of(connection, flow_page.flows)
    rows = [
        row_of(row, redaction.redactor_for(connection, row, redactor), pauses)
        for row in flow_page.flows
    ]
    return ListingView(tuple(rows), flow_page.after)


def _page(
    read: Callable[..., _listing.Page],
    states: Collection[str] | None,
    limit: int,
    after: str | None,
) -> _listing.Page:
    """Return a page of flows in one of these stored or displayed states.

    Stores do not know displayed states, so this reads pages until enough flows match.
    """
    found: list[FlowRow] = []
    while True:
        size, missing = limit, limit - len(found)
        while True:
            stored_page = read(limit=size, after=after)
            matching = [
                (number, row)
                for number, row in enumerate(stored_page.flows, 1)
                if states is None or row.state in states or shown_state(row) in states
            ]
            if len(matching) <= missing:
                break
            # The next page must start after the last flow of this page. Flows may change meanwhile.
            size = matching[missing - 1][0]
        found += [row for _, row in matching]
        after = stored_page.after
        if after is None or len(found) >= limit:
            return _listing.Page(found, after)


def _pauses_of(connection: base.Connection, rows: Iterable[FlowRow]) -> Mapping[str, TaskPause]:
    """Return the pauses in the store by pattern, if a flow is parked for one."""
    if not any(row.parked and row.paused_by for row in rows):
        return {}
    return {pause.pattern: pause for pause in connection.pauses()}


def row_of(row: FlowRow, redactor: Redactor, pauses: Mapping[str, TaskPause]) -> RowView:
    """Return the view of a row. `redactor` must mask the secrets of the flow.

    :param pauses: the pauses in the store by pattern.
    """
    total = sum(row.counts.values())
    done = row.counts.get(st.SUCCESS, 0) + row.counts.get(st.IGNORE, 0)
    paused_by = [each for each in row.paused_by if row.parked and each in pauses]
    return RowView(
        uuid=row.uuid,
        name=redactor.text(row.name),
        book_uuid=row.book_uuid,
        book_name=redactor.text(row.book_name),
        state=row.state,
        shown_state=shown_state(row),
        created=row.created,
        updated=row.updated,
        counts=row.counts,
        total=total,
        progress=1.0 if row.state == st.SUCCESS else done / total if total else 0.0,
        owner=None if row.lease is None else redactor.text(_owners.describe(row.lease)),
        owner_short=None if row.lease is None else redactor.text(_formatting.owner(row.lease)),
        owner_died=row.lease is not None and _owners.is_dead(row.lease),
        error=redaction.error_line(row, redactor),
        tags=redaction.tags(row.tags, redactor),
        waits_for=_waits(row, redactor, st.WAITING),
        will_wait_for=_waits(row, redactor, st.SUSPENDED, _shown_states.INTERRUPTED),
        step_counts=row.step_counts,
        paused_by=tuple(redactor.text(pauses[each].text) for each in paused_by),
        queue=None if row.queue is None else redactor.text(row.queue),
        parent=row.parent,
        code=None if row.code is None else redactor.text(row.code),
    )


def _waits(row: _listing.FlowRow, redactor: Redactor, *shown_in: str) -> tuple[WaitView, ...]:
    """Return the waits of a flow that is displayed in one of these states."""
    if shown_state(row) not in shown_in:
        return ()
    text = redactor.text
    return tuple(
        WaitView(text(wait.task), text(wait.signal), wait.since, wait.until, wait.number)
        for wait in row.waits_for
    )


def shown_state(row: _listing.FlowRow) -> str:
    """Return the displayed state of a flow."""
    return _shown_states.shown_state(
        row.state,
        row.lease,
        row.lease is not None and _owners.is_dead(row.lease),
        cancelled=row.cancelled,
        command=row.command,
        parked=row.parked,
        waits=bool(row.waits_for),
        blocked=row.blocked,
    )


#: Maximum number of parts in a summary.
MAX_PARTS: Final = 200


@dataclass(frozen=True, slots=True)
class Part:
    """A direct member of a flow: a task, or a nested flow with its number of tasks."""

    node: int
    name: str
    kind: str
    tasks: int


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """A flow without the states of its atoms, except for the counts in `row`.

    :ivar parts: the first direct members.
    :ivar part_count: number of all direct members.
    """

    row: RowView
    parts: tuple[Part, ...]
    part_count: int


def size(connection: base.Connection, uuid: str) -> int:
    """Return the number of tasks and steps of a flow.

    :raises NotFound: if the flow does not exist.
    """
    row = connection.get_row(uuid)
    return sum(row.counts.values()) + sum(row.step_counts.values())


def summary(
    connection: base.Connection, uuid: str, redactor: Redactor | None = None
) -> FlowSummary:
    """Return the summary of a flow.

    This reads one row, the outline and the records that `redactor_for` needs.

    :raises NotFound: if the flow does not exist.
    """
    redactor = redactor or Redactor()
    row = connection.get_row(uuid)
    flow_redactor = redaction.redactor_for(connection, row, redactor)
    parts, part_count = _parts(connection.get_outline(uuid), flow_redactor)
    pauses = _pauses_of(connection, [row])
    return FlowSummary(row_of(row, flow_redactor, pauses), parts, part_count)


def _parts(outline: outlines.Outline | None, redactor: Redactor) -> tuple[tuple[Part, ...], int]:
    if outline is None:
        return (), 0
    nodes = outline.nodes
    # In `nodes`, parents precede their members.
    top_of_node = [0] * len(nodes)
    sizes: Counter[int] = Counter()
    for number, node in enumerate(nodes):
        if node.parent is not None:
            top_of_node[number] = number if node.parent == 0 else top_of_node[node.parent]
            sizes[top_of_node[number]] += node.kind not in (outlines.FLOW, outlines.RETRY)
    shown = [
        Part(number, redactor.text(nodes[number].name), nodes[number].kind, sizes[number])
        for number in list(sizes)[:MAX_PARTS]
    ]
    return tuple(shown), len(sizes)
