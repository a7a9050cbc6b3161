"""Flows with Celery tasks on all kinds of engines."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.celery.conftest import SIDES, Bed, Beds
from tests.celery.flows import LINE, WIDE, asks, begun, id_of
from tests.celery.peers import noted
from tests.support import cancelled_tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, states, task

ENGINES = ("serial", "threads", "processes", "worker-based")


@contextlib.contextmanager
def kind_of(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the options of one kind of engine."""
    if name == "serial":
        yield {"engine": "serial"}
    elif name in ("threads", "processes"):
        yield {"engine": "parallel", "executor": name, "max_workers": 2}
    else:
        url = f"memory://{folder.name}-flows"
        with worker_in_thread(url, cancelled_tasks, task_of_ours):
            yield {"engine": "worker-based", "url": url}


@task.task(provides="doubled", name="doubled")
def task_of_ours(total: int) -> int:
    return 2 * total


@pytest.mark.parametrize(
    ("side", "name"), list(zip(SIDES * 2, ENGINES, strict=True)), indirect=["side"], ids=ENGINES
)
def test_results_pass_between_celery_tasks_and_wbengine_tasks(
    side: Bed, name: str, tmp_path: Path
) -> None:
    """Arguments are passed by position and by name."""
    flow = LINE("f").add(
        asks(side, "add", args=("x", "y"), provides="total"),
        task_of_ours(),
        asks(side, "mul", requires=("x", "y"), rebind={"x": "doubled"}, provides="product"),
        asks(side, "swap", args="product", requires="y", inject={"z": None}, provides="seen"),
    )
    with kind_of(name, tmp_path) as kind:
        results = engines.run(flow, store={"x": 2, "y": 3}, **kind)
    assert results["total"] == 5 and results["product"] == 30
    assert results["seen"] == [[30], {"y": 3, "z": None}]


@pytest.mark.parametrize("side", SIDES[:1], ids="-".join, indirect=True)
def test_1000_celery_tasks_need_few_threads(side: Bed, tmp_path: Path) -> None:
    flow = WIDE("f")
    for n in range(1000):
        flow.add(asks(side, "add", f"t{n}", args=("x", "n"), inject={"n": n}, provides=f"r{n}"))
    engine = engines.load(flow, store={"x": 1}, engine="parallel")
    before, max_threads = threading.active_count(), 0
    running = threading.Thread(target=engine.run)
    running.start()
    while running.is_alive():
        max_threads = max(max_threads, threading.active_count())
        time.sleep(0.002)
    assert [engine.storage.fetch(f"r{n}") for n in range(1000)] == list(range(1, 1001))
    # One thread each for the engine, its event loop, the connection and name resolution.
    assert max_threads - before <= 4


def test_map_runs_celery_task_for_each_item(side: Bed) -> None:
    flow = LINE("f").add(
        task.Map(asks(side, "mul", args=("x", "y")), over="numbers", item="x", provides="all")
    )
    results = engines.run(flow, store={"numbers": list(range(50)), "y": 3}, engine="parallel")
    assert results["all"] == [3 * n for n in range(50)]


class Undone(task.Task):
    """Append its name to a log when it is reverted."""

    def execute(self) -> None: ...

    def revert(self, log: list[str], result: Any, flow_failures: Any) -> None:
        log.append(self.name)


@pytest.mark.parametrize("side", SIDES[:1], ids="-".join, indirect=True)
@pytest.mark.parametrize("name", ["threads", "worker-based"])
def test_failed_flow_revokes_pending_celery_tasks(
    side: Bed, name: str, tmp_path: Path, celery: Any, beds: Beds
) -> None:
    """Pending tasks never run, and Celery reports them as revoked."""
    path, held, gate, log = tmp_path / "ran", tmp_path / "held", tmp_path / "gate", list[str]()
    flow, queue, all_sent = WIDE("w"), tmp_path.name, tmp_path / "all-sent"
    common: Any = {"queue": queue}
    # The failing task runs on another queue.  Here one task occupies the only thread.
    flow.add(asks(side, "fail_then", "bad", args="gate", inject={"gate": str(all_sent)}))
    holding = {"path": str(held), "gate": str(gate)}
    flow.add(asks(side, "hold", args=("path", "gate"), inject=holding, **common))
    for n in range(40):
        flow.add(asks(side, "note", f"t{n}", args="path", inject={"path": str(path)}, **common))
    mine = LINE("f").add(task_free(log), flow)
    backend = {"backend": side.backend, "queue": queue}
    worker = celery.worker(side.url, "threads", concurrency=1, name=queue, **backend)
    with kind_of(name, tmp_path) as kind, worker:
        engine = engines.load(mine, store={"log": log}, **kind)
        before = noted(side.backend)
        with futures.ThreadPoolExecutor(1) as pool:
            run = pool.submit(engine.run)
            try:
                until(lambda: begun(held) and len(noted(side.backend) - before) == 42)
            finally:
                all_sent.touch()
            with pytest.raises(ValueError, match="no such luck"):
                run.result()
        assert log == ["ours"] and engine.storage.get_flow_state() == states.REVERTED
        ids = [id_of(engine, f"t{n}") for n in range(40)]
        assert begun(path) == []
        until(lambda: {side.call("state", name) for name in ids} == {"REVOKED"})
        gate.touch()
        last = dataclasses.replace(side, queue=queue).run("note", str(tmp_path / "last"))
        assert last["state"] == "SUCCESS"
    # Tasks that the worker prefetched may still run.
    assert len(begun(path)) <= 4


def task_free(log: list[str]) -> Undone:
    stuck = Undone("ours")
    stuck.local = True
    return stuck
