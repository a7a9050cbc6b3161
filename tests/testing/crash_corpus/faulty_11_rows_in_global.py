"""Extract rows and load them into the warehouse, then mark the day as complete.

`extract` puts the rows into a list of the module, and `load` reads this list. A result survives
the process, a list of the module does not: if another process or another worker runs `load`, the
list is empty. Nothing is loaded, the day is marked as complete, and reports are wrong.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

WAREHOUSE = World("warehouse")
CALENDAR = World("calendar")
WORLDS = [WAREHOUSE, CALENDAR]
INPUTS: dict[str, Any] = {"day": "2026-11-29"}
ROWS: list[str] = []


@task.task
def extract(day: str) -> None:
    ROWS[:] = [f"{day}-1", f"{day}-2"]


@task.task
def load(day: str) -> None:
    for row in ROWS:
        WAREHOUSE.effect(f"row {row}", idempotency_key=row, day=day)
    ROWS.clear()


@load.revert(failed=True)
def unload(day: str) -> None:
    for number in (1, 2):
        WAREHOUSE.undo(f"row {day}-{number}", missing_ok=True)


@task.task
def complete(day: str) -> None:
    CALENDAR.effect(f"complete {day}", idempotency_key=f"complete-{day}")


@complete.revert(failed=True)
def reopen(day: str) -> None:
    CALENDAR.undo(f"complete {day}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("day").add(extract("extract"), load("load"), complete("complete"))
