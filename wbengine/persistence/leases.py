"""A lease: who runs a flow, and so who may write its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wbengine import exceptions

__all__ = ["LEASE_SECONDS", "MOMENT", "Lease", "busy", "lost"]

#: So long after its last sign of life an owner's lease ends.
LEASE_SECONDS: Final = 15.0

#: So many seconds at most a lease that is held for one change only is waited for.
MOMENT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write the records of one flow.

    `epoch` rises by one with each lease of the flow, from 1, whoever takes it: it tells a write of
    an owner from one of whoever came after.
    """

    flow: str
    owner: str
    epoch: int


def busy(held: Lease, seconds: float) -> exceptions.FlowBusy:
    """What to raise when somebody else holds the lease of a flow, for so many seconds more."""
    return exceptions.FlowBusy(
        f"Flow {held.flow} is run by {held.owner}",
        owner=held.owner,
        epoch=held.epoch,
        seconds=seconds,
    )


def lost(lease: Lease, by: str | None = None, *, kept: bool = True) -> exceptions.LeaseLost:
    """What to raise for a lease that is not the latest one.

    `by` is who took the flow over, if anybody did; `kept` is False where the flow is gone too.
    """
    gone = "its lease is gone" if kept else "it is not kept any more"
    why = gone if by is None else f"{by} took it over"
    return exceptions.LeaseLost(f"Flow {lease.flow} is not run by {lease.owner}: {why}")
