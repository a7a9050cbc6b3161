"""Tasks whose runs are recorded and that wait for gates, flows of them, and an engine in another
process that kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from wbengine import engines, task
from wbengine._concurrency import crash_points
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models
from wbengine.steps import AsyncSteps, Steps

BOOK = "book"


def note(folder: str, what: str) -> None:
    """Record a run in a file that survives all processes. A single write keeps lines apart."""
    descriptor = os.open(f"{folder}/runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what}\n".encode())
    os.close(descriptor)


def runs(folder: Path) -> list[str]:
    path = folder / "runs"
    return path.read_text().split() if path.exists() else []


def wait_at(folder: str, gate: str) -> None:
    while not os.path.exists(f"{folder}/{gate}"):
        time.sleep(0.005)


class Gated(task.Task):
    """Runs until its gate is open; each action has its own gate."""

    default_provides = "gated"

    def execute(self, folder: str) -> str:
        note(folder, f"execute-{self.name}")
        wait_at(folder, "gate-execute")
        return f"done-{self.name}"

    def revert(self, folder: str, result: Any, flow_failures: Any) -> str:
        note(folder, f"revert-{self.name}")
        wait_at(folder, "gate-revert")
        return f"undone-{result}"


class Repeatable(Gated):
    idempotent = True


class Plain(task.Task):
    def execute(self, folder: str) -> str:
        note(folder, f"execute-{self.name}")
        return f"done-{self.name}"


class Fails(task.Task):
    def execute(self) -> None:
        raise RuntimeError("no")


class Item(task.Task):
    def execute(self, item: int, folder: str) -> int:
        note(folder, f"item-{item}")
        if item >= 2:
            wait_at(folder, "gate-execute")
        return item * 10


class Spoiler(task.Task):
    """The first item fails when all items have begun; the others continue."""

    def execute(self, item: int, folder: str) -> None:
        note(folder, f"item-{item}")
        if item:
            wait_at(folder, "gate-execute")
            return
        while len(runs(Path(folder))) < 6:
            time.sleep(0.005)
        raise RuntimeError("no")

    def revert(self, item: int, folder: str, **rest: Any) -> None:
        note(folder, f"undone-{item}")


@task.task
def add(number: int, folder: str) -> int:
    note(folder, f"execute-{number}")
    return number + 1


@add.revert
def subtract(number: int, folder: str) -> None:
    note(folder, f"revert-{number}")
    if number == 1:
        wait_at(folder, "gate-revert")


@task.task(retries=2)
def fail(folder: str) -> None:
    note(folder, "execute-fail")
    raise RuntimeError("no")


@fail.revert(failed=True)
def undo_fail(folder: str) -> None:
    note(folder, "revert-fail")


@task.workflow
async def stepping(steps: AsyncSteps, folder: str, items: list[int]) -> list[int]:
    number = 0
    for _ in range(3):
        number = await steps.run(add, number, folder)
    done = await steps.map(Item, items, max_in_flight=4, folder=folder)
    return [*done, await steps.run(add, number, folder)]


@task.workflow
def stepping_back(steps: Steps, folder: str, items: list[int]) -> None:
    number = 0
    for _ in range(4):
        number = steps.run(add, number, folder)
    steps.run(Fails)


@task.workflow
def retrying(steps: Steps, folder: str, items: list[int]) -> int:
    try:
        steps.run(fail, folder)
    except RuntimeError:
        return steps.run(add, 0, folder)
    return 0


def gated() -> Any:
    return linear_flow.Flow("f").add(Gated("a"), Plain("b", provides="b"))


def repeatable() -> Any:
    return linear_flow.Flow("f").add(Repeatable("a"), Plain("b", provides="b"))


def wide() -> Any:
    return unordered_flow.Flow("f").add(*(Plain(f"p{n}", provides=f"p{n}") for n in range(6)))


def reverting() -> Any:
    return linear_flow.Flow("f").add(Gated("a"), Fails("x"))


def mapping() -> Any:
    items = task.Map(Item("i"), name="m", provides="m", max_in_flight=4)
    return linear_flow.Flow("f").add(items)


def spoiling() -> Any:
    return linear_flow.Flow("f").add(task.Map(Spoiler("s"), name="m"))


def backend_in(folder: Path) -> Any:
    backend = backends.fetch({"connection": "dir", "path": str(folder / "store")})
    backend.get_connection().upgrade()
    return backend


def engine_of(flow: str, folder: Path, **options: Any) -> Any:
    """Return a new engine for the stored flow, or for a new flow if the store is empty."""
    backend = backend_in(folder)
    connection = backend.get_connection()
    details = [detail for book in connection.get_logbooks() for detail in book]
    if not details:
        book = models.LogBook(BOOK)
        detail = models.FlowDetail("f")
        book.add(detail)
        connection.save_logbook(book)
        details = [detail]
    return engines.load(
        globals()[flow](),
        flow_detail=details[0],
        backend=backend,
        store={"folder": str(folder), "items": list(range(6))},
        engine="worker-based",
        **{"url": f"filesystem://{folder / 'broker'}", **options},
    )


def dies_at(point: str, hit: int) -> None:
    """Kill this process when it reaches a crash point for the `hit`-th time."""
    left = hit

    def count(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.install(count)


def main(flow: str, folder: str, point: str, hit: str, *options: str) -> None:
    loaded = engine_of(flow, Path(folder), **dict(option.split("=", 1) for option in options))
    if point:
        dies_at(point, int(hit))
    try:
        loaded.run()
    except RuntimeError:
        pass


if __name__ == "__main__":
    # Workers find the tasks under this module name.
    from tests.support import resuming_tasks

    resuming_tasks.main(*sys.argv[1:])
