"""Commands that no engine has carried out when its run, its process or its lease ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operations import flows
from tests.support import conducted, signalled
from tests.support.reading import read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._concurrency import crash_points
from wbengine.conductors import service
from wbengine.conductors.backends import impl_nonblocking
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _history, _lease_renewer, base

pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines poll for commands only on request."""
    monkeypatch.setattr(_lease_renewer, "POLL_SECONDS", 600.0)


def commands_of(store: base.Backend, uuid: str) -> dict[str, base.FlowCommand]:
    with contextlib.closing(store.get_connection()) as connection:
        return dict(connection.commands([uuid]))


def is_suspended_by_command(store: base.Backend, uuid: str) -> bool:
    return read_flow(store, uuid).is_suspended_by_command


@contextlib.contextmanager
def at_end_of_parking_run(handle: engines.FlowHandle, do: Callable[[], object]) -> Iterator[None]:
    """Call `do` once, after the last write of a run that parks the flow, before its lease ends."""
    remaining = [do]

    def hook(point: str) -> None:
        if point == "lease.before-give-back" and handle.state == states.WAITING and remaining:
            remaining.pop()()

    crash_points.install(hook)
    try:
        yield
    finally:
        crash_points.install(None)
    assert not remaining


@contextlib.contextmanager
def conducting(store: base.Backend, board: impl_sql.SQLJobBoard) -> Iterator[Any]:
    conductor = impl_nonblocking.NonBlockingConductor("c", board, store, max_simultaneous_jobs=1)
    with conducted.running(conductor):
        yield conductor


@contextlib.contextmanager
def in_gated_task(
    store: base.Backend, board: impl_sql.SQLJobBoard, tmp_path: Path
) -> Iterator[engines.FlowHandle]:
    """Yield a flow in its second task. Its conductor stops afterwards, before the task ends."""
    begun, gate = threading.Event(), threading.Event()
    conducted.BEGUN["p"], conducted.GATES["p"] = begun, gate
    inputs = {"folder": str(tmp_path), "mark": "p"}
    with conducting(store, board) as conductor:
        handle = engines.submit(conducted.gated, backend=store, inputs=inputs)
        assert begun.wait(60)
        yield handle
        conductor.stop()
        gate.set()


# At the end of a run.


