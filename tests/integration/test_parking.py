"""Parking: flows that wait release their slot in a conductor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import conducted, signalled
from tests.support.parking import conducting, dialects
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, signals, states
from wbengine._concurrency import crash_points
from wbengine.conductors.backends import impl_blocking, impl_executor
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _sql as sql
from wbengine.views import _flow_list, flow_status

HERE = "tests.support.signalled"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[persistence.Backend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as made:
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.3)


def submit_parked(store: persistence.Backend, parked: list[str]) -> engines.FlowHandle:
    handle = engines.submit(signalled.flow, backend=store)
    until(lambda: parked == [handle.id])
    return handle


def claim_job(board: Any) -> Any:
    [job] = board.iterjobs()
    board.claim(job, "me")
    return job


@pytest.mark.slow
def test_flows_waiting_for_signals_do_not_block_other_flows(
    store: persistence.Backend,
) -> None:
    waiting = engines.submit_many(signalled.flow, [None] * 20, backend=store)
    with conducting(store) as (board, parked):
        later = engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store)
        assert later.result(60)["found"] == "found"
        until(lambda: len(parked) == len(waiting))
        assert {handle.state for handle in waiting} == {states.WAITING}
        assert "Waiting for signal 'approved' since " in str(_waiting_reason(store, waiting[0].id))
        assert next(board.iterjobs(only_unclaimed=True), None) is None
        for number, handle in enumerate(waiting):
            handle.signal("approved", number)
        for number, handle in enumerate(waiting):
            assert handle.result(60)["found"] == number
        until(lambda: board.job_count == 0)
        assert len(parked) == len(waiting)


def test_parked_flow_is_displayed_as_waiting_and_keeps_its_attempt(
    store: persistence.Backend,
) -> None:
    def look() -> tuple[flow_status.FlowView, _flow_list.RowView]:
        with contextlib.closing(store.get_connection()) as connection:
            (row,) = _flow_list.page(connection).flows
            return flow_status.read(connection, row.uuid), row

    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked)
        view, row = look()
        assert view.state == row.state == states.SUSPENDED
        assert view.shown_state == row.shown_state == states.WAITING
        assert dict(view.shown_counts) == {states.WAITING: 1, states.PENDING: 1}
        (wait,) = view.waits_for
        assert (wait.task, wait.signal) == ("wait-for-approved", "approved")
        assert wait.until == pytest.approx(wait.since + 3600) and row.waits_for == (wait,)
        handle.signal("approved", 5)
        assert handle.result(60)["found"] == 5
    view, row = look()
    assert (view.shown_state, row.shown_state, row.waits_for) == ("SUCCESS", "SUCCESS", ())
    atom = view.atom("wait-for-approved")
    assert atom is not None and (atom.attempt, atom.executions) == (1, 1)
    assert atom.started == pytest.approx(wait.since)


def _waiting_reason(store: persistence.Backend, uuid: str) -> str | None:
    """Return the reason why the flow waits, as `wbengine flow show` displays it."""
    with contextlib.closing(store.get_connection()) as connection:
        return flow_status.read(connection, uuid).waiting


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["timeout", "retry", "eta"])
def test_parked_flow_is_resumed_at_its_time(kind: str, local: persistence.Backend) -> None:
    expected: Any = contextlib.nullcontext()
    if kind == "timeout":
        expected = pytest.raises(exceptions.SignalTimeout)
    with conducting(local) as (_, parked):
        handle = engines.submit(f"{HERE}:waiting", [kind], backend=local)
        until(lambda: parked == [handle.id])
        assert handle.state == states.WAITING
        told = {
            "timeout": "Waiting for signal 'approved' since ",
            "retry": "Next attempt at ",
            "eta": "use: Starts at ",
        }[kind]
        assert told in str(_waiting_reason(local, handle.id))
        with expected:
            assert handle.result(60)["found"] == "found"
    assert parked == [handle.id]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["eta", "timeout"])
def test_flow_waiting_for_a_short_time_is_not_parked(kind: str, local: persistence.Backend) -> None:
    """Suspending takes time, too."""
    with conducting(local) as (_, parked):
        handle = engines.submit(f"{HERE}:waiting", [kind, 0.18], backend=local)
        handle.signal("approved", "found") if kind == "timeout" else None
        assert handle.result(60)["found"] == "found"
    assert parked == []


def test_parked_flow_is_cancelled_at_once(store: persistence.Backend) -> None:
    with conducting(store) as (_, parked):
        handle = submit_parked(store, parked)
        assert handle.cancel("no")
        with pytest.raises(exceptions.Cancelled):
            handle.result(60)


def test_suspended_parked_flow_stays_suspended_until_resumed(
    store: persistence.Backend,
) -> None:
    with conducting(store) as (board, parked):
        handle = submit_parked(store, parked)
        told = operations.suspend(store, handle.id, reason="a holiday", by="me")
        assert told == operations.StateChange(states.SUSPENDED, states.SUSPENDED)
        assert board.job_count == 0
        assert "suspended by me: a holiday" in str(_waiting_reason(store, handle.id))
        handle.signal("approved", 7)
        # The conductor has polled since then: it ran another flow.
        assert engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store).wait(60)
        assert handle.state == states.SUSPENDED
    operations.resume(store, handle.id).run()
    assert handle.result(60)["found"] == 7


def test_flow_suspended_while_its_job_is_being_parked_stays_suspended(
    local: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    park: Callable[..., Any] = impl_sql.SQLJobBoard.park
    handle = engines.submit(signalled.flow, backend=local)
    tried = threading.Event()

    def late(*args: Any) -> None:
        operations.suspend(local, handle.id)
        try:
            park(*args)
        finally:
            tried.set()

    monkeypatch.setattr(impl_sql.SQLJobBoard, "park", late)
    with conducting(local) as (board, _):
        assert tried.wait(60)
        assert board.job_count == 0 and handle.state == states.SUSPENDED


def test_cancel_before_parking_keeps_job_claimable(
    store: persistence.Backend, board: impl_sql.SQLJobBoard
) -> None:
    """The cancel was sent before the job was parked, and no engine polls for it afterwards."""
    handle = engines.submit(signalled.flow, backend=store)
    job = claim_job(board)
    handle.cancel("no")
    board.park(job, "me", None, 0)
    assert [one.uuid for one in board.iterjobs(only_unclaimed=True)] == [handle.id]


@dialects
@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_signal_or_cancel_between_suspension_and_parking_is_not_missed(
    what: str, store: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    park: Callable[..., Any] = impl_sql.SQLJobBoard.park
    handle = engines.submit(signalled.flow, backend=store)

    def late(*args: Any) -> None:
        monkeypatch.setattr(impl_sql.SQLJobBoard, "park", park)
        handle.signal("approved", 1) if what == "signal" else handle.cancel()
        park(*args)

    monkeypatch.setattr(impl_sql.SQLJobBoard, "park", late)
    with conducting(store):
        assert handle.wait(60)
    assert handle.state == (states.SUCCESS if what == "signal" else states.REVERTED)


@dialects
@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_signal_or_cancel_during_parking_makes_job_claimable(
    what: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender waits for the lock of the row, instead of reading the state before parking."""
    with stores.backend(uri) as store, boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        handle = engines.submit(signalled.flow, backend=store)
        told = (handle.signal, ("approved", 1)) if what == "signal" else (handle.cancel, ())
        sending = threading.Thread(target=told[0], args=told[1])

        def late(point: str) -> None:
            if point == "sql.before-park-commit":
                sending.start()
                sending.join(0.5)

        monkeypatch.setattr(crash_points, "_hook", late)
        job = claim_job(board)
        board.park(job, "me", None, 0)
        sending.join()
        assert [job.uuid for job in board.iterjobs(only_unclaimed=True)] == [handle.id]


