"""Orders are handed over: their flows are stored, and posted as jobs that a conductor runs.

The most urgent job runs first. Here the conductor is a thread; in production it is a separate
program on any host with access to the database, and there may be several.

Prints::

    posted: book, UNCLAIMED
    posted: chair, UNCLAIMED
    posted: medicine, UNCLAIMED
    packing medicine
    packing book
    packing chair
    all jobs are done: True
    the first flow: SUCCESS
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from typing import Any

from wbengine import engines, task
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models


class Pack(task.Task):
    def execute(self, item: str) -> None:
        print("packing", item, flush=True)


def order() -> Any:
    return linear_flow.Flow("order").add(Pack())


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = stack.enter_context(backends.backend(f"sqlite:///{folder}/orders.db"))
        board = stack.enter_context(boards.backend("orders", "sql", persistence=store))

        jobs = []
        for item, priority in (("book", "normal"), ("chair", "low"), ("medicine", "very_high")):
            book = models.LogBook("orders")
            engine = engines.load_from_factory(
                "examples.hand_over.order", inputs={"item": item}, book=book, backend=store
            )
            details = {"flow_uuid": engine.storage.flow_uuid}
            jobs.append(board.post(f"order {item}", book, details, priority=priority))
            print(f"posted: {item}, {jobs[-1].state}")

        conductor = conductors.fetch("blocking", "packer", board, persistence=store)
        thread = threading.Thread(target=conductor.run)
        thread.start()
        print("all jobs are done:", all(job.wait(60) for job in jobs), flush=True)
        conductor.stop()
        thread.join()
        assert jobs[0].book is not None
        print("the first flow:", next(iter(jobs[0].book)).state)


if __name__ == "__main__":
    main()
