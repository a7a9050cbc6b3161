"""Changes of the record of a flow that no engine runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions, states
from wbengine.operations import _suspend_and_cancel
from wbengine.persistence import _leases, _owners, base, models
from wbengine.views import _shown_states

__all__ = ["STATES", "changing", "owning"]

#: Displayed states of flows that no engine runs. An engine may run those that are WAITING.
STATES: Final = (
    *(*sorted(states.FLOW_ENDED), states.CANCELLED),
    *(states.PENDING, states.SUSPENDED, states.WAITING, states.BLOCKED),
    *(_shown_states.INTERRUPTED, _shown_states.REQUESTED),
)

_PAUSE_SECONDS: Final = 0.05


@contextlib.contextmanager
def changing(backend: base.Backend, uuid: str) -> Iterator[models.FlowDetail]:
    """Yield the record of a flow, without its atoms, and store it at the end of the block.

    Other changes of this kind wait for the end. An error in the block leaves the record unchanged.

    :raises NotFound: if the flow does not exist.
    :raises FlowBusy: if an engine runs it.
    """
    with owning(backend, uuid) as (connection, lease):
        detail = connection.get_flow_details(uuid, lazy=True)
        yield detail
        connection.save_changes(detail, (), lease=lease)


@contextlib.contextmanager
def owning(backend: base.Backend, uuid: str) -> Iterator[tuple[base.Connection, _leases.Lease]]:
    """Own a flow for one change in the block.

    :raises NotFound, FlowBusy: as `changing`.
    """
    owner = _owners.new(momentary=True)
    try:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.get_flow_details(uuid, lazy=True)  # Raises NotFound.
            lease = _acquire(connection, uuid, str(owner))
            try:
                yield connection, lease
            finally:
                connection.release_lease(lease)
    finally:
        owner.end_run()


def _acquire(connection: base.Connection, uuid: str, owner: str) -> _leases.Lease:
    """Acquire the lease; wait for another owner that makes such a change or ends its run."""
    seconds = 0.0 if connection.excludes_writers else _leases.CHANGE_WAIT_SECONDS
    until = time.monotonic() + seconds
    dead: int | None = None
    while True:
        try:
            return connection.acquire_lease(uuid, owner, _leases.LEASE_SECONDS, dead=dead)
        except exceptions.FlowBusy as error:
            dead = error.epoch if _owners.is_dead(error.owner) else None
            may_wait = time.monotonic() < until and (
                _owners.is_momentary(error.owner) or not _is_running(connection, uuid)
            )
            if dead is None and not may_wait:
                raise _suspend_and_cancel.busy(uuid, error.owner) from None
        time.sleep(_PAUSE_SECONDS if dead is None else 0)


def _is_running(connection: base.Connection, uuid: str) -> bool:
    """Return whether the owner of a flow has begun to run it, and the run has not ended."""
    state = connection.get_flow_details(uuid, lazy=True).state or states.PENDING
    return state not in _shown_states.STATES_WITHOUT_RUN
