"""Charge a card and create a shipment.

`charge` declares `idempotent = True`, but the bank receives no idempotency key. If the process dies
after the bank has booked the amount, or the worker is lost, the task runs again and the customer
pays twice. The option describes the task; it does not make its effect repeatable.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
DEPOT = World("depot")
WORLDS = [BANK, DEPOT]
INPUTS: dict[str, Any] = {"order": "17", "amount": 80}


@task.task(idempotent=True)
def charge(order: str, amount: int) -> str:
    return BANK.effect(f"charge {order}", amount=amount)


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task(idempotent=True)
def ship(order: str) -> str:
    return DEPOT.effect(f"shipment {order}", idempotency_key=f"shipment-{order}")


@ship.revert(failed=True)
def return_shipment(order: str) -> None:
    DEPOT.undo(f"shipment {order}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(charge("charge"), ship("ship"))
