"""Charge the first card that the bank accepts, then open the account.

Each try is a scope: if it fails, also after the bank has booked the amount, the scope refunds the
charge before the next card is tried. The key comes from `steps.uuid4()`: a replay repeats it, and
each card has another one. If the bank refuses all cards, the workflow fails.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

BANK = World("bank")
ACCOUNTS = World("accounts")
WORLDS = [BANK, ACCOUNTS]
INPUTS: dict[str, Any] = {"customer": "17", "cards": ["credit", "debit"]}


class CardDeclined(Exception):
    """The bank refuses the card."""


EXCEPTIONS = {"charge": (CardDeclined,)}


@task.task
def charge(customer: str, card: str, key: str) -> str:
    return BANK.effect(f"{card} card of {customer}", idempotency_key=key)


@charge.revert(failed=True)
def refund(customer: str, card: str) -> None:
    BANK.undo(f"{card} card of {customer}", missing_ok=True)


@task.task
def open_account(customer: str, payment: str) -> str:
    return ACCOUNTS.effect(f"account of {customer}", idempotency_key=payment)


@open_account.revert(failed=True)
def close_account(customer: str) -> None:
    ACCOUNTS.undo(f"account of {customer}", missing_ok=True)


@task.workflow
def flow(steps: Steps, customer: str, cards: list[str]) -> str:
    for card in cards:
        try:
            with steps.scope():
                payment = steps.run(charge, customer, card, str(steps.uuid4()))
        except CardDeclined:
            continue
        return steps.run(open_account, customer, payment)
    raise CardDeclined("the bank accepts no card")
