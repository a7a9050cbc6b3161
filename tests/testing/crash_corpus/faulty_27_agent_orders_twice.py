"""Let an agent order office supplies: a model selects a tool, the tool runs, until the goal is met.

One step asks the model and runs the tool that it selects, with the id of the call as idempotency
key. If the process dies after the order and before the result of the step is stored, the step runs
again. The model is asked again and gives its call a new id, so the shop accepts a second order.
"""

from __future__ import annotations

import uuid
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

SHOP = World("shop")
MAIL = World("mail", permanent=True)
WORLDS = [SHOP, MAIL]
INPUTS: dict[str, Any] = {"goal": "paper and ink"}


def ask_model(goal: str, done: list[str]) -> dict[str, str] | None:
    """Return the next call of a tool, or None if the goal is met."""
    missing = [item for item in goal.split(" and ") if item not in done]
    return {"id": str(uuid.uuid4()), "item": missing[0]} if missing else None


@task.task
def take_turn(goal: str, done: list[str]) -> str | None:
    call = ask_model(goal, done)
    if call is None:
        return None
    SHOP.effect(f"order of {call['item']}", idempotency_key=call["id"])
    return call["item"]


@take_turn.revert(failed=True)
def cancel_order(goal: str, done: list[str]) -> None:
    for item in goal.split(" and "):
        if item not in done:
            SHOP.undo(f"order of {item}", missing_ok=True)


@task.task
def report(goal: str) -> None:
    MAIL.effect(f"report on {goal}", idempotency_key=f"report-{goal}")


@task.workflow
def flow(steps: Steps, goal: str) -> list[str]:
    done: list[str] = []
    while len(done) < 5 and (item := steps.run(take_turn, goal, list(done))) is not None:
        done.append(item)
    steps.run(report, goal)
    return done
