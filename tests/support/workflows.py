"""A workflow that other processes find by name: `tests.support.workflows:checkout`."""

from __future__ import annotations

import logging
from typing import Any

from wbengine import steps as of_workflow
from wbengine import task

LOG = logging.getLogger("tests.workflows")
LOG.setLevel(logging.INFO)


@task.task
def charge(total: int) -> str:
    LOG.info("charging %d", total)
    return f"charged {total}"


@task.workflow
def checkout(steps: of_workflow.Steps, total: int) -> list[Any]:
    payment = steps.run(charge, total)
    return [payment, steps.wait_for("approved") if total > 100 else None]
