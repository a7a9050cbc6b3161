"""Flows for the counts."""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow


class Nothing(task.Task):
    def execute(self) -> None:
        return None


class Next(task.Task):
    """Task that uses the result of the previous one."""

    def execute(self, x: int) -> int:
        return x + 1


def wide(tasks: int) -> Any:
    return unordered_flow.Flow("wide").add(*(Nothing(name=f"task-{n}") for n in range(tasks)))


def chain(tasks: int) -> Any:
    """Return a chain of tasks that requires an input `x0`."""
    tasks_of_chain = (
        Next(name=f"task-{n}", rebind=[f"x{n}"], provides=f"x{n + 1}") for n in range(tasks)
    )
    return linear_flow.Flow("chain").add(*tasks_of_chain)


@task.task
def following(x: int) -> int:
    return x + 1


def workflow(tasks: int) -> Any:
    """Return a workflow that executes steps one after the other."""

    @task.workflow
    def sequence(steps: Any, x0: int) -> int:
        for _ in range(tasks):
            x0 = steps.run(following, x=x0)
        return x0

    return sequence


def async_workflow(tasks: int) -> Any:
    """Return an `async` workflow that executes steps one after the other."""

    @task.workflow
    async def sequence(steps: Any, x0: int) -> int:
        for _ in range(tasks):
            x0 = await steps.run(following, x=x0)
        return x0

    return sequence
