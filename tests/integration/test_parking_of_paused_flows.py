"""Flows whose ready tasks are all paused release their slot in a conductor."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_threads, paused_tasks
from tests.support.parking import conducting, dialects
from tests.support.reading import read_flow
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, operations, states
from wbengine._concurrency import crash_points
from wbengine.conductors.backends import impl_executor
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _lease_renewer
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.persistence._pauses import TaskPause
from wbengine.persistence.backends._sql import writing
from wbengine.views import _flow_list, flow_status

HERE = "tests.support.paused_tasks"
CHARGE = f"{HERE}.Charge"
RUNNING = states.RUNNING


@pytest.fixture(autouse=True)
def fresh_records() -> Iterator[None]:
    paused_tasks.clear()
    yield
    paused_tasks.RELEASED.set()


def submit_parked(store: persistence.Backend, parked: list[str], *factory: Any) -> Any:
    handle = engines.submit(*factory, backend=store)
    until(lambda: parked == [handle.id])
    return handle


def wake_during_pause(
    handle: Any, store: persistence.Backend, parked: list[str], pattern: str
) -> None:
    """Wake the flow by a change of its pause, and wait until it is parked again."""
    operations.pause_tasks(store, pattern, reason="longer")
    until(lambda: parked == [handle.id] * 2)


def resume_and_wait(handle: Any, store: persistence.Backend, pattern: str) -> None:
    operations.resume_tasks(store, pattern)
    handle.result(60)


@dialects
def test_paused_flows_do_not_block_other_flows_and_continue(store: persistence.Backend) -> None:
    operations.pause_tasks(store, CHARGE, reason="the bank is down", by="ann")
    with conducting(store) as (board, parked):
        handles = [engines.submit(f"{HERE}:charging", backend=store) for _ in range(3)]
        other = engines.submit(f"{HERE}:shipping", backend=store)
        other.result(60)
        until(lambda: {*parked} >= {handle.id for handle in handles})
        assert paused_tasks.STARTED == ["ship"]
        assert {handle.state for handle in handles} == {states.WAITING}
        assert next(board.iterjobs(only_unclaimed=True), None) is None
        operations.resume_tasks(store, CHARGE)
        for handle in handles:
            handle.result(60)
        until(lambda: board.job_count == 0)
        assert len(parked) == len(handles)
    assert sorted(paused_tasks.STARTED) == ["charge", "charge", "charge", "ship"]


def test_flow_parked_for_pause_is_displayed_with_sender_and_reason(
    store: persistence.Backend,
) -> None:
    operations.pause_tasks(store, f"{HERE}.*", reason="the bank is down", by="ann")
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked, f"{HERE}:charging")
        with contextlib.closing(store.get_connection()) as connection:
            (row,) = _flow_list.page(connection, states=[states.WAITING]).flows
            summary = _flow_list.summary(connection, handle.id).row
            view = flow_status.read(connection, handle.id)
        assert row.shown_state == view.shown_state == states.WAITING
        text = f"{HERE}.* by ann: the bank is down"
        assert row.paused_by == summary.paused_by == (text,)
        pause = rf"\({HERE}\.\*\) by ann since .*: the bank is down\."
        assert re.fullmatch(f"charge: Its task type is paused {pause}", view.waiting or "")
        resume_and_wait(handle, store, f"{HERE}.*")
        with contextlib.closing(store.get_connection()) as connection:
            (row,) = _flow_list.page(connection).flows
        assert (row.shown_state, row.paused_by) == (states.SUCCESS, ())


def test_flow_continues_when_its_pause_ends(
    store: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.3)
    pause = operations.pause_tasks(store, CHARGE, seconds=2)
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked, f"{HERE}:charging")
        handle.result(60)
        assert pause.until is not None and pause.until <= time.time() < pause.until + 2
    assert parked == [handle.id]


@dialects
@pytest.mark.parametrize("change", ["resume", "shorten"])
def test_change_of_pause_between_suspension_and_parking_is_not_missed(
    change: str, store: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    park: Callable[..., Any] = impl_sql.SQLJobBoard.park
    operations.pause_tasks(store, CHARGE)

    def late(*args: Any) -> None:
        monkeypatch.setattr(impl_sql.SQLJobBoard, "park", park)
        end_pause(store, change)
        park(*args)

    monkeypatch.setattr(impl_sql.SQLJobBoard, "park", late)
    with conducting(store):
        engines.submit(f"{HERE}:charging", backend=store).result(60)


def end_pause(store: persistence.Backend, change: str) -> None:
    if change == "resume":
        operations.resume_tasks(store, CHARGE)
    else:
        operations.pause_tasks(store, CHARGE, seconds=0.1)


@dialects
@pytest.mark.parametrize("change", ["resume", "shorten"])
def test_change_of_pause_during_parking_makes_job_claimable(
    change: str,
    store: persistence.Backend,
    monkeypatch: pytest.MonkeyPatch,
    board: impl_sql.SQLJobBoard,
) -> None:
    """The operator waits for the lock of the pause, instead of reading before the parking."""
    operations.pause_tasks(store, CHARGE)
    job, pauses = parked_flow(store, board)
    changing = threading.Thread(target=end_pause, args=(store, change))

    def late(point: str) -> None:
        if point == "sql.before-park-commit":
            changing.start()
            changing.join(0.5)

    monkeypatch.setattr(crash_points, "_hook", late)
    board.park(job, "me", None, None, pauses)
    changing.join()
    assert claimable(board) == [job.uuid]


@dialects
def test_parking_during_resume_waits_for_its_end(
    store: persistence.Backend, monkeypatch: pytest.MonkeyPatch, board: impl_sql.SQLJobBoard
) -> None:
    """The pause is deleted, and the flow was not yet suspended when parked flows were read."""
    operations.pause_tasks(store, CHARGE)
    job, pauses = parked_flow(store, board)
    parking = threading.Thread(target=board.park, args=(job, "me", None, None, pauses))
    monkeypatch.setattr(writing, "make_paused_jobs_due", lambda *args: None)

    def late(point: str) -> None:
        if point == "sql.before-resume-commit":
            parking.start()
            parking.join(0.5)

    monkeypatch.setattr(crash_points, "_hook", late)
    operations.resume_tasks(store, CHARGE)
    parking.join()
    assert claimable(board) == [job.uuid]


def test_unchanged_pause_keeps_job_parked(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    operations.pause_tasks(store, CHARGE)
    operations.pause_tasks(store, "shop.*")
    job, pauses = parked_flow(store, board)
    board.park(job, "me", None, None, pauses)
    operations.resume_tasks(store, "shop.*")
    assert claimable(board) == []
    operations.resume_tasks(store, CHARGE)
    assert claimable(board) == [job.uuid]


def parked_flow(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> tuple[jobs.Job, tuple[TaskPause, ...]]:
    """Run a submitted flow until it is parked. Return its claimed job, and its pauses."""
    engines.submit(f"{HERE}:charging", backend=store)
    [job] = board.iterjobs()
    board.claim(job, "me")
    detail = read_flow(store, job.uuid)
    engine: Any = engines.load_from_detail(detail, backend=store)
    engine.park_after = 0.0
    engine.run()
    assert engine.parked is not None and len(engine.parked.pauses) == 1
    return job, engine.parked.pauses


def claimable(board: jobs.JobBoard) -> list[str]:
    return [job.uuid for job in board.iterjobs(only_unclaimed=True)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


def die(body: str, url: str, point: str) -> None:
    """Run code with `store` in a process that dies when it reaches a crash point."""
    code = f"""
