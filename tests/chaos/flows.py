"""The flows that faults happen to, and what must have become of them in the end.

Each is always made alike from its name, `<kind>-<width>-<number>`, as whoever resumes it has only
that.
"""

from __future__ import annotations

from typing import Any

from tests.chaos import tasks
from wbengine import retry, states
from wbengine.patterns import linear_flow, unordered_flow

KINDS = ("plain", "once", "undone")
#: More than anybody is killed in the middle of one task.
WAVES = 1000


def name(kind: str, width: int, number: str | int) -> str:
    return f"{kind}-{width}-{number}"


def parts(flow: str) -> list[str]:
    """The names of its tasks that may run in any order."""
    return [f"{flow}.{index}" for index in range(int(flow.split("-")[1]))]


def make(flow: str) -> Any:
    """`plain`: idempotent tasks, then their sum; `once`: those of each part fail with their worker,
    and a retry around each runs it again; `undone`: fails when all is done, and is reverted.
    """
    kind = flow.partition("-")[0]
    wide = unordered_flow.Flow(f"{flow}.wide")
    for part in parts(flow):
        if kind == "once":
            wide.add(_again(part))
        else:
            wide.add(tasks.Step(part, provides=part))
    made = linear_flow.Flow(flow).add(wide)
    if kind == "undone":
        return made.add(tasks.Break(f"{flow}.break"))
    total = f"{flow}.sum"
    return made.add(tasks.Sum(total, requires=parts(flow), provides=total))


def _again(part: str) -> Any:
    made = linear_flow.Flow(f"{part}.again", retry=retry.Times(WAVES, f"{part}.waves"))
    return made.add(tasks.Once(part, provides=part))


def store(seconds: float, long: float) -> dict[str, Any]:
    """What the flows are given."""
    return {"seconds": seconds, "long": long}


def end_of(flow: str) -> str:
    """The state in which it ends."""
    return states.REVERTED if flow.startswith("undone") else states.SUCCESS


def results(flow: str) -> dict[str, int]:
    """The result of each task that ends well."""
    if flow.startswith("undone"):
        return {}
    found = {part: tasks.value(part) for part in parts(flow)}
    found[f"{flow}.sum"] = sum(found.values())
    return found


def tasks_of(flow: str) -> list[str]:
    """The names of all of its tasks."""
    last = f"{flow}.break" if flow.startswith("undone") else f"{flow}.sum"
    return [*parts(flow), last]
