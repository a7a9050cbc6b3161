"""Flows of Celery tasks that one process begins and another goes on with; run as a module, the
first of them: `python -m tests.celery.kept FOLDER BROKER BACKEND QUEUE NUMBER SECONDS KIND RAN`.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.celery.peers import NAME
from wbengine import engines, task
from wbengine.interop.celery.task import CeleryTask
from wbengine.patterns import unordered_flow


def make(url: str, backend: str, queue: str, number: int, seconds: float, mapped: bool) -> Any:
    """So many tasks, or as many items of a Map, each of which rests for so long.

    Their worker stops once `ran` of them have begun.
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
    from tests.celery import kept  # what is noted of its factory is where to find it again

    kept.main(*sys.argv[1:])
