"""Write an invoice with a number, charge it and send it.

The number comes from a counter of the module, which the workflow increases. It is part of the
memory of one process: a replay in the same process receives the next number, and a new process
starts at 1001 again. The replay calls `write_invoice` with another number than recorded
(`NonDeterministicWorkflow`), and two customers can receive the same number.
"""

from __future__ import annotations

import itertools
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

BOOKS = World("books")
MAIL = World("mail", permanent=True)
WORLDS = [BOOKS, MAIL]
INPUTS: dict[str, Any] = {"customer": "17", "amount": 80}
NUMBERS = itertools.count(1001)


@task.task
def write_invoice(customer: str, amount: int, number: int) -> str:
    key = f"invoice of {customer}"
    return BOOKS.effect(key, idempotency_key=f"invoice-{customer}", number=number, amount=amount)


@write_invoice.revert(failed=True)
def cancel_invoice(customer: str) -> None:
    BOOKS.undo(f"invoice of {customer}", missing_ok=True)


@task.task
def send(customer: str, number: int) -> None:
    MAIL.effect(f"invoice to {customer}", idempotency_key=f"mail-{customer}", number=number)


@task.workflow
def flow(steps: Steps, customer: str, amount: int) -> int:
    number = next(NUMBERS)
    steps.run(write_invoice, customer, amount, number)
    steps.run(send, customer, number)
    return number
