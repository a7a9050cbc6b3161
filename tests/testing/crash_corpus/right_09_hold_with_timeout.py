"""Hold a room until the guest confirms, then charge the guest.

The wait has a timeout with a default. If the guest does not answer in time, an exception leaves the
scope, which releases the room, and the workflow ends in SUCCESS with another result. The card is
charged only after the confirmation. A signal that arrives later changes nothing.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

HOTEL = World("hotel")
BANK = World("bank")
WORLDS = [HOTEL, BANK]
INPUTS: dict[str, Any] = {"guest": "Ann", "room": "101"}
SIGNALS = {"confirmed": {"breakfast": True}}


class NotConfirmed(Exception):
    """The guest has not confirmed in time."""


@task.task
def hold(guest: str, room: str) -> str:
    return HOTEL.effect(f"hold of {room}", idempotency_key=f"hold-{room}-{guest}")


@hold.revert(failed=True)
def release(room: str) -> None:
    HOTEL.undo(f"hold of {room}", missing_ok=True)


@task.task
def charge(guest: str, room: str) -> str:
    return BANK.effect(f"{room} for {guest}", idempotency_key=f"{room}-{guest}")


@charge.revert(failed=True)
def refund(guest: str, room: str) -> None:
    BANK.undo(f"{room} for {guest}", missing_ok=True)


@task.workflow
def flow(steps: Steps, guest: str, room: str) -> str:
    try:
        with steps.scope():
            steps.run(hold, guest, room)
            if steps.wait_for("confirmed", timeout=3600, default=None) is None:
                raise NotConfirmed
    except NotConfirmed:
        return "released"
    steps.run(charge, guest, room)
    return "booked"
