"""A workflow that other processes find by name: `tests.support.workflows:checkout`."""

from __future__ import annotations

from typing import Any

from wbengine import steps as of_workflow
from wbengine import task


@task.task
def charge(total: int) -> str:
    return f"charged {total}"


@task.workflow
def checkout(steps: of_workflow.Steps, total: int) -> list[Any]:
    payment = steps.run(charge, total)
    return [payment, steps.wait_for("approved") if total > 100 else None]
