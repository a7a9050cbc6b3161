"""Pay out a prize, with retries because the bank is often slow, and send a letter.

A `revert` of `pay_out` that handles failures would run before each retry, and the bank does not
execute a key again after it was taken back. So the retries use one key without a `revert`, and the
step before them, which has no effect itself, takes the prize back if the workflow fails.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

BANK = World("bank")
LETTERS = World("letters", permanent=True)
WORLDS = [BANK, LETTERS]
INPUTS: dict[str, Any] = {"winner": "Bob", "amount": 5000}
EXCEPTIONS = {"pay_out": (ConnectionError,)}


@task.task
def prepare(winner: str) -> str:
    return f"prize of {winner}"


@prepare.revert
def take_back(winner: str) -> None:
    BANK.undo(f"prize of {winner}", missing_ok=True)


@task.task(idempotent=True, retries=3, backoff=0.01, retry_on=ConnectionError)
def pay_out(prize: str, amount: int, key: str) -> str:
    return BANK.effect(prize, idempotency_key=key, amount=amount)


@task.task
def write_letter(winner: str, payment: str) -> None:
    LETTERS.effect(f"letter to {winner}", idempotency_key=f"letter-{winner}", payment=payment)


@task.workflow
def flow(steps: Steps, winner: str, amount: int) -> str:
    key = str(steps.uuid4())
    prize = steps.run(prepare, winner)
    payment = steps.run(pay_out, prize, amount, key)
    steps.run(write_letter, winner, payment)
    return payment
