"""Celery's monitors with the Celery tasks of a flow."""

from __future__ import annotations

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.celery.flows import id_of
from tests.support.workers import until
from wbengine import engines
from wbengine.interop.celery import CeleryTask
from wbengine.patterns import unordered_flow


def test_flower_shows_flow_as_root_and_parent_of_task(own: Bed, celery: peers.Celery) -> None:
    flow = unordered_flow.Flow("f")
    for n in range(3):
        flow.add(
            CeleryTask(
                f"{peers.NAME}.add", own.url, f"t{n}", args=("x", "n"), inject={"n": n},
                result_backend=own.backend,
            )
        )  # fmt: skip
    worker = celery.worker(own.url, "threads", backend=own.backend, arguments=("-E",))
    with celery.flower(own.url) as flower, worker:
        until(lambda: flower.ask("/api/workers?status=1").get("celery@here"))
        engine = engines.load(flow, store={"x": 1}, engine="parallel")
        engine.run()
        ids = [id_of(engine, f"t{n}") for n in range(3)]

        def shown() -> list[dict[str, object]]:
            known = flower.ask("/api/tasks")
            return [known.get(id, {}) for id in ids]

        until(lambda: all(one.get("state") == "SUCCESS" and one.get("sent") for one in shown()))
        for one in shown():
            assert one["root_id"] == one["parent_id"] == engine.storage.flow_uuid
            assert (one["name"], one["kwargs"]) == (f"{peers.NAME}.add", "{}")
            assert one["args"] in ("(1, 0)", "(1, 1)", "(1, 2)")
            assert one["routing_key"] == peers.QUEUE