import os, signal, sys
from wbengine import operations
from wbengine._concurrency import crash_points
from wbengine.conductors.backends import impl_executor
from wbengine.persistence import backends
from tests.support import conducted
impl_executor.ExecutorConductor.CLAIM_SECONDS = 1.0
with backends.backend({url!r}) as store:
    crash_points.install(
        lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == {point!r} else None
    )
    {body}
"""
    process = subprocess.run([sys.executable, "-c", code], check=False)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["sql.before-give-back", "sql.after-give-back", "sql.before-park-commit"]
)
def test_flow_continues_after_death_of_conductor_that_parked_it(point: str, url: str) -> None:
    with stores.backend(url) as store:
        operations.pause_tasks(store, CHARGE)
        handle = engines.submit(f"{HERE}:charging", backend=store)
    die("with conducted.conducting(store): signal.pause()", url, point)
    with stores.backend(url) as store, conducting(store) as (_, parked):
        handle = engines.handle(handle.id, backend=store)
        until(lambda: parked == [handle.id])
        resume_and_wait(handle, store, CHARGE)
    assert paused_tasks.STARTED == ["charge"]


@pytest.mark.parametrize(
    ("body", "point"),
    [
        (f"operations.resume_tasks(store, {CHARGE!r})", "sql.before-resume-commit"),
        (f"operations.pause_tasks(store, {CHARGE!r}, seconds=0.1)", "sql.before-pause-commit"),
    ],
    ids=["resume", "shorten"],
)
def test_death_during_change_of_pause_changes_nothing(body: str, point: str, url: str) -> None:
    with stores.backend(url) as store, boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        operations.pause_tasks(store, CHARGE)
        job, pauses = parked_flow(store, board)
        board.park(job, "me", None, None, pauses)
        die(body, url, point)
        assert operations.paused_tasks(store) == list(pauses) and claimable(board) == []
        operations.resume_tasks(store, CHARGE)
        assert claimable(board) == [job.uuid]


def test_direct_run_waits_for_end_of_pause(store: persistence.Backend) -> None:
    operations.pause_tasks(store, CHARGE)
    run = engine_threads.Running(engines.load(paused_tasks.charging(), backend=store))
    run.start()
    until(lambda: run.engine.paused_tasks() and run.engine.storage.get_flow_state() == RUNNING)
    operations.resume_tasks(store, CHARGE)
    assert run.end() == states.SUCCESS


def test_flow_with_running_task_is_parked_after_its_end(store: persistence.Backend) -> None:
    operations.pause_tasks(store, CHARGE)
    with conducting(store) as (_, parked):
        handle = engines.submit(f"{HERE}:both", backend=store)
        until(lambda: paused_tasks.STARTED == ["wait"])
        assert handle.state == states.RUNNING and parked == []
        paused_tasks.RELEASED.set()
        until(lambda: parked == [handle.id])
        resume_and_wait(handle, store, CHARGE)
    assert paused_tasks.STARTED == ["wait", "charge"]


def test_parked_flow_is_cancelled_during_pause(store: persistence.Backend) -> None:
    operations.pause_tasks(store, CHARGE)
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked, f"{HERE}:charging")
        assert handle.cancel("no")
        with pytest.raises(exceptions.Cancelled):
            handle.result(60)
    assert paused_tasks.STARTED == []


def test_flow_with_paused_task_and_signal_is_woken_by_both(store: persistence.Backend) -> None:
    operations.pause_tasks(store, CHARGE)
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked, f"{HERE}:charging_and_signal")
        handle.signal("approved", 1)
        until(lambda: parked == [handle.id] * 2)
        operations.resume_tasks(store, CHARGE)
        assert handle.result(60)["found"] == 1


def test_workflow_whose_step_is_paused_is_parked(store: persistence.Backend) -> None:
    """If it is woken during the pause, its step does not start."""
    operations.pause_tasks(store, f"{HERE}.Ship")
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked, f"{HERE}:charging_then_shipping")
        wake_during_pause(handle, store, parked, f"{HERE}.Ship")
        assert len(paused_tasks.STARTED) == 1
        resume_and_wait(handle, store, f"{HERE}.Ship")
    assert len(paused_tasks.STARTED) == 2


@pytest.mark.parametrize("is_begun", [False, True], ids=["not-begun", "begun"])
def test_flow_whose_items_are_paused_is_parked(is_begun: bool, store: persistence.Backend) -> None:
    """If it is woken during the pause, it starts no items."""
    pattern = f"{HERE}.HeldItem"
    if not is_begun:
        operations.pause_tasks(store, pattern)
    with conducting(store) as (_, parked):
        handle = engines.submit(f"{HERE}:items", [5], backend=store)
        if is_begun:
            until(lambda: paused_tasks.STARTED == ["wait 0"])
            operations.pause_tasks(store, pattern)
            until(lambda: all(held.pauses for held in held_leases(store)))
        paused_tasks.RELEASED.set()
        until(lambda: parked == [handle.id])
        assert len(paused_tasks.STARTED) == is_begun
        wake_during_pause(handle, store, parked, pattern)
        assert len(paused_tasks.STARTED) == is_begun
        resume_and_wait(handle, store, pattern)
    names = [f"wait {number}" for number in range(5)]
    assert sorted(paused_tasks.STARTED) == names


def held_leases(store: persistence.Backend) -> list[_lease_renewer.HeldLease]:
    """Return the leases of the flows that engines of this process run."""
    return list(_lease_renewer.of_process()._store(store)._held_leases)


@pytest.fixture
def on_workers(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of engines whose tasks run on a worker."""
    broker = f"filesystem://{tmp_path}/broker"
    with worker_in_thread(broker, paused_tasks, threads_count=2):
        yield {"engine": "worker-based", "url": broker}