@dialects
@pytest.mark.parametrize("is_parked", [True, False])
def test_end_of_child_makes_job_due_within_the_delay_of_its_parent(
    store: persistence.Backend, board: impl_sql.SQLJobBoard, is_parked: bool
) -> None:
    assert isinstance(store, sql.SQLBackend)
    handle = engines.submit(signalled.flow, backend=store)
    ends = [signals.end_of_child(f"child-{number}", 1, 1.0) for number in range(2)]

    def seconds_until_due() -> float:
        with store.engine.connect() as transaction:
            due: float = transaction.scalar(sa.text("SELECT not_before FROM wbe_jobs"))
        with store.get_connection() as connection:
            return due - connection.now()

    with store.get_connection() as connection:
        job = claim_job(board)
        if not is_parked:
            connection.put_signal(handle.id, ends[0])
        board.park(job, "me", None, 0, ends=0, end_delay=1000.0)
        if is_parked:
            assert seconds_until_due() > 1000.0
            connection.put_signal(handle.id, ends[0])
        first = seconds_until_due()
        assert 0.0 < first <= 1000.0
        connection.put_signal(handle.id, ends[1])
        assert seconds_until_due() <= first
        assert next(board.iterjobs(only_unclaimed=True), None) is None
        connection.put_signal(handle.id, signals.Signal("approved", "1", 1.0))
        assert [each.uuid for each in board.iterjobs(only_unclaimed=True)] == [handle.id]


