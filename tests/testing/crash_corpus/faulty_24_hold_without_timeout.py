"""Hold a room until the guest confirms, then book it.

The wait for the confirmation has no timeout. Guests who close the page never send the signal: the
flow waits without end, and so does the hold, which only the end of the flow would release. After a
few weeks the hotel is full of guests who never come.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import AsyncSteps
from wbengine.testing import World

HOTEL = World("hotel")
MAIL = World("mail", permanent=True)
WORLDS = [HOTEL, MAIL]
INPUTS: dict[str, Any] = {"guest": "Ann", "room": "101"}
SIGNALS = {"confirmed": {"breakfast": True}}


@task.task
async def hold(guest: str, room: str) -> str:
    return HOTEL.effect(f"hold of {room}", idempotency_key=f"hold-{room}-{guest}")


@hold.revert(failed=True)
async def release(room: str) -> None:
    HOTEL.undo(f"hold of {room}", missing_ok=True)


@task.task
async def confirm(guest: str, room: str, breakfast: bool) -> None:
    key = f"{room} for {guest}"
    MAIL.effect(key, idempotency_key=key, breakfast=breakfast)


@task.workflow
async def flow(steps: AsyncSteps, guest: str, room: str) -> str:
    reservation = await steps.run(hold, guest, room)
    answer = await steps.wait_for("confirmed")
    await steps.run(confirm, guest, room, answer["breakfast"])
    return reservation
