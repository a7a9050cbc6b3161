"""What the flows that are counted are made of."""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow


class Nothing(task.Task):
    def execute(self) -> None:
        return None


class Next(task.Task):
    """Is fed by the one before."""

    def execute(self, x: int) -> int:
        return x + 1


def wide(tasks: int) -> Any:
    return unordered_flow.Flow("wide").add(*(Nothing(name=f"task-{n}") for n in range(tasks)))


def chain(tasks: int) -> Any:
    """To be run with an `x0`."""
    made = (Next(name=f"task-{n}", rebind=[f"x{n}"], provides=f"x{n + 1}") for n in range(tasks))
    return linear_flow.Flow("chain").add(*made)
