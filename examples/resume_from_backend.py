"""The process that runs a flow is killed; another one resumes the flow from its records.

A house is moved room by room. The records are in a folder. The first engine runs in a separate
process, which receives a `kill -9` after two rooms. The second engine receives only the folder: it
finds the unfinished flow, creates it again with the recorded factory, and runs the remaining tasks.

Prints::

    packing kitchen
    packing attic
    the process ended with signal 9
    moving is RUNNING, with rooms done: attic, kitchen
    a new engine
    packing cellar
    moving is SUCCESS, with rooms done: attic, cellar, kitchen
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

ROOMS = ["kitchen", "attic", "cellar"]


class Pack(task.Task):
    def execute(self, room: str) -> int:
        print("packing", room)
        return len(room)


def moving(rooms: list[str]) -> linear_flow.Flow:
    """Create the flow. Each call must create the same flow with the same names."""
    return linear_flow.Flow("moving").add(*(Pack(room, inject={"room": room}) for room in rooms))


def first_half(folder: str, options: dict[str, Any]) -> None:
    """Run until this process is killed; `finally` blocks and handlers do not run then."""
    with backends.backend("dir", path=folder) as backend:
        # The record contains the factory's name, so the factory must be importable under it later.
        engine = engines.load_from_factory(
            "examples.resume_from_backend.moving", [ROOMS],
            book=models.LogBook("moves"), backend=backend, **options,
        )  # fmt: skip

        def interfere(state: str, details: dict[str, Any]) -> None:
            if details["task_name"] == "attic":
                os.kill(os.getpid(), signal.SIGKILL)

        engine.atom_notifier.register("SUCCESS", interfere)
        engine.run()


def second_half(folder: str, options: dict[str, Any]) -> None:
    with backends.backend("dir", path=folder) as backend:
        (unfinished,) = base.unfinished_flows(backend)
        report(unfinished)
        print("a new engine")
        engine = engines.load_from_detail(unfinished, backend=backend, **options)
        engine.run()
        with backend.get_connection() as connection:
            report(connection.get_flow_details(unfinished.uuid))


def report(record: models.FlowDetail) -> None:
    packed = sorted(atom.name for atom in record if atom.name in ROOMS and atom.state == "SUCCESS")
    print(f"{record.name} is {record.state}, with rooms done: {', '.join(packed)}")


def main() -> None:
    with kinds.chosen(__doc__, kinds.ALL[:3]) as options, tempfile.TemporaryDirectory() as folder:
        child = multiprocessing.get_context("spawn").Process(
            target=first_half, args=(folder, options)
        )
        child.start()
        child.join()
        print("the process ended with signal", -(child.exitcode or 0))
        second_half(folder, options)


if __name__ == "__main__":
    main()
