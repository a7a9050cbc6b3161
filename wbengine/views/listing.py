"""Lists of flows, page by page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine import states as st
from wbengine.persistence import base, listing, owners
from wbengine.views import acquainted, flow, words
from wbengine.views.masking import Masker

__all__ = ["SCHEMA", "ListingView", "RowView", "page", "row_of"]

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

    @property
    def shown_state(self) -> str:
        """Its state; INTERRUPTED where it was run by an engine that is gone."""
        return flow.shown_state(self.state, self.owner, self.owner_died)

    def to_dict(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "state": self.state,
            "interrupted": self.shown_state == flow.INTERRUPTED,
            "created": words.iso(self.created),
            "updated": words.iso(self.updated),
            "counts": dict(self.counts),
            "total": self.total,
            "progress": self.progress,
            "owner": self.owner,
            "owner_died": self.owner_died,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class ListingView:
    """A page of flows; `after` is where the next page begins (None: there is none)."""

    flows: tuple[RowView, ...]
    after: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "flows": [row.to_dict() for row in self.flows],
            "after": self.after,
        }


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
    masker: Masker | None = None,
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
    )
    masker = masker or Masker()
    rows = [row_of(row, acquainted.masker_of(connection, row, masker)) for row in found.flows]
    return ListingView(tuple(rows), found.after)


def row_of(row: listing.FlowRow, masker: Masker) -> RowView:
    """A line of a list; `masker` knows the secrets of the flow."""
    total = sum(row.counts.values())
    done = row.counts.get(st.SUCCESS, 0) + row.counts.get(st.IGNORE, 0)
    return RowView(
        uuid=row.uuid,
        name=masker.text(row.name),
        book_uuid=row.book_uuid,
        book_name=masker.text(row.book_name),
        state=row.state,
        created=row.created,
        updated=row.updated,
        counts=row.counts,
        total=total,
        progress=1.0 if row.state == st.SUCCESS else done / total if total else 0.0,
        owner=None if row.lease is None else masker.text(owners.in_words(row.lease)),
        owner_short=None if row.lease is None else masker.text(words.owner(row.lease)),
        owner_died=row.lease is not None and owners.died(row.lease),
        error=acquainted.line(row, masker),
    )
