"""Book a flight, a hotel and a car in parallel, and send the itinerary.

The workflow gathers the bookings with `return_exceptions=True` and never looks at the results. If
one booking fails, the others remain and the itinerary is sent: the traveller lands in a town
without a room. A booking that failed after the hotel had accepted it is not cancelled either.
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
async def send_itinerary(traveller: str) -> None:
    MAIL.effect(f"itinerary of {traveller}", idempotency_key=f"itinerary-{traveller}")


@task.workflow
async def flow(steps: AsyncSteps, traveller: str) -> str:
    parts = ("flight", "hotel", "car")
    bookings = (steps.run(book, part, traveller) for part in parts)
    await asyncio.gather(*bookings, return_exceptions=True)
    await steps.run(send_itinerary, traveller)
    return "booked"
