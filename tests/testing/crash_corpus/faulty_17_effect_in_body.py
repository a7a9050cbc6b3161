"""Reserve a table, tell the kitchen and confirm the reservation.

The workflow calls the system of the kitchen itself instead of in a step. After each crash or
suspension the function is called again from its start, so the kitchen receives the same menu once
more for every run. If the reservation is cancelled, no `revert` takes the menu back.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

TABLES = World("tables")
KITCHEN = World("kitchen")
MAIL = World("mail", permanent=True)
WORLDS = [TABLES, KITCHEN, MAIL]
INPUTS: dict[str, Any] = {"guest": "Ann", "menu": "fish"}


@task.task
def reserve(guest: str) -> str:
    return TABLES.effect(f"table for {guest}", idempotency_key=f"table-{guest}")


@reserve.revert(failed=True)
def release(guest: str) -> None:
    TABLES.undo(f"table for {guest}", missing_ok=True)


@task.task
def confirm(guest: str) -> None:
    MAIL.effect(f"confirmation for {guest}", idempotency_key=f"confirmation-{guest}")


@task.workflow
def flow(steps: Steps, guest: str, menu: str) -> str:
    table = steps.run(reserve, guest)
    KITCHEN.effect(f"menu for {guest}", menu=menu)
    steps.run(confirm, guest)
    return table
