"""Move money from one bank to another and update the overview.

`transfer` has two effects. To be repeatable, it first asks whether it has run before, but the
answer is about the first effect only. If the process dies between the debit and the credit, the
next run sees the debit, returns, and the flow succeeds: the money has left one account and never
arrives at the other.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

SOURCE = World("source bank")
TARGET = World("target bank")
OVERVIEW = World("overview", permanent=True, repeatable=True)
WORLDS = [SOURCE, TARGET, OVERVIEW]
INPUTS: dict[str, Any] = {"number": "T-5", "amount": 250}


@task.task
def transfer(number: str, amount: int) -> str:
    if SOURCE.has(f"debit {number}"):
        return "done before"
    SOURCE.effect(f"debit {number}", amount=amount)
    TARGET.effect(f"credit {number}", amount=amount)
    return "done"


@transfer.revert(failed=True)
def transfer_back(number: str) -> None:
    TARGET.undo(f"credit {number}", missing_ok=True)
    SOURCE.undo(f"debit {number}", missing_ok=True)


@task.task
def update_overview(number: str, amount: int) -> None:
    OVERVIEW.effect(f"transfer {number}", amount=amount)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("transfer").add(transfer("transfer"), update_overview("overview"))