@dialects
@pytest.mark.parametrize("is_parked", [True, False])
def test_end_of_child_makes_job_due_at_once_without_delay(
    store: persistence.Backend, board: impl_sql.SQLJobBoard, is_parked: bool
) -> None:
    handle = engines.submit(signalled.flow, backend=store)
    end = signals.end_of_child("child", 1, 1.0)
    job = claim_job(board)
    with store.get_connection() as connection:
        if not is_parked:
            connection.put_signal(handle.id, end)
        board.park(job, "me", None, 0)
        if is_parked:
            connection.put_signal(handle.id, end)
    assert [each.uuid for each in board.iterjobs(only_unclaimed=True)] == [handle.id]


def test_signal_does_not_start_flow_before_its_eta(local: persistence.Backend) -> None:
    handle = engines.submit(signalled.flow, backend=local, eta=3600)
    handle.signal("approved", 1)
    with boards.backend("b", "sql", persistence=local) as board:
        assert next(board.iterjobs(only_unclaimed=True), None) is None


def test_lost_claim_is_not_parked(local: persistence.Backend) -> None:
    engines.submit(signalled.flow, backend=local)
    with boards.backend("b", "sql", persistence=local) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        [job] = board.iterjobs()
        [same] = board.iterjobs()
        board.claim(job, "me", expiry=0.01)
        until(lambda: board.find_owner(job) is None)
        board.claim(same, "me")
        with pytest.raises(exceptions.JobFailure, match="claimed again"):
            board.park(job, "me", None, 0)
        board.park(same, "me", None, 0)
        with pytest.raises(exceptions.NotFound, match="not claimed"):
            board.park(same, "me", None, 0)


def test_flow_with_job_in_another_store_is_not_parked(
    local: persistence.Backend, tmp_path: Path
) -> None:
    with boards.backend("b", f"sqlite:///{tmp_path}/jobs.db", persistence=local) as board:
        engine = engines.load_from_factory(signalled.flow, backend=local)
        board.post("x", None, {"flow_uuid": engine.storage.flow_uuid})
        with conducted.running(impl_blocking.BlockingConductor("c", board, local)):
            handle = engines.handle(engine.storage.flow_uuid, backend=local)
            until(lambda: handle.state == states.RUNNING)
            handle.signal("approved", 1)
            assert handle.wait(60)
