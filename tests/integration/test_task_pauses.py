"""Paused task types do not start in any flow of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_threads, paused_tasks
from tests.support.paused_tasks import RELEASED, STARTED, Charge, Item, Ship, Slow
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, operations, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base
from wbengine.views import flow_status
from wbengine.views.redaction import Redactor

TYPES = "tests.support.paused_tasks."


@pytest.fixture(autouse=True)
def fresh_records() -> Iterator[None]:
    paused_tasks.clear()
    yield
    RELEASED.set()


@pytest.fixture(params=["serial", "threads", "workers"])
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param == "workers":
        with worker_in_thread("memory://pauses", paused_tasks, threads_count=2):
            yield {"engine": "worker-based", "url": "memory://pauses"}
        return
    yield {} if request.param == "serial" else {"engine": "parallel", "max_workers": 2}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as made:
        yield made


def running(flow: Any, backend: base.Backend, **options: Any) -> engine_threads.Running:
    """Return an engine that runs the flow in a thread."""
    thread = engine_threads.Running(engines.load(flow, backend=backend, **options))
    thread.start()
    return thread


def waiting(store: base.Backend, engine: Any) -> dict[str, str | None]:
    """Return why the tasks of a flow wait, by name."""
    reader = flow_status.FlowRecords(
        store.get_connection(), engine.storage.flow_uuid, Redactor()
    )
    try:
        return {atom.name: atom.waiting for atom in reader.view().atoms}
    finally:
        reader.close()


def test_paused_type_waits_and_others_run(options: dict[str, Any], store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}Charge", reason="the bank is down", by="ann")
    flow = unordered_flow.Flow("f").add(Charge("charge"), Ship("ship"))
    run = running(flow, store, **options)
    until(lambda: waiting(store, run.engine).get("ship") is None and STARTED == ["ship"])
    assert run.engine.storage.get_atom_state("charge") == states.PENDING
    reason = waiting(store, run.engine).get("charge")
    assert reason is not None
    assert reason.startswith("Its task type is paused by ann since ")
    assert reason.endswith(": the bank is down.")
    operations.resume_tasks(store, f"{TYPES}Charge")
    assert run.end() == states.SUCCESS
    assert STARTED == ["ship", "charge"]
    assert run.engine.storage.records[run.engine.compilation.plan.by_name["charge"]].attempt == 1


def test_pattern_pauses_all_its_types(store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}*")
    run = running(linear_flow.Flow("f").add(Ship("first"), Charge("second")), store)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    time.sleep(0.2)
    assert STARTED == []
    operations.resume_tasks(store, f"{TYPES}*")
    assert run.end() == states.SUCCESS


def test_pause_reaches_running_engine(options: dict[str, Any], store: base.Backend) -> None:
    """Also calls that the pool or the broker has received, but that have not started."""
    names = ["wait 1", "wait 2", *(f"charge {number}" for number in range(20))]
    flow = unordered_flow.Flow("f").add(*(Charge(name) for name in names))
    run = running(flow, store, **options)
    until(lambda: len(STARTED) == (2 if options else 1))
    operations.pause_tasks(store, f"{TYPES}Charge")
    until(lambda: run.engine._ownership.held.pauses != ())
    if options:  # A serial engine reads its inbox between two tasks.
        until(lambda: sum(len(gate._calls) for gate in run.engine._gates.before_start) == 20)
    started = list(STARTED)
    RELEASED.set()
    until(lambda: run.engine.statistics["completed"] >= len(started))
    time.sleep(0.5)
    assert started == STARTED
    operations.resume_tasks(store, f"{TYPES}Charge")
    assert run.end() == states.SUCCESS
    assert sorted(STARTED) == sorted(names)


def test_serial_batch_stops_between_two_tasks(store: base.Backend) -> None:
    flow = unordered_flow.Flow("f").add(*(Slow(f"slow {number}") for number in range(60)))
    run = running(flow, store)
    until(lambda: len(STARTED) >= 3)
    operations.pause_tasks(store, f"{TYPES}Slow")
    began = time.monotonic()
    until(lambda: run.engine._ownership.held.pauses != ())
    time.sleep(0.3)
    count = len(STARTED)
    time.sleep(0.5)
    assert len(STARTED) == count, "nothing starts during the pause"
    assert count < 60 and time.monotonic() - began < 30
    operations.resume_tasks(store, f"{TYPES}Slow")
    assert run.end() == states.SUCCESS
    assert len(STARTED) == 60


def test_retry_controller_behind_paused_tasks_of_batch_runs(store: base.Backend) -> None:
    """A serial engine runs the retry controllers of an iteration after its tasks."""
    inner = linear_flow.Flow("inner", retry.Times(1, name="times")).add(Ship("ship"))
    flow = unordered_flow.Flow("f").add(*(Slow(f"slow {number}") for number in range(30)), inner)
    run = running(flow, store)
    until(lambda: len(STARTED) >= 2)
    operations.pause_tasks(store, f"{TYPES}Slow")
    until(lambda: "ship" in STARTED)
    assert len(STARTED) < 31
    operations.resume_tasks(store, f"{TYPES}Slow")
    assert run.end() == states.SUCCESS
    assert len(STARTED) == 31


def test_items_of_map_wait(options: dict[str, Any], store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}Item")
    flow = linear_flow.Flow("f").add(task.Map(Item(), over="numbers", item="item", name="items"))
    run = running(flow, store, store={"numbers": list(range(5))}, **options)
    until(lambda: "Its items are paused" in (waiting(store, run.engine).get("items") or ""))
    assert STARTED == []
    operations.resume_tasks(store, f"{TYPES}Item")
    assert run.end() == states.SUCCESS
    assert sorted(STARTED) == [f"item {number}" for number in range(5)]


def test_pause_ends_at_its_time(options: dict[str, Any], store: base.Backend) -> None:
    began = time.monotonic()
    operations.pause_tasks(store, f"{TYPES}Charge", seconds=0.7)
    run = running(linear_flow.Flow("f").add(Charge("charge")), store, **options)
    assert run.end() == states.SUCCESS
    assert time.monotonic() - began >= 0.6


def test_flow_with_paused_tasks_can_be_suspended_and_cancelled(store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}Charge")
    flow = linear_flow.Flow("f").add(Ship("ship"), Charge("charge"))
    run = running(flow, store)
    until(lambda: waiting(store, run.engine).get("ship") is None and STARTED == ["ship"])
    run.engine.suspend()
    assert run.end() == states.SUSPENDED
    assert run.engine.storage.get_atom_state("charge") == states.PENDING
    again = engine_threads.Running(run.engine)
    again.start()
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    run.engine.cancel()
    with pytest.raises(Exception, match="cancelled"):
        again.end()
    assert run.engine.storage.get_flow_state() == states.REVERTED
    assert STARTED == ["ship"]


def test_pause_precedes_permit_of_limit(store: base.Backend) -> None:
    """A paused task does not occupy the permit that another task needs."""
    first, second = Charge("charge"), Ship("ship")
    for each in (first, second):
        each.concurrency, each.limit = 1, "one"  # type: ignore[attr-defined]
    operations.pause_tasks(store, f"{TYPES}Charge")
    run = running(unordered_flow.Flow("f").add(first, second), store, engine="parallel")
    until(lambda: STARTED == ["ship"])
    operations.resume_tasks(store, f"{TYPES}Charge")
    assert run.end() == states.SUCCESS


def test_misspelled_pattern_is_named_with_nearest_one(store: base.Backend) -> None:
    operations.pause_tasks(store, "shop.charge")
    with pytest.raises(Exception, match=r"'shop.chrage'.*'shop.charge'"):
        operations.resume_tasks(store, "shop.chrage")
    assert [pause.pattern for pause in operations.paused_tasks(store)] == ["shop.charge"]


def test_reversion_is_not_paused(store: base.Backend) -> None:
    class Fails(Charge):
        def execute(self, **values: Any) -> str:
            operations.pause_tasks(store, f"{TYPES}Charge")
            raise RuntimeError("no")

    run = running(linear_flow.Flow("f").add(Charge("charge"), Fails("fails")), store)
    with pytest.raises(RuntimeError):
        run.end()
    assert run.engine.storage.get_flow_state() == states.REVERTED
