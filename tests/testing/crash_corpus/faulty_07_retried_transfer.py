"""Pay out a prize, with retries because the bank is often slow, and send a letter.

A `ConnectionError` does not say whether the bank has executed the order. `pay_out` passes no
idempotency key, so each retry after a lost answer pays the prize again. `take_back` does not
run between the attempts, because they failed.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
LETTERS = World("letters", permanent=True)
WORLDS = [BANK, LETTERS]
INPUTS: dict[str, Any] = {"winner": "Bob", "amount": 5000}
EXCEPTIONS = {"pay out": (ConnectionError,)}


@task.task(retries=3, backoff=0.01, retry_on=ConnectionError)
def pay_out(winner: str, amount: int) -> str:
    return BANK.effect(f"prize {winner}", amount=amount)


@pay_out.revert
def take_back(winner: str) -> None:
    BANK.undo(f"prize {winner}", missing_ok=True)


@task.task
def write_letter(winner: str) -> None:
    LETTERS.effect(f"letter {winner}", idempotency_key=f"letter-{winner}")


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("prize").add(pay_out("pay out"), write_letter("letter"))
