"""Flows that conductors run, and a program that is a conductor.

    python -m tests.support.conducted URI FOLDER CLAIM_SECONDS [BOARD]

The program runs the jobs of the board in that database, or of another BOARD, until it is killed. It
records the jobs in FOLDER/consumed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import audited_tasks, declining
from wbengine import engines, exceptions, task
from wbengine.conductors import backends as conductors
from wbengine.conductors.backends import impl_blocking
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

#: Events by name: tasks of this process wait for a gate, and set an event when they begin.
GATES: dict[str, threading.Event] = {}
BEGUN: dict[str, threading.Event] = {}
#: Exceptions that end a flow once, by place: in its 'task', or in its 'factory'.
RAISED_ONCE: dict[str, BaseException] = {}


class Noted(task.Task):
    """Records that it ran."""

    def execute(self, folder: str, mark: str) -> None:
        note(folder, f"{mark} {self.name}")

    def revert(self, folder: str, mark: str, **_: Any) -> None:
        note(folder, f"{mark} undone {self.name}")


class Gated(Noted):
    """Reports that it began, and waits for its gate."""

    def execute(self, folder: str, mark: str) -> None:
        super().execute(folder, mark)
        BEGUN[mark].set()
        assert GATES[mark].wait(60)


class Interrupted(Noted):
    def execute(self, folder: str, mark: str) -> None:
        raise_once("task")
        super().execute(folder, mark)


class Failing(Noted):
    def execute(self, folder: str, mark: str, kind: str) -> None:
        super().execute(folder, mark)
        raise {"value": ValueError, "execution": exceptions.ExecutionFailure}[kind]("oops")


def note(folder: str, line: str, name: str = "notes") -> None:
    """Append a line to a file. A single write survives the end of the process."""
    file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def notes(folder: Path, name: str = "notes") -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def check_runs(folder: Path, flows: int) -> None:
    """Check that this many `audited` flows ran, each in order.

    A task begins after the result of its predecessor is saved. So no task runs again after a later
    one began.
    """
    runs: dict[str, list[int]] = {}
    for line in notes(folder, "runs"):
        mark, _, number = line.partition(" ")[0].partition("/")
        runs.setdefault(mark, []).append(int(number))
    assert len(runs) == flows
    for mark, numbers in runs.items():
        assert numbers == sorted(numbers) and set(numbers) == {0, 1, 2, 3}, (mark, numbers)


class Greet(task.Task):
    default_provides = "greeting"

    def execute(self, name: str) -> str:
        return f"hello {name}"


def greeting() -> Any:
    return linear_flow.Flow("greeting").add(Greet())


GREETING = greeting()


@contextlib.contextmanager
def running(conductor: Any) -> Iterator[None]:
    """Run a conductor, or the service of `wbengine serve`, in a thread, and stop it at the end."""
    thread = threading.Thread(target=conductor.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        conductor.stop()
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def conducting(store: base.Backend) -> Iterator[None]:
    """Run a conductor of the board in a database during a `with` block."""
    with (
        boards.backend("b", "sql", persistence=store) as board,
        running(conductors.fetch("nonblocking", "c", board, persistence=store)),
    ):
        yield


def plain() -> Any:
    return linear_flow.Flow("plain").add(Noted("a"), Noted("b"))


def gated() -> Any:
    return linear_flow.Flow("gated").add(Noted("before"), Gated("gate"), Noted("after"))


def interrupted() -> Any:
    raise_once("factory")
    return linear_flow.Flow("interrupted").add(Noted("a"), Interrupted("b"))


def raise_once(where: str) -> None:
    if where in RAISED_ONCE:
        raise RAISED_ONCE.pop(where)


def slowly_made() -> Any:
    """Wait like a `Gated` task if there is a gate 'factory'."""
    if "factory" in GATES:
        BEGUN["factory"].set()
        assert GATES["factory"].wait(60)
    return plain()


def failing() -> Any:
    return linear_flow.Flow("failing").add(Noted("a"), Failing("fails"))


def declined() -> Any:
    return linear_flow.Flow("declined").add(declining.charge("charge"))


@task.workflow
def declined_step(steps: Any, kind: str) -> None:
    steps.run(declining.charge, kind)


@task.workflow
def declined_cause(steps: Any, kind: str) -> None:
    try:
        steps.run(declining.charge, kind)
    except Exception as error:
        raise RuntimeError("order failed") from error


def gated_failing() -> Any:
    return linear_flow.Flow("gated failing").add(Gated("gate"), Failing("fails"))


def audited(mark: str) -> Any:
    """Return a flow of four sequential tasks whose names contain the name of the flow."""
    return linear_flow.Flow("audited").add(
        *(audited_tasks.Again(f"{mark}/{number}", provides=f"v{number}") for number in range(4))
    )


def post(
    board: jobs.JobBoard,
    store: base.Backend,
    factory: Any,
    *args: Any,
    inputs: dict[str, Any] | None = None,
    priority: str = "normal",
    more: dict[str, Any] | None = None,
) -> tuple[jobs.Job, str]:
    """Store a flow and post its job. Return the job and the uuid of the flow."""
    book = models.LogBook("book")
    engine = engines.load_from_factory(factory, args, inputs=inputs, book=book, backend=store)
    uuid = engine.storage.flow_uuid
    job = board.post(
        factory.__name__, book, details={"flow_uuid": uuid, **(more or {})}, priority=priority
    )
    return job, uuid


def main(uri: str, folder: str, seconds: str, where: str = "sql") -> None:
    class Conductor(impl_blocking.BlockingConductor):
        CLAIM_SECONDS = float(seconds)

    with backends.backend(uri) as store, boards.backend("b", where, persistence=store) as board:
        conductor = Conductor("conductor", board, persistence=store)
        conductor.notifier.register(
            "job_consumed",
            lambda event, details: note(folder, details["job"].uuid, "consumed"),
        )
        note(folder, str(os.getpid()), "conductors")
        conductor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
