"""Paused task types do not start in any flow of the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.owned_flows import as_left_by_dead_engine
from tests.seams.scheduling import load_at
from tests.support import engine_threads, paused_tasks
from tests.support.held_tasks import HeldTasks
from tests.support.paused_tasks import RELEASED, STARTED, Charge, Item, Ship, Slow
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, operations, retry, states, task
from wbengine._concurrency import manual_clock
from wbengine._runtime.gates import paused_types
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import _lease_renewer, backends, base
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


BOTH_STORES = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend]:
    kind = getattr(request, "param", "memory")
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as made:
        yield made


def running(flow: Any, backend: base.Backend, **options: Any) -> engine_threads.Running:
    """Return an engine that runs the flow in a thread."""
    thread = engine_threads.Running(engines.load(flow, backend=backend, **options))
    thread.start()
    return thread


def resume_and_end(run: engine_threads.Running, store: base.Backend, pattern: str) -> None:
    operations.resume_tasks(store, pattern)
    assert run.end() == states.SUCCESS


def waiting(store: base.Backend, engine: Any) -> dict[str, str | None]:
    """Return why the tasks of a flow wait, by name."""
    reader = flow_status.FlowRecords(store.get_connection(), engine.storage.flow_uuid, Redactor())
    try:
        return {atom.name: atom.waiting for atom in reader.view().atoms}
    finally:
        reader.close()


def test_engine_logs_pause_once_and_its_end(
    store: base.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=_lease_renewer.LOG.name)

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == _lease_renewer.LOG.name]

    operations.pause_tasks(store, f"{TYPES}Charge", reason="the bank is down", by="ann")
    run = running(linear_flow.Flow("f").add(Charge("charge")), store)
    until(lambda: run.engine.paused_tasks())
    paused = [f"Tasks of type {TYPES}Charge are paused by ann: the bank is down"]
    assert lines() == paused
    operations.pause_tasks(store, f"{TYPES}Ship*", seconds=60)
    until(lambda: len(lines()) == 2)
    paused.append(f"Tasks of type {TYPES}Ship* are paused for 60 s")
    resume_and_end(run, store, f"{TYPES}Charge")
    assert lines() == [*paused, f"Tasks of type {TYPES}Charge are resumed"]


@BOTH_STORES
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
    resume_and_end(run, store, f"{TYPES}Charge")
    assert STARTED == ["ship", "charge"]
    assert run.engine.storage.records[run.engine.compilation.plan.by_name["charge"]].attempt == 1


def test_pattern_pauses_all_its_types(store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}*")
    run = running(linear_flow.Flow("f").add(Ship("first"), Charge("second")), store)
    until(lambda: run.engine.storage.get_flow_state() == states.RUNNING)
    time.sleep(0.2)
    assert STARTED == []
    resume_and_end(run, store, f"{TYPES}*")


def test_pause_reaches_running_engine(options: dict[str, Any], store: base.Backend) -> None:
    """Also calls that the pool or the broker has received, but that have not started."""
    names = ["wait 1", "wait 2", *(f"charge {number}" for number in range(20))]
    flow = unordered_flow.Flow("f").add(*(Charge(name) for name in names))
    run = running(flow, store, **options)
    until(lambda: len(STARTED) == (2 if options else 1))
    operations.pause_tasks(store, f"{TYPES}Charge")
    until(lambda: run.engine._ownership.held.pauses != ())
    if options:  # A serial engine reads its inbox between two tasks.
        until(lambda: sum(len(gate._calls) for gate in run.engine._gates.admission) == 20)
    started = list(STARTED)
    RELEASED.set()
    until(lambda: run.engine.statistics["completed"] >= len(started))
    time.sleep(0.5)
    assert started == STARTED
    resume_and_end(run, store, f"{TYPES}Charge")
    assert sorted(STARTED) == sorted(names)


def test_pause_of_another_type_does_not_withdraw_submitted_calls(store: base.Backend) -> None:
    """Requests that are withdrawn would be published again, behind those of other flows."""
    executor = HeldTasks(held=True)
    flow = unordered_flow.Flow("f").add(Charge("first"), Charge("second"))
    run = running(flow, store, engine="parallel", executor=executor)
    until(lambda: len(executor.waiting) == 2)
    operations.pause_tasks(store, "another.type")
    until(lambda: run.engine._ownership.held.pauses != ())
    executor.release("first")
    until(lambda: run.engine.statistics["completed"] == 1)
    executor.release("second")
    assert run.end() == states.SUCCESS
    assert [event for event, *_ in executor.log].count("submit") == 2


@BOTH_STORES
def test_pause_that_arrives_during_start_of_run_is_not_lost(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses change after the engine has read them, and before its loop starts."""
    flow = linear_flow.Flow("f").add(Ship("ship"), Charge("charge"))
    run = engine_threads.Running(engines.load(flow, backend=store))

    class LateChange(paused_types.PauseGate):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            pause = operations.pause_tasks(store, f"{TYPES}Charge")
            run.engine._ownership.held.update_pauses((pause,))

    monkeypatch.setattr(paused_types, "PauseGate", LateChange)
    run.start()
    until(lambda: "charge" in STARTED or run.engine.paused_tasks())
    assert STARTED == ["ship"]
    resume_and_end(run, store, f"{TYPES}Charge")


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
    RELEASED.set()
    resume_and_end(run, store, f"{TYPES}Slow")
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
    RELEASED.set()
    resume_and_end(run, store, f"{TYPES}Slow")
    assert len(STARTED) == 31


