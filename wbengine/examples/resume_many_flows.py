"""Several flows were left in the middle, each for another reason; a caretaker ends them all.

Four parcels are on their way, each by a flow that a process of its own runs, with the records of
all in one folder.  One arrives; the process of the second is killed; the third is suspended; the
address of the fourth is wrong, so that what was done for it is undone.  The caretaker knows nothing
but the folder.

Prints::

    collecting books
    carrying books
    delivering books
    collecting piano
    collecting roses
    carrying roses
    collecting vase
    carrying vase
    carrying vase back
    books SUCCESS, piano RUNNING, roses SUSPENDED, vase REVERTED
    carrying piano
    delivering piano
    delivering roses
    books SUCCESS, piano SUCCESS, roses SUCCESS, vase REVERTED
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from typing import Any

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

STREETS = {"books": "Mill Lane", "piano": "Elm Row", "roses": "High Street", "vase": "nowhere"}


class Collect(task.Task):
    def execute(self, parcel: str) -> None:
        print("collecting", parcel)


class Carry(task.Task):
    def execute(self, parcel: str) -> None:
        print("carrying", parcel)

    def revert(self, parcel: str) -> None:
        print("carrying", parcel, "back")


class Deliver(task.Task):
    def execute(self, parcel: str, street: str) -> None:
        if street == "nowhere":
            raise ValueError("there is no such street")
        print("delivering", parcel)


def way(parcel: str, street: str) -> linear_flow.Flow:
    """The factory: what it is given is kept, so that it makes the same flow again."""
    known = {"parcel": parcel, "street": street}
    steps = (kind(kind.__name__, inject=known) for kind in (Collect, Carry, Deliver))
    return linear_flow.Flow(parcel).add(*steps)


def send(parcel: str, folder: str, options: dict[str, Any]) -> None:
    """One process: its flow, until something happens."""
    with backends.backend("dir", path=folder) as backend:
        engine = engines.load_from_factory(
            "wbengine.examples.resume_many_flows.way", [parcel, STREETS[parcel]],
            book=models.LogBook(f"way of {parcel}"), backend=backend, **options,
        )  # fmt: skip

        def happen(state: str, details: dict[str, Any]) -> None:
            if (parcel, details["task_name"]) == ("piano", "Collect"):
                os.kill(os.getpid(), signal.SIGKILL)
            if (parcel, details["task_name"]) == ("roses", "Carry"):
                engine.suspend()

        engine.atom_notifier.register("SUCCESS", happen)
        with contextlib.suppress(ValueError):
            engine.run()


def report(backend: base.Backend) -> None:
    with backend.get_connection() as connection:
        found = [detail for book in connection.get_logbooks() for detail in book]
    print(", ".join(sorted(f"{detail.name} {detail.state}" for detail in found)))


def take_care(backend: base.Backend, options: dict[str, Any]) -> None:
    """Run on whatever is in no end state, and is not being run."""
    left = sorted(base.unfinished_flows(backend), key=lambda detail: detail.name)
    for detail in left:
        engines.load_from_detail(detail, backend=backend, **options).run()


def main() -> None:
    kinds = (_kinds.SERIAL, _kinds.THREADS)
    with _kinds.chosen(__doc__, kinds) as options, tempfile.TemporaryDirectory() as folder:
        for parcel in STREETS:
            process = multiprocessing.get_context("spawn").Process(
                target=send, args=(parcel, folder, options)
            )
            process.start()
            process.join()
        with backends.backend("dir", path=folder) as backend:
            report(backend)
            take_care(backend, options)
            report(backend)


if __name__ == "__main__":
    main()
