"""`celery events --dump` and Flower, with workers of wbengine and with Celery tasks of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.celery import peers
from tests.celery.conftest import Bed, Ours
from tests.celery.flows import id_of
from tests.support.workers import until
from wbengine import engines
from wbengine.interop.celery import CeleryTask
from wbengine.patterns import unordered_flow

NODE = "ours@here"


def test_events_dump_and_flower_show_worker_and_tasks(
    own: Bed, ours: Ours, celery: peers.Celery, tmp_path: Path
) -> None:
    words = "--threads", "2", "--celery-name", NODE, "--events", "celery"
    with (
        celery.command(own.url, "events", "--dump") as dump,
        celery.flower(own.url, "--inspect_timeout=50000") as flower,
        ours(*words) as worker,
    ):
        until(lambda: "heartbeat" in dump.text)
        until(lambda: flower.ask("/api/workers?status=1").get(NODE))
        path, gate = tmp_path / "path", tmp_path / "gate"
        revoked = own.call("start", f"{peers.NAME}.add", (1, 2), countdown=5)
        runs = own.call("start", f"{peers.NAME}.hold", (str(path), str(gate)))
        done = own.run("add", 20, 22)
        failed = own.run("fail", "not today")
        own.call("revoke", revoked)
        until(path.exists)

        def states(*ids: str) -> list[Any]:
            known = flower.ask("/api/tasks")
            return [known.get(each, {}).get("state") for each in ids]

        until(lambda: states(runs) == ["STARTED"])
        gate.touch()
        expected = ["SUCCESS", "FAILURE", "REVOKED", "SUCCESS"]
        until(lambda: states(done["id"], failed["id"], revoked, runs) == expected)
        known = flower.ask("/api/tasks")
        task = known[done["id"]]
        assert (task["name"], task["worker"]) == (f"{peers.NAME}.add", NODE)
        assert (task["args"], task["kwargs"], task["result"]) == ("(20, 22)", "{}", "42")
        assert (
            0 < task["runtime"] < 60 and task["received"] and task["started"] and task["succeeded"]
        )
        assert "ValueError" in known[failed["id"]]["exception"]
        assert "raise ValueError" in known[failed["id"]]["traceback"]
        running_worker = flower.ask(f"/api/workers?refresh=1&workername={NODE}")[NODE]
        assert f"{peers.NAME}.add" in running_worker["registered"]
        assert running_worker["stats"]["pid"] == worker.process.pid
        assert [queue["name"] for queue in running_worker["active_queues"]] == [peers.QUEUE]
        page = flower.page(f"/worker/{NODE}")
        assert NODE in page and f"{peers.NAME}.add" in page
        page = flower.page(f"/task/{failed['id']}")
        assert failed["id"] in page and "FAILURE" in page and "not today" in page
        assert worker.stop() == 0
        until(lambda: "shutdown" in dump.text)  # the text for worker-offline
        for word in ("received", "started", "succeeded", "failed", "revoked"):
            assert word in dump.text, dump.text
        assert done["id"] in dump.text and NODE in dump.text


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
