"""Buy a machine if a manager approves it within an hour.

The workflow charges the account of the department first and then waits. If the manager rejects the
purchase, or does not answer in time, the workflow returns normally. A workflow that returns has
succeeded, so nothing is reverted: the department has paid for a machine that is never ordered.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

BANK = World("bank")
SUPPLIER = World("supplier")
WORLDS = [BANK, SUPPLIER]
INPUTS: dict[str, Any] = {"machine": "press", "price": 7000}
SIGNALS = {"approved": True}


@task.task
def charge(machine: str, price: int) -> str:
    return BANK.effect(f"price of {machine}", idempotency_key=f"price-{machine}", amount=price)


@charge.revert(failed=True)
def refund(machine: str) -> None:
    BANK.undo(f"price of {machine}", missing_ok=True)


@task.task
def order(machine: str) -> str:
    return SUPPLIER.effect(f"order of {machine}", idempotency_key=f"order-{machine}")


@order.revert(failed=True)
def cancel_order(machine: str) -> None:
    SUPPLIER.undo(f"order of {machine}", missing_ok=True)


@task.workflow
def flow(steps: Steps, machine: str, price: int) -> str:
    steps.run(charge, machine, price)
    if not steps.wait_for("approved", timeout=3600, default=False):
        return "not approved"
    return steps.run(order, machine)