def test_items_of_map_wait(options: dict[str, Any], store: base.Backend) -> None:
    operations.pause_tasks(store, f"{TYPES}Item")
    flow = linear_flow.Flow("f").add(task.Map(Item(), over="numbers", item="item", name="items"))
    run = running(flow, store, store={"numbers": list(range(5))}, **options)
    until(lambda: "Its items are paused" in (waiting(store, run.engine).get("items") or ""))
    assert STARTED == []
    resume_and_end(run, store, f"{TYPES}Item")
    assert sorted(STARTED) == [f"item {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        pytest.param(0, ValueError, id="zero"),
        pytest.param(float("nan"), ValueError, id="nan"),
        pytest.param(1e15, ValueError, id="longer-than-a-century"),
        pytest.param(True, TypeError, id="bool"),
        pytest.param("3", TypeError, id="text"),
    ],
)
def test_pause_of_invalid_length_is_refused(
    seconds: Any, error: type[Exception], store: base.Backend
) -> None:
    with pytest.raises(error, match=r"The length of a pause must be .*, got"):
        operations.pause_tasks(store, "billing.*", seconds=seconds)
    assert operations.paused_tasks(store) == []


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
    resume_and_end(run, store, f"{TYPES}Charge")


def test_misspelled_pattern_is_named_with_nearest_one(store: base.Backend) -> None:
    operations.pause_tasks(store, "shop.charge")
    with pytest.raises(Exception, match=r"'shop.chrage'.*'shop.charge'"):
        operations.resume_tasks(store, "shop.chrage")
    assert [pause.pattern for pause in operations.paused_tasks(store)] == ["shop.charge"]


def test_reversion_is_not_paused(store: base.Backend) -> None:
    class Fails(Charge):
        def execute(self, **values: Any) -> str:
            operations.pause_tasks(store, f"{TYPES}Charge")
            until(lambda: engine._ownership.held.pauses)
            raise RuntimeError("no")

    flow = linear_flow.Flow("f").add(Charge("charge"), Fails("fails"))
    engine: Any = engines.load(flow, backend=store)
    with pytest.raises(RuntimeError):
        engine.run(deadline=60)
    assert engine.storage.get_flow_state() == states.REVERTED


# -- pauses that end, with a manual clock


def pause_until(store: base.Backend, name: str, seconds: float) -> float:
    """Pause a task type and return the end of the pause."""
    pause = operations.pause_tasks(store, f"{TYPES}{name}", seconds=seconds)
    assert pause.until is not None
    return pause.until


def test_tasks_released_by_pause_wait_for_permits(store: base.Backend) -> None:
    executor = HeldTasks(held=True)
    tasks = [Charge("one"), Charge("two")]
    for each in tasks:
        each.concurrency = 1
    pause_until(store, "Charge", 1000)
    clock = manual_clock.ManualClock(time.time())
    flow = unordered_flow.Flow("f").add(*tasks)
    engine = load_at(clock, flow, backend=store, engine="parallel", executor=executor)
    run = engine_threads.Running(engine)
    run.start()
    until(lambda: executor.batches)
    assert executor.names == ["one"]
    executor.held = False
    executor.release()
    assert run.end() == states.SUCCESS


