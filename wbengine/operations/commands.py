"""Commands to the engine that runs a flow: to suspend, or to revert it."""

from __future__ import annotations

import contextlib
import time
from typing import Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence import base, commands, leases, models, owners
from wbengine.runtime import control

__all__ = ["Asked", "busy", "cancel", "is_run", "suspend"]

#: Seconds between two looks at the flow.
_FIRST: Final = 0.05
_LONGEST: Final = 0.5


class Asked(NamedTuple):
    """The flow's state before, and when this returned."""

    old: str
    new: str


def suspend(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    wait: float | None = None,
) -> Asked:
    """Ask the engine that runs a flow to suspend it: what runs is finished, no more begins.

    One that waits, suspended, for a conductor to go on with it stays so from now on.

    :param wait: seconds until it must have ended; None: do not wait for that.
    :raises NotFound: there is no such flow.
    :raises InvalidState: nobody runs it, and it is not suspended.
    :raises TimeoutError: it did not end in time.
    """
    old = _state(backend, uuid)
    if old == states.SUSPENDED and not is_run(backend, uuid):
        with contextlib.suppress(exceptions.FlowBusy):  # an engine took it meanwhile
            _hold(backend, uuid, commands.FlowCommand(commands.SUSPEND, reason, by))
            return Asked(old, _state(backend, uuid))
    return _ask(backend, uuid, commands.SUSPEND, reason, by, wait)


def cancel(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    wait: float | None = None,
) -> Asked:
    """Ask the engine that runs a flow to end it, and to revert what it did.

    As `suspend`; of a flow that nobody runs, `resuming.revert` is the way.
    """
    return _ask(backend, uuid, commands.CANCEL, reason, by, wait)


def is_run(backend: base.Backend, uuid: str) -> bool:
    """Whether somebody who lives runs it, as far as is known."""
    with contextlib.closing(backend.get_connection()) as connection:
        return _holder(connection, uuid) is not None


def busy(uuid: str, owner: str) -> exceptions.FlowBusy:
    """What to raise where a flow has to be suspended first."""
    return exceptions.FlowBusy(
        f"Flow {uuid} is run by {owners.in_words(owner)}: suspend it first", owner=owner
    )


def _hold(backend: base.Backend, uuid: str, command: commands.FlowCommand) -> None:
    """Let no conductor go on with a flow that is suspended, whatever comes.

    :raises FlowBusy: an engine runs it.
    """
    command.check()
    owner = owners.new(momentary=True)
    try:
        with contextlib.closing(backend.get_connection()) as connection:
            lease = connection.take_lease(uuid, str(owner), leases.LEASE_SECONDS)
            try:
                detail = connection.get_flow_details(uuid, lazy=True)
                if detail.state != states.SUSPENDED:
                    return
                if _is_parked(detail):
                    detail.enter(states.SUSPENDED, time.time(), command.in_words())
                    connection.save_changes(detail, (), lease=lease)
                connection.drop_job(uuid)
            finally:
                connection.give_back_lease(lease)
    finally:
        owner.let_go()


def _is_parked(detail: models.FlowDetail) -> bool:
    """Whether what suspended it was that it waits."""
    for change in reversed(detail.history):
        if change.state not in (states.SUSPENDED, states.SUSPENDING):
            break
        if change.why is not None:
            return change.why == control.PARKED
    return False


def _ask(
    backend: base.Backend,
    uuid: str,
    what: str,
    reason: str | None,
    by: str | None,
    wait: float | None,
) -> Asked:
    old = _state(backend, uuid)
    with contextlib.closing(backend.get_connection()) as connection:
        holder = _holder(connection, uuid)
        connection.send_command(uuid, commands.FlowCommand(what, reason, by, time.time()))
        if wait is not None and holder is not None:
            _await_end(connection, uuid, holder, wait)
    return Asked(old, _state(backend, uuid))


def _await_end(connection: base.Connection, uuid: str, epoch: int, seconds: float) -> None:
    until, pause = time.monotonic() + seconds, _FIRST
    while _holder(connection, uuid) == epoch:
        if time.monotonic() >= until:
            raise TimeoutError(
                f"Flow {uuid} has been asked, and has not ended within {seconds:g} s: what runs is"
                " finished first"
            )
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST)


def _holder(connection: base.Connection, uuid: str) -> int | None:
    """The epoch of the lease of who runs it."""
    lease = connection.get_lease(uuid)
    return None if lease is None or owners.died(lease.owner) else lease.epoch


def _state(backend: base.Backend, uuid: str) -> str:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            return connection.get_flow_details(uuid, lazy=True).state or states.PENDING
        except exceptions.NotFound as error:
            raise exceptions.NotFound(f"There is no flow {uuid!r}", error) from error
