"""Commands to the engine of a flow: suspend and cancel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine.operations import _backends
from wbengine.persistence import _commands, _leases, _owners, base
from wbengine.persistence.backends._sql import caller_transactions

__all__ = ["StateChange", "busy", "cancel", "is_running", "suspend"]

#: Seconds between two polls of the flow: the first pause and the longest.
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 0.5


class StateChange(NamedTuple):
    """The state of the flow before and after the command."""

    old: str
    new: str


def suspend(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    wait: float | None = None,
) -> StateChange:
    """Ask the engine that runs a flow to suspend it: running tasks finish, no others start.

    A parked flow stays suspended: conductors do not resume it any more. If the engine of a flow
    died, or the flow has not started, its next engine suspends it.

    :param wait: seconds within which the run must end; None: do not wait.
    :raises NotFound: if the flow does not exist.
    :raises InvalidState: if the flow has ended, or is about to be cancelled.
    :raises TimeoutError: if the run did not end in time.
    """
    _backends.check(backend)
    old_state = _state(backend, uuid)
    is_idle = old_state == states.SUSPENDED and not is_running(backend, uuid)
    if is_idle and not _has_unfinished_children(backend, uuid):
        command = _commands.FlowCommand(_commands.SUSPEND, reason, by)
        with contextlib.suppress(exceptions.FlowBusy):  # an engine acquired it first
            if _prevent_resume(backend, uuid, command):
                return StateChange(old_state, _state(backend, uuid))
    return _send_command(backend, uuid, _commands.SUSPEND, reason, by, wait)


def cancel(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    wait: float | None = None,
    connection: Any = None,
) -> StateChange:
    """Cancel a flow: it ends and is reverted, by the engine that runs it.

    If no engine runs the flow, its next engine reverts it: the conductor that claims its job, which
    is due now, or else `resuming.resume`. A `ConductorService` also posts a missing job.
    `resuming.revert` reverts the flow at once.

    :param wait: seconds within which the run must end (without a run: the flow); None: do not wait.
    :param connection: cancel the flow in your transaction, as in `engines.submit`; without `wait`.
    :raises NotFound: if the flow does not exist.
    :raises InvalidState: if the flow has ended.
    :raises TimeoutError: if the run did not end in time.
    """
    _backends.check(backend)
    if connection is not None and wait is not None:
        raise ValueError("connection= does not allow wait=: commit first, and wait then")
    try:
        with caller_transactions.joined_backend(backend, connection, "Cancelling a flow") as joined:
            return _send_command(joined, uuid, _commands.CANCEL, reason, by, wait)
    except exceptions.InvalidState as error:
        raise exceptions.InvalidState(
            f"{error}; `wbengine flow revert` reverts a flow in FAILURE"
        ) from None


def _has_unfinished_children(backend: base.Backend, uuid: str) -> bool:
    """Return whether the next engine of a flow has to suspend children of it."""
    unfinished = [each for each in states.FLOW_STATES if each not in states.FLOW_ENDED]
    with contextlib.closing(backend.get_connection()) as connection:
        return bool(connection.list_flows(parent=uuid, states=unfinished, limit=1).flows)


def is_running(backend: base.Backend, uuid: str) -> bool:
    """Return whether an engine runs the flow whose process is not known to be dead."""
    with contextlib.closing(backend.get_connection()) as connection:
        return _owner_epoch(connection, uuid) is not None


def busy(uuid: str, owner: str) -> exceptions.FlowBusy:
    return exceptions.FlowBusy(
        f"Flow {uuid} must not be running, its owner is {_owners.describe(owner)};"
        " suspend it first",
        owner=owner,
    )


def _prevent_resume(backend: base.Backend, uuid: str, command: _commands.FlowCommand) -> bool:
    """Prevent conductors from resuming a suspended flow. Return False if it has a command.

    :raises FlowBusy: if an engine runs it.
    """
    command.check()
    owner = _owners.new(momentary=True)
    try:
        with contextlib.closing(backend.get_connection()) as connection:
            lease = connection.acquire_lease(uuid, str(owner), _leases.LEASE_SECONDS)
            try:
                detail = connection.get_flow_details(uuid, lazy=True)
                if detail.state != states.SUSPENDED or lease.command is not None:
                    return False
                if not detail.is_suspended_by_command:
                    detail.enter(states.SUSPENDED, time.time(), command.describe())
                    connection.save_changes(detail, (), lease=lease)
                connection.drop_job(uuid)
                return True
            finally:
                connection.release_lease(lease)
    finally:
        owner.end_run()


def _send_command(
    backend: base.Backend,
    uuid: str,
    command_name: str,
    reason: str | None,
    by: str | None,
    wait: float | None,
) -> StateChange:
    old_state = _state(backend, uuid)
    with contextlib.closing(backend.get_connection()) as connection:
        owner_epoch = _owner_epoch(connection, uuid)
        connection.send_command(uuid, _commands.FlowCommand(command_name, reason, by, time.time()))
        if wait is not None and owner_epoch is not None:
            _await(lambda: _owner_epoch(connection, uuid) != owner_epoch, uuid, wait)
        elif wait is not None and command_name == _commands.CANCEL:
            _await(lambda: _state(backend, uuid) in states.FLOW_ENDED, uuid, wait)
    return StateChange(old_state, _state(backend, uuid))


def _await(is_over: Callable[[], bool], uuid: str, seconds: float) -> None:
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while not is_over():
        if time.monotonic() >= until:
            raise TimeoutError(
                f"Run of flow {uuid} did not end within {seconds:g} s; the request is recorded, and"
                " running tasks finish first"
            )
        time.sleep(pause)
        pause = min(pause * 2, _MAX_PAUSE_SECONDS)


def _owner_epoch(connection: base.Connection, uuid: str) -> int | None:
    lease = connection.get_lease(uuid)
    return None if lease is None or _owners.is_dead(lease.owner) else lease.epoch


def _state(backend: base.Backend, uuid: str) -> str:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            return connection.get_flow_details(uuid, lazy=True).state or states.PENDING
        except exceptions.NotFound as error:
            raise exceptions.NotFound(f"Unknown flow {uuid!r}", error) from error