def test_pause_of_another_type_does_not_disable_limit(store: base.Backend) -> None:
    executor = HeldTasks(held=True)
    tasks = [Charge("one"), Charge("two")]
    for each in tasks:
        each.concurrency = 1
    operations.pause_tasks(store, f"{TYPES}Ship")
    flow = unordered_flow.Flow("f").add(Ship("ship"), *tasks)
    run = running(flow, store, engine="parallel", executor=executor)
    until(lambda: executor.batches)
    assert executor.names == ["one"]
    executor.held = False
    executor.release()
    resume_and_end(run, store, f"{TYPES}Ship")


def test_large_map_creates_only_some_items_during_pause(store: base.Backend) -> None:
    """Its other items, and another Map, run as well."""
    count = 6000
    pause_until(store, "Item", 1000)
    flow = unordered_flow.Flow("f").add(
        task.Map(Item(), over="numbers", item="item", name="large"),
        linear_flow.Flow("line").add(
            *(Ship(f"ship {number}") for number in range(3)),
            task.Map(OtherItem(), over="few", item="item", name="small"),
        ),
    )
    values = {"numbers": list(range(count)), "few": [1]}
    engine = load_at(manual_clock.ManualClock(time.time()), flow, backend=store, store=values)
    paused: list[int] = []
    for state in engine.run_iter(timeout=10, deadline=10_000):
        if state == states.WAITING and engine.storage.get_atom_state("small") == states.SUCCESS:
            paused += engine.paused_tasks().values()
    assert 1000 < max(paused) < count
    assert len(STARTED) == 3 + count
    assert engine.storage.get_flow_state() == states.SUCCESS


class OtherItem(task.Task):
    def execute(self, item: int) -> None:
        """Do nothing."""


# -- changes while tasks wait


def test_task_that_waits_for_permit_is_paused(store: base.Backend) -> None:
    executor = HeldTasks(held=True)
    first, second = Ship("first"), Charge("second")
    first.priority = 1
    for each in (first, second):
        each.concurrency, each.limit = 1, "one"
    flow = unordered_flow.Flow("f").add(first, second)
    run = running(flow, store, engine="parallel", executor=executor)
    until(lambda: executor.names == ["first"])
    operations.pause_tasks(store, f"{TYPES}Charge")
    until(run.engine.paused_tasks)
    executor.release()
    until(lambda: run.engine.storage.get_atom_state("first") == states.SUCCESS)
    executor.held = False
    resume_and_end(run, store, f"{TYPES}Charge")
    assert run.engine.storage.record("second").attempt == 1


def test_submitted_items_of_paused_type_are_submitted_again_in_order(store: base.Backend) -> None:
    executor = HeldTasks(held=True)
    flow = linear_flow.Flow("f").add(task.Map(Item(), over="numbers", item="item", name="m"))
    options: dict[str, Any] = {"engine": "parallel", "executor": executor}
    run = running(flow, store, store={"numbers": list(range(4))}, **options)
    until(lambda: executor.batches)
    executor.release("m[1]")
    operations.pause_tasks(store, f"{TYPES}Item")
    until(lambda: sum(run.engine.paused_tasks().values()) == 3)
    assert executor.waiting == []
    executor.held = False
    resume_and_end(run, store, f"{TYPES}Item")
    assert STARTED == ["item 1", "item 0", "item 2", "item 3"]


@BOTH_STORES
def test_running_task_of_dead_engine_is_submitted_during_pause(store: base.Backend) -> None:
    flow = unordered_flow.Flow("f").add(
        Charge("charge"), task.Map(Item(), over="numbers", item="item", name="m")
    )
    executor = HeldTasks(held=True)
    executor.survives_engine = executor.has_ledger = True
    options: dict[str, Any] = {"engine": "parallel", "executor": executor}
    run = running(flow, store, store={"numbers": [1, 2]}, **options)
    until(lambda: executor.batches)
    for name in ("Charge", "Item"):
        operations.pause_tasks(store, f"{TYPES}{name}")
    until(lambda: sum(run.engine.paused_tasks().values()) == 3)
    run.engine.suspend()
    assert run.end() == states.SUSPENDED
    left = as_left_by_dead_engine(store, run.engine.storage.flow_uuid)
    executor.held = False
    later = engines.load(flow, flow_detail=left, backend=store, **options)
    later.run(deadline=30)
    assert later.storage.get_flow_state() == states.SUCCESS
    assert later.storage.record("charge").attempt == 1
