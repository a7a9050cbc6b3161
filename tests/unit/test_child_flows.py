"""Child flows that run in the process of their parent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import child_flows
from tests.support.child_flows import effects
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task, testing
from wbengine import steps as of_workflow
from wbengine._concurrency import clocks
from wbengine._runtime.gates import signals_and_sleeps
from wbengine.engines import _child_memory, _children, _loading
from wbengine.persistence import backends, models
from wbengine.persistence import base as persistence


@pytest.fixture(params=["none", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[persistence.Backend | None]:
    uris = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/flows.db"}
    if request.param == "none":
        yield None
        return
    with backends.backend(uris[request.param]) as backend:
        yield backend


@pytest.fixture
def local(tmp_path: Path) -> Iterator[persistence.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


def inputs(folder: Path, *items: str) -> dict[str, object]:
    return {"folder": str(folder), "items": list(items)}


def act_after(
    engine: engines.Engine, condition: Callable[[], object], act: Callable[[], object]
) -> None:
    """Run an engine, and act in another thread when the condition is true."""

    def wait_and_act() -> None:
        until(condition)
        act()

    acting = threading.Thread(target=wait_and_act)
    acting.start()
    try:
        engine.run()
    finally:
        acting.join()


def flows_of(store: persistence.Backend) -> dict[str, list[str]]:
    with store.get_connection() as connection:
        listed: dict[str, list[str]] = {}
        for row in connection.list_flows(newest_first=False).flows:
            listed.setdefault(row.name.rpartition(".")[2], []).append(row.state)
    return listed


@pytest.mark.parametrize("workflow", [child_flows.order, child_flows.order_async])
def test_child_returns_result_of_its_workflow(
    workflow: type[task.Workflow], store: persistence.Backend | None, tmp_path: Path
) -> None:
    result = engines.run(workflow, inputs=inputs(tmp_path, "tea", "cup"), backend=store)
    assert result["result"] == ["reserved tea", "reserved cup"]
    assert sorted(effects(tmp_path)) == ["reserve-cup", "reserve-tea"]


def test_child_that_is_no_workflow_returns_all_values(store: persistence.Backend | None) -> None:
    result = engines.run(child_flows.order_of_graph, inputs={"number": 4}, backend=store)
    assert result["result"] == {"number": 4, "doubled": 8}


def test_children_of_children_run(store: persistence.Backend | None, tmp_path: Path) -> None:
    result = engines.run(child_flows.order_of_orders, inputs=inputs(tmp_path, "tea"), backend=store)
    assert result["result"] == [["reserved tea"], ["reserved tea"]]


def test_failure_of_child_has_its_declared_type(
    store: persistence.Backend | None, tmp_path: Path
) -> None:
    with pytest.raises(child_flows.OutOfStockError, match="nothing left"):
        engines.run(child_flows.order, inputs=inputs(tmp_path, "tea", "none"), backend=store)
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_complete_children_are_reverted_in_reverse_order(
    store: persistence.Backend | None, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="order refused"):
        engines.run(
            child_flows.order_and_fail, inputs=inputs(tmp_path, "tea", "cup"), backend=store
        )
    assert effects(tmp_path) == ["reserve-tea", "reserve-cup", "release-cup", "release-tea"]
    if store is not None:
        assert flows_of(store) == {"order_and_fail": ["REVERTED"], "ship": ["REVERTED"] * 2}


def test_failed_revert_of_child_is_failed_revert_of_its_step(
    local: persistence.Backend, tmp_path: Path
) -> None:
    with pytest.raises(exceptions.WrappedFailure, match="it cannot be released"):
        engines.run(
            child_flows.order_and_fail, inputs=inputs(tmp_path, "tea", "stuck"), backend=local
        )
    assert effects(tmp_path) == ["reserve-tea", "reserve-stuck"]
    assert flows_of(local) == {"order_and_fail": ["FAILURE"], "ship": ["SUCCESS", "FAILURE"]}


@task.workflow
def catching(steps: of_workflow.Steps, folder: str) -> str:
    try:
        steps.child(child_flows.ship, {"folder": folder, "item": "none"})
    except child_flows.OutOfStockError as error:
        return f"caught: {error}"
    return "nothing"


def test_workflow_catches_failure_of_child(tmp_path: Path) -> None:
    assert engines.run(catching, inputs={"folder": str(tmp_path)})["result"] == (
        "caught: nothing left"
    )


@task.workflow
def with_missing_inputs(steps: of_workflow.Steps) -> str:
    try:
        return steps.child(child_flows.ship, {"item": "tea"})
    except exceptions.MissingDependencies as error:
        return str(error)


def test_child_without_required_input_fails(store: persistence.Backend | None) -> None:
    assert "folder" in engines.run(with_missing_inputs, backend=store)["result"]


@task.workflow
def with_wrong_child(steps: of_workflow.Steps) -> None:
    steps.child(child_flows.reserve, {"item": "tea"})


def test_task_as_child_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use steps\.run"):
        engines.run(with_wrong_child)


def test_child_has_name_tags_and_parent(local: persistence.Backend) -> None:
    engine = engines.load(
        child_flows.order_of_graph, {"number": 1}, backend=local, tags={"order": "17"}
    )
    engine.run()
    with local.get_connection() as connection:
        (row,) = connection.list_flows(name="twice").flows
        detail = connection.get_flow_details(row.uuid)
    assert detail.parent == engine.storage.flow_uuid and not detail.is_detached
    assert row.tags == {"order": "17"}


def test_resumed_parent_finds_its_children(local: persistence.Backend, tmp_path: Path) -> None:
    engine = engines.load(child_flows.order_and_wait, inputs(tmp_path, "tea", "cup"), backend=local)
    act_after(engine, lambda: len(effects(tmp_path)) == 2, engine.suspend)
    assert flows_of(local) == {"order_and_wait": ["SUSPENDED"], "wait": ["SUSPENDED"] * 2}
    with local.get_connection() as connection:
        for row in connection.list_flows(name="wait").flows:
            if row.name.endswith(".wait"):
                operations.signal(local, row.uuid, "go")
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    engines.load_from_detail(detail, backend=local).run()
    assert sorted(effects(tmp_path)) == ["reserve-cup", "reserve-tea"]
    assert flows_of(local) == {"order_and_wait": ["SUCCESS"], "wait": ["SUCCESS"] * 2}


def test_child_continues_after_lease_of_dead_process_on_another_host(
    local: persistence.Backend, tmp_path: Path
) -> None:
    engine = engines.load(child_flows.order_and_wait, inputs(tmp_path, "tea"), backend=local)
    act_after(engine, lambda: len(effects(tmp_path)) == 1, engine.suspend)
    with local.get_connection() as connection:
        (child,) = [
            row.uuid for row in connection.list_flows(parent=engine.storage.flow_uuid).flows
        ]
        operations.signal(local, child, "go")
        connection.acquire_lease(child, "other-host/1/1/boot/space/process/1/0", 0.5)
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    resumed = engines.load_from_detail(detail, backend=local)
    stopping = threading.Timer(10.0, resumed.suspend)
    stopping.start()
    resumed.run()
    stopping.cancel()
    assert flows_of(local) == {"order_and_wait": ["SUCCESS"], "wait": ["SUCCESS"]}


@task.task
def leave_once(folder: str) -> None:
    if "left" not in effects(Path(folder)):
        child_flows.note(folder, "left")
        raise SystemExit(3)


@task.workflow
def leaving(steps: of_workflow.Steps, folder: str) -> None:
    steps.run(leave_once, folder)


@task.workflow
def leaving_parent(steps: of_workflow.Steps, folder: str) -> None:
    steps.child(leaving, {"folder": folder})


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_interrupted_task_of_child_suspends_parent(
    local: persistence.Backend, tmp_path: Path, kind: str
) -> None:
    values = {"folder": str(tmp_path)}
    engine = engines.load(leaving_parent, values, backend=local, engine=kind)
    with pytest.raises(SystemExit, match="3"):
        engine.run()
    assert flows_of(local) == {"leaving_parent": ["SUSPENDED"], "leaving": ["SUSPENDED"]}
    engine.run()
    assert flows_of(local) == {"leaving_parent": ["SUCCESS"], "leaving": ["SUCCESS"]}


def test_cancelled_parent_cancels_and_reverts_its_children(
    local: persistence.Backend, tmp_path: Path
) -> None:
    engine = engines.load(child_flows.order_and_wait, inputs(tmp_path, "tea", "cup"), backend=local)
    with pytest.raises(exceptions.Cancelled):
        act_after(engine, lambda: len(effects(tmp_path)) == 2, engine.cancel)
    assert sorted(effects(tmp_path)) == ["release-cup", "release-tea", "reserve-cup", "reserve-tea"]
    assert flows_of(local) == {"order_and_wait": ["REVERTED"], "wait": ["REVERTED"] * 2}


@task.workflow
def sleeping(steps: of_workflow.Steps) -> float:
    steps.sleep(3600)
    return steps.now().timestamp()


@task.workflow
async def sleeping_parent(steps: of_workflow.AsyncSteps) -> float:
    return await steps.child(sleeping)


def test_child_uses_manual_clock_of_its_parent() -> None:
    clock = testing.ManualClock(0.0)
    assert engines.run(sleeping_parent, clock=clock)["result"] == 3600.0


@pytest.mark.parametrize("state", [states.SUSPENDED, states.FAILURE])
def test_command_at_the_end_of_a_run_of_a_child_is_carried_out(state: str) -> None:
    """The parent sends a command when its child has just ended, or been suspended alone."""
    memory, runs = _child_memory.ChildMemory(), list[str]()
    detail = models.FlowDetail("child")
    detail.state = state
    persistence.add_flow_detail(detail, None, memory)
    memory.made_flows[detail.uuid] = None

    class Ended:
        def run_iter(self) -> Iterator[str]:
            runs.append(state)
            yield state
            if len(runs) == 1:
                own_runs.run(detail.uuid)
            if state == states.FAILURE:
                raise LookupError("the failure of the child")

    make: Any = lambda *_: Ended()  # noqa: E731
    received = signals_and_sleeps.ReceivedSignals((), "parent", None)
    own_runs = _children._LocalRuns(memory, received, clocks.SYSTEM, make)
    own_runs.run(detail.uuid)
    until(lambda: len(runs) == 2)
    own_runs.close()
    assert len(runs) == 2


def test_failed_child_does_not_interrupt_parent_that_reads_its_end() -> None:
    """The store reports the end before the thread of the child has ended."""
    errors, is_reported = dict[str, BaseException](), threading.Event()
    detail = models.FlowDetail("child")
    detail.state = states.FAILURE

    class Memory(_child_memory.ChildMemory):
        def get_connection(self) -> Any:
            errors.update(own_runs.errors)
            return super().get_connection()

    class Failing:
        def run_iter(self) -> Iterator[str]:
            yield states.FAILURE
            raise asyncio.CancelledError

    make: Any = lambda *_: Failing()  # noqa: E731
    received, memory = signals_and_sleeps.ReceivedSignals((), "parent", None), Memory()
    received.on_new = is_reported.set
    own_runs = _children._LocalRuns(memory, received, clocks.SYSTEM, make)
    persistence.add_flow_detail(detail, None, memory)
    memory.made_flows[detail.uuid] = None
    own_runs.run(detail.uuid)
    assert is_reported.wait(10)
    own_runs.close()
    assert errors == own_runs.errors == {}


def test_reversion_of_child_that_cannot_begin_fails(
    local: persistence.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(detail: models.FlowDetail) -> None:
        raise ImportError("its module is gone")

    engine = engines.load(child_flows.order, inputs(tmp_path, "tea"), backend=local)
    engine.run()
    engine.revert()
    stopping = threading.Timer(10.0, engine.suspend)
    stopping.start()
    with monkeypatch.context() as patch, pytest.raises(ImportError, match="its module is gone"):
        patch.setattr(_loading, "flow_from_detail", fail)
        engine.run()
    stopping.cancel()
    engine.revert()
    engine.run()
    assert flows_of(local) == {"order": ["REVERTED"], "ship": ["REVERTED"]}


def test_child_without_importable_workflow_runs_without_store() -> None:
    @task.workflow
    def inner(steps: of_workflow.Steps, number: int) -> int:
        return number + 1

    @task.workflow
    def outer(steps: of_workflow.Steps) -> int:
        return steps.child(inner, {"number": 1})

    assert engines.run(outer)["result"] == 2


def test_grandchild_without_importable_workflow_runs_without_store() -> None:
    @task.workflow
    def innermost(steps: of_workflow.Steps) -> int:
        return 3

    @task.workflow
    def inner(steps: of_workflow.Steps) -> int:
        return steps.child(innermost)

    @task.workflow
    def outer(steps: of_workflow.Steps) -> int:
        return steps.child(inner)

    engine = engines.load(outer)
    engine.run()
    assert engine.storage.fetch("result") == 3
    engine.revert()
    engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_later_run_without_store_continues_and_reverts_children(tmp_path: Path) -> None:
    engine = engines.load(child_flows.order_and_wait, inputs(tmp_path, "tea"), engine="parallel")

    act_after(engine, lambda: len(effects(tmp_path)) == 1, engine.suspend)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    with pytest.raises(exceptions.Cancelled):
        act_after(engine, lambda: engine.statistics["incomplete"], engine.cancel)
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_changed_input_of_child_is_no_repetition(
    local: persistence.Backend, tmp_path: Path
) -> None:
    engine = engines.load(child_flows.order_and_wait, inputs(tmp_path, "tea"), backend=local)
    act_after(engine, lambda: effects(tmp_path), engine.suspend)
    with local.get_connection() as connection:
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    child_flows.wait, original = child_flows.ship, child_flows.wait
    try:
        with pytest.raises(exceptions.NonDeterministicWorkflow):
            engines.load_from_detail(detail, backend=local).run()
    finally:
        child_flows.wait = original
    assert flows_of(local)["wait"] == [states.SUSPENDED]


@pytest.mark.parametrize("workflow", [child_flows.order_by_map, child_flows.order_by_async_map])
def test_map_runs_child_for_each_item(
    workflow: type[task.Workflow], store: persistence.Backend | None, tmp_path: Path
) -> None:
    items = [f"item{number}" for number in range(5)]
    result = engines.run(workflow, inputs=inputs(tmp_path, *items), backend=store)
    assert result["result"] == [f"reserved {item}" for item in items]
    assert sorted(effects(tmp_path)) == [f"reserve-{item}" for item in items]


@pytest.mark.parametrize("workflow", [child_flows.order_by_map, child_flows.order_by_async_map])
def test_map_raises_failure_of_child(
    workflow: type[task.Workflow], local: persistence.Backend, tmp_path: Path
) -> None:
    with pytest.raises(child_flows.OutOfStockError):
        engines.run(workflow, inputs=inputs(tmp_path, "tea", "none"), backend=local)
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_sub_flow_of_graph_provides_result_of_child(
    store: persistence.Backend | None, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "fails": False}
    result = engines.run(child_flows.shipping(), inputs=given, backend=store)
    assert result["shipped"] == "reserved tea"


def test_failed_graph_reverts_child_of_sub_flow(
    store: persistence.Backend | None, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "fails": True}
    with pytest.raises(ValueError, match="refused"):
        engines.run(child_flows.shipping(), inputs=given, backend=store)
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_sub_flow_requires_inputs_of_child() -> None:
    assert task.SubFlow(child_flows.ship).requires == {"folder", "item"}
    assert task.SubFlow(child_flows.doubling).requires == {"number"}
    assert task.SubFlow("tests.support.child_flows:doubling").name == "doubling"


def test_sub_flow_refuses_a_task() -> None:
    with pytest.raises(TypeError, match=r"use steps\.run"):
        task.SubFlow(child_flows.Double)