@pytest.mark.parametrize(
    ("factory", "pattern", "started", "total"),
    [
        pytest.param([f"{HERE}:charging"], CHARGE, 0, 1, id="task"),
        pytest.param([f"{HERE}:charging_then_shipping"], f"{HERE}.Ship", 1, 2, id="step"),
        pytest.param([f"{HERE}:items", [5]], f"{HERE}.HeldItem", 0, 5, id="items"),
    ],
)
def test_flow_on_workers_is_parked_and_starts_nothing_when_woken(
    factory: list[Any], pattern: str, started: int, total: int, url: str, on_workers: dict[str, Any]
) -> None:
    """Steps, tasks and items that are not sent yet are not looked up in the ledger."""
    with stores.backend(url) as store:
        operations.pause_tasks(store, pattern)
        with conducting(store, **on_workers) as (_, parked):
            handle = submit_parked(store, parked, *factory)
            wake_during_pause(handle, store, parked, pattern)
            assert len(paused_tasks.STARTED) == started
            paused_tasks.RELEASED.set()
            resume_and_wait(handle, store, pattern)
    assert len(paused_tasks.STARTED) == total


def test_map_on_workers_is_parked_after_a_suspension(url: str, on_workers: dict[str, Any]) -> None:
    """The items that were not sent before are not looked up either."""
    with stores.backend(url) as store, conducting(store, **on_workers) as (_, parked):
        handle = engines.submit(f"{HERE}:items", [5], backend=store)
        until(lambda: len(paused_tasks.STARTED) == 2)
        operations.suspend(store, handle.id)
        until(lambda: handle.state == states.SUSPENDING)
        paused_tasks.RELEASED.set()
        until(lambda: handle.state == states.SUSPENDED)
        assert len(paused_tasks.STARTED) == 2
        operations.pause_tasks(store, f"{HERE}.HeldItem")
        assert _lease_renewer.of_process().pauses(store, is_fresh=True)
        operations.request(store, handle.id, "resume")
        until(lambda: handle.id in parked)
        assert len(paused_tasks.STARTED) == 2
        resume_and_wait(handle, store, f"{HERE}.HeldItem")
    assert len(paused_tasks.STARTED) == 5
