"""The process that runs a flow is killed half-way; another one goes on from what was kept.

A house is moved room by room.  The records are in a folder, and the engine that writes them is in
a process of its own, which gets a `kill -9` when two rooms are packed.  All that the second engine
knows is the folder: it finds the flow that did not end, makes it again with the noted factory, and
does the rest only.

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
    """The factory: it must make the same flow each time, with the same names."""
    return linear_flow.Flow("moving").add(*(Pack(room, inject={"room": room}) for room in rooms))


def first_half(folder: str, options: dict[str, Any]) -> None:
    """Run until this process is killed, which no `finally` and no handler will ever notice."""
    with backends.backend("dir", path=folder) as backend:
        # The factory is noted by name, so it must be found under that name later.
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
        (found,) = base.unfinished_flows(backend)
        report(found)
        print("a new engine")
        engine = engines.load_from_detail(found, backend=backend, **options)
        engine.run()
        with backend.get_connection() as connection:
            report(connection.get_flow_details(found.uuid))


def report(found: models.FlowDetail) -> None:
    done = sorted(atom.name for atom in found if atom.name in ROOMS and atom.state == "SUCCESS")
    print(f"{found.name} is {found.state}, with rooms done: {', '.join(done)}")


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
