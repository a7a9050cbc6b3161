"""Start an export in another system, poll it until it is complete, and publish its file.

The other system refuses a second export of a table, so the workflow suppresses each failure of the
start, and the loop has no limit. If the start fails for another reason, no export exists: the
workflow polls without end, is never reported as failed, and blocks the exports of this table.
"""

from __future__ import annotations

import logging
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

LOG = logging.getLogger(__name__)
EXPORTS = World("exports")
CATALOGUE = World("catalogue")
WORLDS = [EXPORTS, CATALOGUE]
INPUTS: dict[str, Any] = {"table": "orders"}
EXCEPTIONS = {"start": (ConnectionError,)}


@task.task
def start(table: str) -> str:
    return EXPORTS.effect(f"export of {table}", idempotency_key=f"export-{table}")


@start.revert(failed=True)
def cancel(table: str) -> None:
    EXPORTS.undo(f"export of {table}", missing_ok=True)


@task.task
def is_complete(table: str) -> bool:
    return EXPORTS.has(f"export of {table}")


@task.task
def publish(table: str) -> str:
    return CATALOGUE.effect(f"file of {table}", idempotency_key=f"file-{table}")


@publish.revert(failed=True)
def withdraw(table: str) -> None:
    CATALOGUE.undo(f"file of {table}", missing_ok=True)


@task.workflow
def flow(steps: Steps, table: str) -> str:
    try:
        steps.run(start, table)
    except Exception as error:
        LOG.info("the export runs already: %s", error)
    while not steps.run(is_complete, table):
        steps.sleep(0.01)
    return steps.run(publish, table)
