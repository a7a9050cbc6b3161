"""The flows that faults affect, and their expected results.

The name `<kind>-<width>-<number>` determines the flow, because a resuming process has only the
name.
"""

from __future__ import annotations

from typing import Any

from tests.chaos import tasks
from wbengine import retry, states
from wbengine.patterns import linear_flow, unordered_flow

KINDS = ("plain", "once", "undone")
#: More than the number of kills during a single task.
WAVES = 1000


def name(kind: str, width: int, number: str | int) -> str:
    return f"{kind}-{width}-{number}"


def parts(flow: str) -> list[str]:
    """Return the names of the tasks that may run in any order."""
    return [f"{flow}.{index}" for index in range(int(flow.split("-")[1]))]


def make(flow: str) -> Any:
    """Return a flow of one of three kinds.

    `plain`: idempotent tasks and their sum. `once`: tasks that fail with their worker, each with a
    retry that runs it again. `undone`: the last task fails, and the flow is reverted.
    """
    kind = flow.partition("-")[0]
    wide = unordered_flow.Flow(f"{flow}.wide")
    for part in parts(flow):
        if kind == "once":
            wide.add(_again(part))
        else:
            wide.add(tasks.Step(part, provides=part))
    result = linear_flow.Flow(flow).add(wide)
    if kind == "undone":
        return result.add(tasks.Break(f"{flow}.break"))
    total = f"{flow}.sum"
    return result.add(tasks.Sum(total, requires=parts(flow), provides=total))


def _again(part: str) -> Any:
    retried = linear_flow.Flow(f"{part}.again", retry=retry.Times(WAVES, f"{part}.waves"))
    return retried.add(tasks.Once(part, provides=part))


def store(seconds: float, long: float) -> dict[str, Any]:
    """Return the inputs of the flows."""
    return {"seconds": seconds, "long": long}


def end_of(flow: str) -> str:
    """Return the expected final state."""
    return states.REVERTED if flow.startswith("undone") else states.SUCCESS


def results(flow: str) -> dict[str, int]:
    """Return the expected result of each successful task."""
    if flow.startswith("undone"):
        return {}
    values = {part: tasks.value(part) for part in parts(flow)}
    values[f"{flow}.sum"] = sum(values.values())
    return values


def tasks_of(flow: str) -> list[str]:
    """Return the names of all tasks."""
    last = f"{flow}.break" if flow.startswith("undone") else f"{flow}.sum"
    return [*parts(flow), last]
