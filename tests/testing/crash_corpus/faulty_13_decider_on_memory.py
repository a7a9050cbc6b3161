"""Pay out a loan, after a review if its risk is high.

The deciders do not read the result of the assessment, but a dictionary of the module which the task
has filled. If the process dies after the assessment, the next one has the stored result but an
empty dictionary. Its deciders see no risk, and a risky loan is paid out without the review.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import graph_flow
from wbengine.testing import World

BANK = World("bank")
REVIEWS = World("reviews", permanent=True)
WORLDS = [BANK, REVIEWS]
INPUTS: dict[str, Any] = {"loan": "L-3", "amount": 90_000}
RISKS: dict[str, str] = {}


@task.task
def assess(loan: str, amount: int) -> str:
    RISKS["latest"] = "high" if amount > 50_000 else "low"
    return RISKS["latest"]


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
    assessment, check, payment = assess("assess"), review("review"), pay_out("pay out")
    loan = graph_flow.Flow("loan").add(assessment, check, payment)
    loan.link(assessment, check, decider=is_risky, decider_depth="atom")
    return loan.link(check, payment)
