"""Charge a card and book a courier; if the courier fails, try both again.

A bank does not execute a key again after a refund, so each try needs a new key, but a repeated
execution within a try needs the same one. A task creates the key: its result is stored before
the charge starts, differs in each try and each run, and is not an effect.
"""

from __future__ import annotations

import uuid
from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
COURIER = World("courier")
WORLDS = [BANK, COURIER]
INPUTS: dict[str, Any] = {"order": "17", "amount": 80}
EXCEPTIONS = {"charge": (ConnectionError,), "book courier": (ConnectionError,)}


@task.task(provides="key")
def create_key() -> str:
    return str(uuid.uuid4())


@task.task
def charge(order: str, amount: int, key: str) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=key, amount=amount)


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task
def book_courier(order: str, key: str) -> str:
    return COURIER.effect(f"trip {order}", idempotency_key=key)


@book_courier.revert(failed=True)
def cancel_courier(order: str) -> None:
    COURIER.undo(f"trip {order}", missing_ok=True)


def flow() -> linear_flow.Flow:
    attempts = retry.Times(3, backoff=0.01, retry_on=ConnectionError)
    members = create_key("key"), charge("charge"), book_courier("book courier")
    return linear_flow.Flow("delivery", retry=attempts).add(*members)
