"""The lease of a flow: the right of one engine to write its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wbengine import exceptions
from wbengine.persistence._commands import FlowCommand

__all__ = ["LEASE_SECONDS", "CHANGE_WAIT_SECONDS", "Lease", "busy_error", "lost_error"]

#: Default duration of a lease.
LEASE_SECONDS: Final = 15.0

#: Maximum time to wait for a lease that another process uses for one change only.
CHANGE_WAIT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write the records of one flow.

    `epoch` is 1 for the first lease of the flow and increases by one with each later lease. It
    distinguishes writes of successive owners.

    `command` is the command that the flow had when the lease was acquired. `clock_ahead` is the
    difference from `clocks.uptime` to the clock of the store at that moment; None: the store uses
    the clock of this host.
    """

    flow: str
    owner: str
    epoch: int
    command: FlowCommand | None = field(default=None, compare=False)
    clock_ahead: float | None = field(default=None, compare=False)


def busy_error(lease: Lease, seconds: float) -> exceptions.FlowBusy:
    """Create the error for a lease that another owner has for `seconds` more seconds."""
    return exceptions.FlowBusy(
        f"Flow {lease.flow} is run by {lease.owner}",
        owner=lease.owner,
        epoch=lease.epoch,
        seconds=seconds,
    )


def lost_error(
    lease: Lease, by: str | None = None, *, flow_exists: bool = True
) -> exceptions.LeaseLost:
    """Create the error for an outdated lease.

    :param by: the owner of the latest lease, if known.
    :param flow_exists: False if the flow was deleted.
    """
    default = "its lease was released" if flow_exists else "it was deleted"
    reason = default if by is None else f"{by} took it over"
    return exceptions.LeaseLost(f"Flow {lease.flow} is no longer run by {lease.owner}: {reason}")
