"""Flows of Celery tasks that one process starts and another resumes.

Run the first process with
`python -m tests.celery.stored_flow FOLDER BROKER BACKEND QUEUE NUMBER SECONDS KIND RAN`.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.celery.peers import NAME
from wbengine import engines, task
from wbengine.interop.celery.task import CeleryTask
from wbengine.patterns import unordered_flow


def make(url: str, backend: str, queue: str, number: int, seconds: float, mapped: bool) -> Any:
    """Return a flow with `number` tasks or Map items that sleep for `seconds`.

    The worker stops itself after `ran` of them have started.
    """
    flow = unordered_flow.Flow("kept")
    common: Any = {"args": ("seconds", "path", "ran"), "result_backend": backend, "queue": queue}
    if mapped:
        inner = CeleryTask(f"{NAME}.rest_and_stop", url, **common)
        many = task.Map(inner, over="times", item="seconds", provides="rested", name="m")
        return flow.add(many)
    for n in range(number):
        given = {"seconds": seconds}
        flow.add(CeleryTask(f"{NAME}.rest_and_stop", url, f"t{n}", f"r{n}", inject=given, **common))
    return flow


def main(
    folder: str, url: str, backend: str, queue: str, number: str, seconds: str, mapped: str,
    ran: str,
) -> None:  # fmt: skip
    engine = engines.load_from_factory(
        make,
        factory_args=[url, backend, queue, int(number), float(seconds), mapped == "mapped"],
        store={"path": f"{folder}/ran", "ran": int(ran), "times": [float(seconds)] * int(number)},
        backend=f"dir://{folder}/store",
        engine="parallel",
    )
    print(engine.storage.flow_uuid, flush=True)
    engine.run()


if __name__ == "__main__":
    from tests.celery import stored_flow  # the recorded name of the factory must be importable

    stored_flow.main(*sys.argv[1:])
