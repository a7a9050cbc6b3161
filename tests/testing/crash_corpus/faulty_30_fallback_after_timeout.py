"""Pay with the first provider, or with the second one if the first does not answer.

A timeout does not say that nothing happened. If the first provider has booked the amount and only
its answer was late, the workflow catches `TimeoutError` and pays with the second provider, too.
An exception that is caught in the function reverts nothing, so the customer pays twice.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

FIRST = World("first provider")
SECOND = World("second provider")
ACCESS = World("access")
WORLDS = [FIRST, SECOND, ACCESS]
INPUTS: dict[str, Any] = {"order": "17", "amount": 80}
EXCEPTIONS = {"pay_first": (TimeoutError,)}


@task.task
def pay_first(order: str, amount: int) -> str:
    return FIRST.effect(f"payment {order}", idempotency_key=f"payment-{order}", amount=amount)


@pay_first.revert(failed=True)
def refund_first(order: str) -> None:
    FIRST.undo(f"payment {order}", missing_ok=True)


@task.task
def pay_second(order: str, amount: int) -> str:
    return SECOND.effect(f"payment {order}", idempotency_key=f"payment-{order}", amount=amount)


@pay_second.revert(failed=True)
def refund_second(order: str) -> None:
    SECOND.undo(f"payment {order}", missing_ok=True)


@task.task
def grant(order: str, payment: str) -> str:
    return ACCESS.effect(f"access {order}", idempotency_key=f"access-{order}", payment=payment)


@grant.revert(failed=True)
def withdraw(order: str) -> None:
    ACCESS.undo(f"access {order}", missing_ok=True)


@task.workflow
def flow(steps: Steps, order: str, amount: int) -> str:
    try:
        payment = steps.run(pay_first, order, amount)
    except TimeoutError:
        payment = steps.run(pay_second, order, amount)
    return steps.run(grant, order, payment)
