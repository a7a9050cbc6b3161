"""Reserve stock, charge the card, hand over the parcel and send a receipt.

Each call has an idempotency key that follows from the order, so a second execution has no further
effect. Each `revert` also runs after a failed execution, finds the work by the arguments, and
accepts that there is nothing to undo. The receipt cannot be undone and is the last task.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

STOCK = World("stock")
BANK = World("bank")
MAIL = World("mail", permanent=True)
WORLDS = [STOCK, BANK, MAIL]
INPUTS: dict[str, Any] = {"order": "17", "amount": 80}


class CardDeclined(Exception):
    """The bank refuses the card."""


EXCEPTIONS = {"charge": (CardDeclined, ConnectionError)}


@task.task
def reserve(order: str) -> str:
    return STOCK.effect(f"items of {order}", idempotency_key=f"items-{order}")


@reserve.revert(failed=True)
def release(order: str) -> None:
    STOCK.undo(f"items of {order}", missing_ok=True)


@task.task(idempotent=True, provides="payment")
def charge(order: str, amount: int) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=f"charge-{order}", amount=amount)


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task(idempotent=True)
def send_receipt(order: str, payment: str) -> None:
    MAIL.effect(f"receipt {order}", idempotency_key=f"receipt-{order}", payment=payment)


def flow() -> linear_flow.Flow:
    members = reserve("reserve"), charge("charge"), send_receipt("receipt")
    return linear_flow.Flow("order").add(*members)