def test_parking_flow_is_cancelled_after_its_engine_stopped_reading(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    handle = engines.submit(signalled.flow, backend=store)
    with (
        at_end_of_parking_run(handle, lambda: handle.cancel("not wanted")),
        conducting(store, board),
        pytest.raises(exceptions.Cancelled, match="not wanted"),
    ):
        handle.result(60)
    assert commands_of(store, handle.id) == {}


def test_parking_flow_is_suspended_after_its_engine_stopped_reading(
    store: base.Backend, board: impl_sql.SQLJobBoard
) -> None:
    """The flow has no job, so a signal does not continue it."""
    handle = engines.submit(signalled.flow, backend=store)
    suspend = lambda: operations.suspend(store, handle.id)  # noqa: E731
    with at_end_of_parking_run(handle, suspend), conducting(store, board):
        until(lambda: board.job_count == 0)
    assert is_suspended_by_command(store, handle.id) and commands_of(store, handle.id) == {}
    handle.signal("approved", 7)
    operations.resume(store, handle.id).run()
    assert handle.result(60)["found"] == 7


def test_flow_that_parks_during_a_command_is_suspended_by_the_command(store: base.Backend) -> None:
    engine: Any = operations.start(store, "tests.operations.flows:approval")
    engine.park_after = 0.0
    run = engine.run_iter()
    next(run)
    engine._execute_command(base.FlowCommand("suspend", "lunch"))
    engine._suspend(_history.PARKED)
    list(run)
    assert is_suspended_by_command(store, engine.storage.flow_uuid) and engine.parked is None


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("is_read", [True, False])
def test_suspended_flow_has_no_job_after_its_conductor_stopped(
    is_read: bool,
    store: base.Backend,
    board: impl_sql.SQLJobBoard,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "wbengine.engines")
    with in_gated_task(store, board, tmp_path) as handle:
        operations.suspend(store, handle.id, reason="lunch")
        if is_read:
            _lease_renewer.of_process().poll_now(handle.id)
            until(lambda: "is being suspended: lunch" in caplog.text)
    assert is_suspended_by_command(store, handle.id) and commands_of(store, handle.id) == {}
    assert board.job_count == 0


@pytest.mark.usefixtures("no_polls")
def test_flow_is_cancelled_by_the_conductor_after_the_one_that_stopped(
    store: base.Backend, board: impl_sql.SQLJobBoard, tmp_path: Path
) -> None:
    with in_gated_task(store, board, tmp_path) as handle:
        assert handle.cancel("not wanted")
    assert handle.state == states.SUSPENDED
    with conducting(store, board):
        assert handle.wait(60)
    assert conducted.notes(tmp_path) == ["p before", "p gate", "p undone gate", "p undone before"]


# Without a run.


def test_unstarted_flow_is_suspended_by_its_next_run(store: base.Backend) -> None:
    """The run after that one is not."""
    engine = operations.start(store, "tests.operations.flows:steps")
    flows.DONE.clear()
    uuid = engine.storage.flow_uuid
    operations.suspend(store, uuid, reason="later")
    engine.run()
    assert is_suspended_by_command(store, uuid) and flows.DONE == []
    operations.resume(store, uuid).run()
    assert flows.DONE == ["a", "b", "c", "d"] and commands_of(store, uuid) == {}


def test_interrupted_flow_is_cancelled_by_its_next_run(store: base.Backend) -> None:
    flows.DONE.clear()
    engine = operations.start(store, "tests.operations.flows:steps")
    uuid = engine.storage.flow_uuid
    run = engine.run_iter()
    next(run)
    held = engine._ownership.held  # type: ignore[attr-defined]
    held.close()
    operations.cancel(store, uuid, reason="not wanted")
    with contextlib.closing(store.get_connection()) as connection:  # The lease expires.
        connection.acquire_lease(uuid, "other", -1, dead=held.lease.epoch)
    with pytest.raises(exceptions.LeaseLost):
        list(run)
    with pytest.raises(exceptions.Cancelled, match="not wanted"):
        operations.resume(store, uuid).run()
    assert flows.DONE == []


def test_suspend_is_not_repeated_if_its_engine_died_before_it_deleted_it(
    store: base.Backend,
) -> None:
    engine = operations.start(store, "tests.operations.flows:steps")
    uuid = engine.storage.flow_uuid
    operations.suspend(store, uuid, reason="later")
    (command,) = commands_of(store, uuid).values()
    engine.run()
    with contextlib.closing(store.get_connection()) as connection:
        connection.send_command(uuid, command)
    operations.resume(store, uuid).run()
    assert engine.storage.backend is store and commands_of(store, uuid) == {}
    assert operations.find(store, uuid).state == states.SUCCESS


def test_job_of_suspended_flow_is_consumed_without_a_run(
    store: base.Backend, board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that suspended the flow died before it deleted the job."""
    handle = engines.submit(signalled.flow, backend=store)
    with conducting(store, board):
        until(lambda: handle.state == states.WAITING and not list(board.iterjobs(True)))
    with contextlib.closing(store.get_connection()) as connection, monkeypatch.context() as patch:
        patch.setattr(type(connection), "drop_job", lambda *_: None)
        operations.suspend(store, handle.id)
    handle.signal("approved", 7)
    assert board.job_count == 1
    with conducting(store, board):
        until(lambda: board.job_count == 0)
    assert is_suspended_by_command(store, handle.id)


def test_service_cancels_suspended_flow_without_job(
    store: base.Backend, board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.05)
    handle = engines.submit(signalled.flow, backend=store)
    with conducted.running(service.ConductorService(store)):
        until(lambda: handle.state == states.WAITING)
        operations.suspend(store, handle.id)
        until(lambda: is_suspended_by_command(store, handle.id) and board.job_count == 0)
        assert handle.cancel("not wanted")
        assert handle.wait(60)
    assert handle.state == states.REVERTED
