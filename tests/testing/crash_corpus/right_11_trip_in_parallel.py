"""Book a flight, a hotel and a car in parallel, then send the itinerary.

The bookings are coroutines of an `asyncio.TaskGroup`. If one of them fails, the group waits for the
others, its exception leaves the workflow, and the engine cancels all bookings, also the failed one
if the agency knows it. The itinerary is sent only when everything is booked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from wbengine import task
from wbengine.steps import AsyncSteps
from wbengine.testing import World

AGENCY = World("agency")
MAIL = World("mail", permanent=True)
WORLDS = [AGENCY, MAIL]
INPUTS: dict[str, Any] = {"traveller": "Ann"}
EXCEPTIONS = {"book": (LookupError,)}


@task.task
async def book(part: str, traveller: str) -> str:
    key = f"{part} for {traveller}"
    return AGENCY.effect(key, idempotency_key=key)


@book.revert(failed=True)
async def cancel(part: str, traveller: str) -> None:
    AGENCY.undo(f"{part} for {traveller}", missing_ok=True)


@task.task
async def send_itinerary(traveller: str, bookings: list[str]) -> None:
    key = f"itinerary-{traveller}"
    MAIL.effect(f"itinerary of {traveller}", idempotency_key=key, bookings=bookings)


@task.workflow
async def flow(steps: AsyncSteps, traveller: str) -> list[str]:
    async with asyncio.TaskGroup() as group:
        bookings = [
            group.create_task(steps.run(book, part, traveller))
            for part in ("flight", "hotel", "car")
        ]
    numbers = [booking.result() for booking in bookings]
    await steps.run(send_itinerary, traveller, numbers)
    return numbers
