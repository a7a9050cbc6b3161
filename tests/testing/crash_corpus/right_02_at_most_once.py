"""Transfer money with an old bank that has no idempotency keys, and book the transfer.

With `idempotent = False` no other worker repeats the transfer: a lost worker fails it. In the
process of the engine an interrupted task runs again, so `execute` first asks the bank. `revert`
receives a failure as `result` in these cases, ignores it, and asks the bank what there is to undo.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

BANK = World("bank")
BOOKS = World("books")
WORLDS = [BANK, BOOKS]
INPUTS: dict[str, Any] = {"number": "T-5", "amount": 250}
EXCEPTIONS = {"transfer": (ConnectionError,)}


class Transfer(task.Task):
    idempotent = False

    def execute(self, number: str, amount: int) -> str:
        key = f"transfer {number}"
        return "sent before" if BANK.has(key) else BANK.effect(key, amount=amount)

    def revert(self, number: str, result: Any) -> None:
        if BANK.has(f"transfer {number}"):
            BANK.undo(f"transfer {number}")


class Book(task.Task):
    idempotent = False

    def execute(self, number: str, amount: int) -> None:
        if not BOOKS.has(f"entry {number}"):
            BOOKS.effect(f"entry {number}", amount=amount)

    def revert(self, number: str) -> None:
        if BOOKS.has(f"entry {number}"):
            BOOKS.undo(f"entry {number}")


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("transfer").add(Transfer("transfer"), Book("book"))
