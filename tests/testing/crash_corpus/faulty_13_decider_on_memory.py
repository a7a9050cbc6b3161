"""Assess a loan and open a file for it, then pay it out, after a review if its risk is high.

The decider does not read the result of the assessment, but a variable of the module that the task
has set. If the process dies after the assessment, or a worker has run it, the engine has the stored
result but not the variable. The decider sees no risk, and a risky loan is paid out without review.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import graph_flow
from wbengine.testing import World

FILES = World("files", permanent=True, repeatable=True)
REVIEWS = World("reviews", permanent=True)
BANK = World("bank")
WORLDS = [FILES, REVIEWS, BANK]
INPUTS: dict[str, Any] = {"loan": "L-3", "amount": 90_000}
RISKS: dict[str, str] = {}


@task.task
def assess(amount: int) -> str:
    RISKS["latest"] = "high" if amount > 50_000 else "low"
    return RISKS["latest"]


@task.task
def open_file(loan: str) -> None:
    FILES.effect(f"file {loan}")


@task.task
def review(loan: str) -> None:
    REVIEWS.effect(f"review {loan}", idempotency_key=f"review-{loan}")


@task.task
def pay_out(loan: str, amount: int) -> str:
    return BANK.effect(f"loan {loan}", idempotency_key=f"loan-{loan}", amount=amount)


@pay_out.revert(failed=True)
def take_back(loan: str) -> None:
    BANK.undo(f"loan {loan}", missing_ok=True)


def is_risky(history: dict[str, Any]) -> bool:
    return RISKS.get("latest") == "high"


def flow() -> graph_flow.Flow:
    assessment, file = assess("assess"), open_file("open file")
    check, payment = review("review"), pay_out("pay out")
    loan = graph_flow.Flow("loan").add(assessment, file, check, payment).link(assessment, file)
    loan.link(file, check, decider=is_risky, decider_depth="atom")
    return loan.link(check, payment)
