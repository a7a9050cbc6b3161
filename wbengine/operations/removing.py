"""Forgetting flows: one, or all that ended long ago."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

from wbengine import exceptions, states
from wbengine.operations import commands
from wbengine.persistence import base, owners
from wbengine.persistence.models import MADE_BY

__all__ = ["ENDED", "delete", "prune"]

#: States of flows that nobody goes on with.
ENDED: Final = (states.SUCCESS, states.REVERTED, states.FAILURE)


def delete(backend: base.Backend, uuid: str, *, force: bool = False) -> None:
    """Forget a flow, with all that is in it; and its book, if that was made for it alone.

    :param force: also if somebody runs it, who then cannot write any more.
    :raises NotFound: there is no such flow.
    :raises FlowBusy: somebody runs it.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        row = next(iter(connection.list_flows(uuid=uuid, limit=1).flows), None)
        if row is None or row.uuid != uuid:
            raise exceptions.NotFound(f"There is no flow {uuid!r}")
        if not force and row.lease is not None and not owners.died(row.lease):
            raise commands.busy(uuid, row.lease)
        _forget(connection, row)


def prune(
    backend: base.Backend,
    *,
    before: float,
    states: Collection[str] = ENDED,
    batch: int = 100,
    dry_run: bool = False,
) -> Iterator[base.FlowRow]:
    """Forget the flows that were written last before a moment (unix seconds), and yield them.

    Those that somebody runs are left alone.

    :param states: only flows in these.
    :param batch: so many are looked at together.
    :param dry_run: only yield them.
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
                    _forget(connection, row)
                yield row
        if page.after is None or page.after == after:
            return
        after = page.after


def _is_old(row: base.FlowRow, before: float) -> bool:
    moment = row.updated if row.updated is not None else row.created
    held = row.lease is not None and not owners.died(row.lease)
    return not held and moment is not None and moment < before


def _forget(connection: base.Connection, row: base.FlowRow) -> None:
    try:
        connection.destroy_flow(row.uuid)
        book = connection.get_logbook(row.book_uuid, lazy=True)
        if book.has_meta and book.meta.get(MADE_BY) and not _has_flows(connection, row.book_uuid):
            connection.destroy_logbook(row.book_uuid)
    except exceptions.NotFound:  # somebody else did
        pass


def _has_flows(connection: base.Connection, book: str) -> bool:
    return next(iter(connection.get_flows_for_book(book, lazy=True)), None) is not None
