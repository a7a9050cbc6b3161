"""Let an agent order office supplies: a model selects a tool, the tool runs, until the goal is met.

One step asks the model, another one runs the tool. The answer of the model is stored before the
tool starts, so a repeated execution of the tool has the same id of the call as idempotency key.
Only the question to the model, which has no effect, is retried. The number of turns is limited.
"""

from __future__ import annotations

import uuid
from typing import Any

from wbengine import task
from wbengine.steps import AsyncSteps
from wbengine.testing import World

SHOP = World("shop")
MAIL = World("mail", permanent=True)
WORLDS = [SHOP, MAIL]
INPUTS: dict[str, Any] = {"goal": "paper and ink"}
EXCEPTIONS = {"ask_model": (ConnectionError,)}


@task.task(idempotent=True, retries=3, backoff=0.01)
async def ask_model(goal: str, done: list[str]) -> dict[str, str] | None:
    missing = [item for item in goal.split(" and ") if item not in done]
    return {"id": str(uuid.uuid4()), "item": missing[0]} if missing else None


@task.task(idempotent=True)
async def order(call: dict[str, str]) -> str:
    return SHOP.effect(f"order of {call['item']}", idempotency_key=call["id"])


@order.revert(failed=True)
async def cancel_order(call: dict[str, str]) -> None:
    SHOP.undo(f"order of {call['item']}", missing_ok=True)


@task.task(idempotent=True)
async def report(goal: str, orders: int) -> None:
    MAIL.effect(f"report on {goal}", idempotency_key=f"report-{goal}", orders=orders)


@task.workflow
async def flow(steps: AsyncSteps, goal: str) -> list[str]:
    done: list[str] = []
    for _ in range(5):
        call = await steps.run(ask_model, goal, list(done))
        if call is None:
            break
        await steps.run(order, call)
        done.append(call["item"])
    else:
        raise RuntimeError(f"the agent needs too many turns for {goal!r}")
    await steps.run(report, goal, len(done))
    return done
