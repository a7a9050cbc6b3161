"""Requests of `wbengine flow resume`, `retry` and `revert` about submitted flows."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from wbengine import operations, states
from wbengine._cli import confirmation, errors, flow_watch
from wbengine.persistence import _codes

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.persistence import base as persistence

__all__ = ["carried_out", "perform"]

#: Seconds between two polls of the flow: the first pause and the longest.
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 0.5


def perform(
    context: Context,
    backend: persistence.Backend,
    row: persistence.FlowRow,
    operation: str,
    *,
    reason: str | None,
    edits: operations.Edits | None,
    partial: bool,
    watch: bool,
    wait: float | None,
    unavailable: dict[str, Any],
) -> int:
    """Request an operation of the conductors, and perhaps wait for its result.

    :param unavailable: options of a run in this process, by name.
    :returns: the exit code.
    :raises Failed: if one of these options is set.
    """
    for name, value in unavailable.items():
        if value:
            raise errors.Failed(
                f"--{name} is for flows that this command runs: conductors run submitted flow"
                f" {row.uuid}",
                errors.USAGE,
            )
    by = confirmation.current_user()
    requested = operations.request(
        backend, row.uuid, operation, reason=reason, by=by, edits=edits, partial=partial
    )
    printer = context.printer
    content = {"uuid": row.uuid, "is_new": requested.is_new, "by": requested.by}
    if wait is None:
        printer.document(f"flow-{operation}/1", {**content, "state": requested.state})
    sender = f" by {requested.by}" if requested.by else ""
    already = "" if requested.is_new else f" before{sender}"
    printer.note(f"{row.name} {row.uuid}: {operation} requested{already}; {carried_out(backend)}")
    if watch:
        return flow_watch.follow(context, backend, row.uuid)
    if wait is None:
        printer.guide(f"to watch it: wbengine flow watch {row.uuid}")
        return errors.OK
    state, is_over = _await_end(backend, row.uuid, wait)
    printer.document(f"flow-{operation}/1", {**content, "state": state})
    if state == (states.REVERTED if operation == "revert" else states.SUCCESS):
        return errors.OK
    printer.note(f"{state}; details: wbengine flow show {row.uuid}")
    is_failed = is_over and (state in states.FLOW_ENDED or state == states.BLOCKED)
    return errors.UNHEALTHY if is_failed else errors.TRY_AGAIN


def carried_out(backend: persistence.Backend) -> str:
    """Return who carries requests out."""
    with contextlib.closing(backend.get_connection()) as connection:
        if _codes.is_served(connection.codes()):
            return "a conductor (wbengine serve) carries it out"
    return f"{_codes.NO_CONDUCTOR}: the next one carries it out"


def _await_end(backend: persistence.Backend, uuid: str, seconds: float) -> tuple[str, bool]:
    """Wait until the requested run is over. Return the state of the flow, and False if it is not.

    A run is over if the flow has ended, or stays suspended or blocked.
    """
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    with contextlib.closing(backend.get_connection()) as connection:
        while True:
            is_requested = bool(connection.commands([uuid]))
            detail = connection.get_flow_details(uuid, lazy=True)
            has_ended = detail.state in states.FLOW_ENDED
            has_stopped = has_ended or detail.is_suspended_by_command or detail.is_blocked
            is_over = has_stopped and not is_requested
            if is_over or time.monotonic() >= until:
                state = states.BLOCKED if detail.is_blocked else detail.state or states.PENDING
                return state, is_over
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
