"""Copy the new rows of a table into a search index, then remember how far they were copied.

Writing a row replaces the row of the same number. It can be repeated, and needs no undo if the flow
fails later: the next run writes the row again. The cursor moves only after all rows are written.
The time of each write is a result that differs in each run, but no effect depends on it.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

INDEX = World("index", permanent=True, repeatable=True)
STATE = World("state")
WORLDS = [INDEX, STATE]
INPUTS: dict[str, Any] = {"table": "orders", "first": 100}
EXCEPTIONS = {"write": (ConnectionError,)}


@task.task(provides="rows")
def read_rows(first: int) -> list[int]:
    return list(range(first, first + 3))


@task.task(idempotent=True, retries=2, backoff=0.01, retry_on=ConnectionError)
def write(table: str, row: int) -> str:
    INDEX.effect(f"{table} {row}", row=row)
    return dt.datetime.now(dt.UTC).isoformat()


@task.task(idempotent=True)
def save_cursor(table: str, rows: list[int], times: list[str]) -> str:
    STATE.effect(f"cursor {table} {max(rows)}", idempotency_key=f"{table}-{max(rows)}")
    return max(times)


@save_cursor.revert(failed=True)
def set_back_cursor(table: str, rows: list[int]) -> None:
    STATE.undo(f"cursor {table} {max(rows)}", missing_ok=True)


def flow() -> linear_flow.Flow:
    writes = task.Map(write("write"), over="rows", item="row", provides="times")
    return linear_flow.Flow("copy").add(read_rows("read"), writes, save_cursor("save cursor"))
