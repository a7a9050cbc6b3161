"""Pay a supplier and store the receipt.

`take_back` is called after each execution, also a failed one, and can run twice. It always asks the
bank to take the payment back: if the payment never happened, or an earlier call has taken it back
before the process died, the bank refuses. The reversion stops there, and the flow stays in FAILURE
until an operator repairs it.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
ARCHIVE = World("archive")
WORLDS = [BANK, ARCHIVE]
INPUTS: dict[str, Any] = {"invoice": "2026-11", "amount": 900}


@task.task(provides="receipt")
def pay(invoice: str, amount: int) -> str:
    return BANK.effect(f"payment {invoice}", idempotency_key=f"pay-{invoice}", amount=amount)


@pay.revert(failed=True)
def take_back(invoice: str) -> None:
    BANK.undo(f"payment {invoice}")


@task.task
def store_receipt(invoice: str, receipt: str) -> str:
    return ARCHIVE.effect(f"receipt {invoice}", idempotency_key=f"receipt-{invoice}", of=receipt)


@store_receipt.revert(failed=True)
def delete_receipt(invoice: str) -> None:
    ARCHIVE.undo(f"receipt {invoice}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("invoice").add(pay("pay"), store_receipt("store receipt"))
