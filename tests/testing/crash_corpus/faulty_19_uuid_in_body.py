"""Charge a card with an idempotency key and open the account.

The key comes from `uuid.uuid4` in the function of the workflow. Each run of the function computes
another one. If the process dies during the charge, the recorded step has the old key and the new
call another: the run ends with `NonDeterministicWorkflow`, and a key that differs after each crash
protects nothing. The customer may have paid and has no account.
"""

from __future__ import annotations

import uuid
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

BANK = World("bank")
ACCOUNTS = World("accounts")
WORLDS = [BANK, ACCOUNTS]
INPUTS: dict[str, Any] = {"customer": "17", "amount": 20}


@task.task
def charge(customer: str, amount: int, key: str) -> str:
    return BANK.effect(f"fee of {customer}", idempotency_key=key, amount=amount)


@charge.revert(failed=True)
def refund(customer: str) -> None:
    BANK.undo(f"fee of {customer}", missing_ok=True)


@task.task
def open_account(customer: str) -> str:
    return ACCOUNTS.effect(f"account of {customer}", idempotency_key=f"account-{customer}")


@open_account.revert(failed=True)
def close_account(customer: str) -> None:
    ACCOUNTS.undo(f"account of {customer}", missing_ok=True)


def new_key() -> str:
    return str(uuid.uuid4())


@task.workflow
def flow(steps: Steps, customer: str, amount: int) -> str:
    steps.run(charge, customer, amount, new_key())
    return steps.run(open_account, customer)
