"""Start an export in another system, poll it until it is complete, and publish its file.

The workflow sleeps with `steps.sleep` between two polls and gives up at a time that follows from
`steps.now()`. If it gives up, fails or is cancelled, the engine cancels the export. A poll changes
nothing, so it is retried. The catalogue is written by replacing an entry and needs no key.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

EXPORTS = World("exports")
CATALOGUE = World("catalogue", repeatable=True)
WORLDS = [EXPORTS, CATALOGUE]
INPUTS: dict[str, Any] = {"table": "orders", "patience": 600}
EXCEPTIONS = {"is_complete": (ConnectionError,)}


@task.task
def start(table: str) -> str:
    return EXPORTS.effect(f"export of {table}", idempotency_key=f"export-{table}")


@start.revert(failed=True)
def cancel(table: str) -> None:
    EXPORTS.undo(f"export of {table}", missing_ok=True)


@task.task(retries=5, backoff=0.01, retry_on=ConnectionError)
def is_complete(table: str, polls: int) -> bool:
    return polls > 1 and EXPORTS.has(f"export of {table}")


@task.task
def publish(table: str, job: str) -> str:
    return CATALOGUE.effect(f"file of {table}", job=job)


@publish.revert(failed=True)
def withdraw(table: str) -> None:
    CATALOGUE.undo(f"file of {table}", missing_ok=True)


@task.workflow
def flow(steps: Steps, table: str, patience: int) -> str:
    job = steps.run(start, table)
    end = steps.now() + dt.timedelta(seconds=patience)
    polls = 1
    while not steps.run(is_complete, table, polls):
        if steps.now() > end:
            raise TimeoutError(f"{job} is not complete")
        polls += 1
        steps.sleep(0.01)
    return steps.run(publish, table, job)
