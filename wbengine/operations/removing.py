"""Deletion of one flow, or of all flows that ended before a given time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

from wbengine import exceptions, states
from wbengine.operations import suspend_and_cancel
from wbengine.persistence import base, owners
from wbengine.persistence.models import MADE_BY

__all__ = ["ENDED", "delete", "prune"]

ENDED: Final = (states.SUCCESS, states.REVERTED, states.FAILURE)


def delete(backend: base.Backend, uuid: str, *, force: bool = False) -> None:
    """Delete a flow with all its records; and its logbook, if it was created for this flow only.

    :param force: also if an engine runs it, which then cannot write any more.
    :raises NotFound: if the flow does not exist.
    :raises FlowBusy: if an engine runs it.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        row = next(iter(connection.list_flows(uuid=uuid, limit=1).flows), None)
        if row is None or row.uuid != uuid:
            raise exceptions.NotFound(f"Unknown flow {uuid!r}")
        if not force and row.lease is not None and not owners.is_dead(row.lease):
            raise suspend_and_cancel.busy(uuid, row.lease)
        _delete_flow(connection, row)


def prune(
    backend: base.Backend,
    *,
    before: float,
    states: Collection[str] = ENDED,
    batch: int = 100,
    dry_run: bool = False,
) -> Iterator[base.FlowRow]:
    """Delete the flows that were last written before a time (Unix seconds), and yield them.

    Flows that an engine runs are skipped.

    :param batch: number of flows that are read together.
    :param dry_run: yield the flows without deleting them.
    """
    after: str | None = None
    while True:
        with contextlib.closing(backend.get_connection()) as connection:
            page = connection.list_flows(
                states=states, newest_first=False, limit=batch, after=after
            )
            for row in page.flows:
                if not _is_old(row, before):
                    continue
                if not dry_run:
                    _delete_flow(connection, row)
                yield row
        if page.after is None or page.after == after:
            return
        after = page.after


def _is_old(row: base.FlowRow, before: float) -> bool:
    last_write = row.updated if row.updated is not None else row.created
    is_owned = row.lease is not None and not owners.is_dead(row.lease)
    return not is_owned and last_write is not None and last_write < before


def _delete_flow(connection: base.Connection, row: base.FlowRow) -> None:
    try:
        connection.destroy_flow(row.uuid)
        book = connection.get_logbook(row.book_uuid, lazy=True)
        if book.has_meta and book.meta.get(MADE_BY) and not _has_flows(connection, row.book_uuid):
            connection.destroy_logbook(row.book_uuid)
    except exceptions.NotFound:  # another process deleted it
        pass


def _has_flows(connection: base.Connection, book: str) -> bool:
    return next(iter(connection.get_flows_for_book(book, lazy=True)), None) is not None
