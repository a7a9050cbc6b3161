"""Copy the new rows of a table and remember in a cursor up to which row they were copied.

The flow saves the cursor before the rows, and saving the cursor has no `revert`. If the load fails
or the flow is cancelled, the rows are removed but the cursor has moved. The next night starts
behind them: these rows never reach the warehouse, and no run reports an error.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

STATE = World("state")
WAREHOUSE = World("warehouse")
WORLDS = [STATE, WAREHOUSE]
INPUTS: dict[str, Any] = {"table": "orders", "first": 100}


@task.task(provides="rows")
def read_rows(first: int) -> list[int]:
    return list(range(first, first + 3))


@task.task
def save_cursor(table: str, rows: list[int]) -> None:
    cursor = f"{table} {max(rows)}"
    STATE.effect(f"cursor {cursor}", idempotency_key=cursor)


@task.task
def load(table: str, rows: list[int]) -> None:
    for row in rows:
        WAREHOUSE.effect(f"{table} {row}", idempotency_key=f"{table}-{row}")


@load.revert(failed=True)
def unload(table: str, rows: list[int]) -> None:
    for row in rows:
        WAREHOUSE.undo(f"{table} {row}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("copy").add(read_rows("read"), save_cursor("cursor"), load("load"))
