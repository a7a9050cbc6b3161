"""Deletion of one flow, or of all flows that ended before a given time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Final

from wbengine import exceptions, states
from wbengine._text import timestamps
from wbengine.operations import _suspend_and_cancel
from wbengine.persistence import _living_forks, _owners, base
from wbengine.types import codec

__all__ = ["ENDED", "delete", "prune"]

ENDED: Final = (states.SUCCESS, states.REVERTED, states.FAILURE)


def delete(
    backend: base.Backend,
    uuid: str,
    *,
    force: bool = False,
    states: Collection[str] = states.FLOW_STATES,
) -> None:
    """Delete a flow with all its records; and its logbook, if it was created for this flow only.

    Its job is deleted too, if the store contains it.

    :param force: also if an engine runs it, which then cannot write any more, and in any state;
        and if the undo of forks or originals needs it. Forks that wait for its reversion are
        cancelled.
    :param states: states in which it is deleted.
    :raises NotFound: if the flow does not exist.
    :raises FlowBusy: if an engine runs it.
    :raises InvalidState: if it is in another state, or the undo of forks or originals needs it.
    """
    waiting: list[str] = []
    with contextlib.closing(backend.get_connection()) as connection:
        row = connection.get_row(uuid)
        if row.has_forks or row.is_fork:
            with codec.unknown_classes_as_text():
                detail = connection.get_flow_details(uuid, lazy=True)
            if force:
                waiting = _living_forks.waiting_forks(connection, detail)
            elif (refusal := _living_forks.deletion_refusal(connection, detail)) is not None:
                raise exceptions.InvalidState(f"{refusal}, or use --force")
        try:
            _delete_flow(connection, row, None if force else base.Removable(states))
        except exceptions.FlowBusy as error:
            raise _suspend_and_cancel.busy(uuid, error.owner) from None
    for fork in waiting:
        reason = f"flow {uuid} was deleted before it was reverted"
        with contextlib.suppress(exceptions.NotFound, exceptions.InvalidState):
            _suspend_and_cancel.cancel(backend, fork, reason=reason)


def prune(
    backend: base.Backend,
    *,
    before: float,
    states: Collection[str] = ENDED,
    batch: int = 100,
    dry_run: bool = False,
    undoable: bool = False,
    on_kept: Callable[[base.FlowRow, str], object] | None = None,
) -> Iterator[base.FlowRow]:
    """Delete the flows that were last written before a time (Unix seconds), and yield them.

    Expired keys of deleted flows (`engines.submit(unique_for=...)`) are deleted, too.

    Flows that an engine runs, has run since they were listed, or has to run again (`request`) are
    skipped, and so are parked and blocked ones, which wait for a signal, a time or code. Kept are
    also flows that can be undone (`undo_until`), children of stored flows, and originals of stored
    forks that own their results: a reversion may need them.

    :param batch: number of flows that are read together.
    :param dry_run: yield the flows without deleting them.
    :param undoable: also delete flows that can be undone. This cannot be reversed.
    :param on_kept: called with each old flow that is kept for a reversion, and the reason.
    """
    deleted = set[str]()
    after: str | None = None
    while True:
        with contextlib.closing(backend.get_connection()) as connection:
            page = connection.list_flows(
                states=states, newest_first=False, limit=batch, after=after
            )
            needed = connection.dependents(page.flows)
            now = connection.now()
            for row in page.flows:
                if row.created is not None and row.created >= before:
                    page = page._replace(after=None)  # All later flows are newer.
                    break
                if not _is_old(row, before):
                    continue
                until = None if undoable else row.undo_until
                reason = _need(until, now, needed.get(row.uuid, set()) - deleted)
                if reason is not None:
                    if on_kept is not None:
                        on_kept(row, reason)
                    continue
                try:
                    if not dry_run:
                        _delete_flow(connection, row, base.Removable(states, before))
                except (exceptions.FlowBusy, exceptions.InvalidState, exceptions.NotFound):
                    continue  # another process ran or deleted it since it was listed
                deleted.add(row.uuid)
                yield row
            if page.after is None or page.after == after:
                if not dry_run:
                    connection.delete_expired_keys()
                return
        after = page.after


def _need(undo_until: float | None, now: float, dependents: Collection[str]) -> str | None:
    """Return why an undo needs a flow, or None."""
    if undo_until is not None and now < undo_until:
        return f"it can be undone until {timestamps.text_of(undo_until)}"
    if dependents:
        return f"the undo of flow {min(dependents)} may need it"
    return None


def _is_old(row: base.FlowRow, before: float) -> bool:
    last_write = row.updated if row.updated is not None else row.created
    is_owned = row.lease is not None and not _owners.is_dead(row.lease)
    is_free = not is_owned and row.command is None and not (row.parked or row.blocked)
    return is_free and last_write is not None and last_write < before


def _delete_flow(
    connection: base.Connection, row: base.FlowRow, only: base.Removable | None
) -> None:
    try:
        connection.destroy_flow(row.uuid, only)
    except exceptions.FlowBusy as busy:
        if only is None or not _owners.is_dead(busy.owner):
            raise
        connection.destroy_flow(row.uuid, only._replace(dead=busy.epoch))
    with contextlib.suppress(exceptions.NotFound):  # another process deleted it
        connection.destroy_logbook(row.book_uuid, unused_only=True)
