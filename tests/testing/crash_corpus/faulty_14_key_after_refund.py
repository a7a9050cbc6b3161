"""Charge a card and book a courier; if the courier fails, try both again.

Each attempt charges with the same idempotency key. After a failed attempt the engine refunds the
charge, and the bank answers the key of the second attempt with the id of the first charge, which is
refunded. The flow succeeds, the courier comes, and the shop never receives the money.
"""

from __future__ import annotations

from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
COURIER = World("courier")
WORLDS = [BANK, COURIER]
INPUTS: dict[str, Any] = {"order": "17", "amount": 80}
EXCEPTIONS = {"book courier": (ConnectionError,)}


@task.task
def charge(order: str, amount: int) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=f"charge-{order}", amount=amount)


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task
def book_courier(order: str) -> str:
    if COURIER.has(f"trip {order}"):
        return "booked before"
    return COURIER.effect(f"trip {order}")


@book_courier.revert(failed=True)
def cancel_courier(order: str) -> None:
    COURIER.undo(f"trip {order}", missing_ok=True)


def flow() -> linear_flow.Flow:
    attempts = retry.Times(3, backoff=0.01)
    members = charge("charge"), book_courier("book courier")
    return linear_flow.Flow("delivery", retry=attempts).add(*members)
