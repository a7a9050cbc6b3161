"""Pay a salary with retries and book it.

`pay` passes `self.request.id` as idempotency key. That id is equal for the copies of one request,
but each retry is another request. The bank sees a new key and pays the salary again.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
BOOKS = World("books")
WORLDS = [BANK, BOOKS]
INPUTS: dict[str, Any] = {"employee": "Eve", "month": "2026-11"}
EXCEPTIONS = {"pay": (ConnectionError,)}


@task.task(idempotent=True, retries=2, backoff=0.01, retry_on=ConnectionError)
def pay(self: task.Task, employee: str, month: str) -> str:
    assert self.request is not None
    return BANK.effect(f"salary {employee} {month}", idempotency_key=self.request.id)


@pay.revert
def take_back(employee: str, month: str) -> None:
    BANK.undo(f"salary {employee} {month}", missing_ok=True)


@task.task(idempotent=True)
def book(employee: str, month: str) -> str:
    return BOOKS.effect(f"salary {employee} {month}", idempotency_key=f"{employee}-{month}")


@book.revert(failed=True)
def remove_entry(employee: str, month: str) -> None:
    BOOKS.undo(f"salary {employee} {month}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("salary").add(pay("pay"), book("book"))
