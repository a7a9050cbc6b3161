"""Remove a former employee from all systems, each of them once.

The workflow removes duplicates with a set and iterates over it. The order of a set of texts is
another one in each process. If the process dies after the first steps, the next process calls other
steps at these positions: `NonDeterministicWorkflow`. The employee keeps access to the rest.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

DIRECTORY = World("directory", permanent=True, repeatable=True)
WORLDS = [DIRECTORY]
INPUTS: dict[str, Any] = {
    "employee": "eve",
    "systems": ["mail", "wiki", "payroll", "mail", "build", "vpn", "wiki"],
}


@task.task
def lock(system: str, employee: str) -> str:
    return DIRECTORY.effect(f"lock of {employee} in {system}")


@task.workflow
def flow(steps: Steps, employee: str, systems: list[str]) -> int:
    count = 0
    for system in set(systems):
        steps.run(lock, system, employee)
        count += 1
    return count
