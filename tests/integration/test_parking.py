"""Flows that wait give their place in a conductor back, and their jobs wait for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import places
from tests.support import conducted, servers, signalled
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.conductors.backends import impl_blocking, impl_executor, impl_nonblocking
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.views import flow

HERE = "tests.support.signalled"


@pytest.fixture(params=["sqlite", "mysql", "postgresql"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Lazy
) -> Iterator[str]:
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[persistence.Backend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as made:
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.3)


@contextlib.contextmanager
def conducting(
    store: persistence.Backend, most: int = 1
) -> Iterator[tuple[impl_sql.SQLJobBoard, list[str]]]:
    """A conductor with so many places, in a thread; the board, and the jobs it abandoned."""
    parked: list[str] = []
    with boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        conductor = impl_nonblocking.NonBlockingConductor(
            "c", board, store, max_simultaneous_jobs=most
        )
        conductor.notifier.register(
            "job_abandoned", lambda event, details: parked.append(details["job"].uuid)
        )
        with conducted.running(conductor):
            yield board, parked


def test_flows_that_wait_for_signals_keep_no_others_from_running(
    store: persistence.Backend,
) -> None:
    """However many: each is resumed by its signal, and what ran before does not run again."""
    waiting = engines.submit_many(signalled.flow, [None] * 20, backend=store)
    with conducting(store) as (board, parked):
        later = engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store)
        assert later.result(60)["found"] == "found"
        until(lambda: len(parked) == len(waiting))
        assert {handle.state for handle in waiting} == {states.SUSPENDED}
        assert "It waits for signal 'approved' (until" in str(_said(store, waiting[0].id))
        assert next(board.iterjobs(only_unclaimed=True), None) is None
        for number, handle in enumerate(waiting):
            handle.signal("approved", number)
        for number, handle in enumerate(waiting):
            assert handle.result(60)["found"] == number
        until(lambda: board.job_count == 0)
        assert len(parked) == len(waiting)


def _said(store: persistence.Backend, uuid: str) -> str | None:
    """Why the flow does not go on, as `wbengine flow show` tells it."""
    with contextlib.closing(store.get_connection()) as connection:
        return flow.read(connection, uuid).waiting


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["timeout", "retry"])
def test_flow_goes_on_when_its_time_has_come(kind: str, local: persistence.Backend) -> None:
    expected: Any = contextlib.nullcontext()
    if kind == "timeout":
        expected = pytest.raises(exceptions.SignalTimeout)
    with conducting(local) as (_, parked):
        handle = engines.submit(f"{HERE}:waiting", [kind], backend=local)
        until(lambda: parked == [handle.id])
        assert handle.state == states.SUSPENDED
        told = {"timeout": "It waits for signal 'approved' (", "retry": "Next try at "}[kind]
        assert told in str(_said(local, handle.id))
        with expected:
            assert handle.result(60)["found"] == "found"
    assert parked == [handle.id]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("kind", "seconds"), [("eta", 1.0), ("timeout", 0.2)])
def test_flow_that_waits_for_an_eta_or_for_little_keeps_its_place(
    kind: str, seconds: float, local: persistence.Backend
) -> None:
    """Seconds from now on would be counted anew; to be suspended takes its time, too."""
    with conducting(local) as (_, parked):
        handle = engines.submit(f"{HERE}:waiting", [kind, 0.9 * seconds], backend=local)
        handle.signal("approved", "found") if kind == "timeout" else None
        assert handle.result(60)["found"] == "found"
    assert parked == []


def test_flow_that_waits_is_cancelled_at_once(store: persistence.Backend) -> None:
    with conducting(store) as (_, parked):
        handle = engines.submit(signalled.flow, backend=store)
        until(lambda: parked == [handle.id])
        assert handle.cancel("no")
        with pytest.raises(exceptions.Cancelled):
            handle.result(60)


def test_flow_that_waits_and_is_suspended_stays_so_until_it_is_resumed(
    store: persistence.Backend,
) -> None:
    """Its job is gone: neither its signal nor its time lets a conductor go on with it."""
    with conducting(store) as (board, parked):
        handle = engines.submit(signalled.flow, backend=store)
        until(lambda: parked == [handle.id])
        told = operations.suspend(store, handle.id, reason="a holiday", by="me")
        assert told == operations.Asked(states.SUSPENDED, states.SUSPENDED)
        assert board.job_count == 0
        assert "suspended by me: a holiday" in str(_said(store, handle.id))
        handle.signal("approved", 7)
        # The conductor has looked since: it ran another one.
        assert engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store).wait(60)
        assert handle.state == states.SUSPENDED
    operations.resume(store, handle.id).run()
    assert handle.result(60)["found"] == 7


def test_flow_that_is_suspended_while_its_job_is_parked_stays_so(
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


def test_cancel_is_not_missed_if_the_conductor_dies_when_its_job_waits(
    store: persistence.Backend,
) -> None:
    """It was told before the job was parked, and nobody looks afterwards."""
    handle = engines.submit(signalled.flow, backend=store)
    with boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        [job] = board.iterjobs()
        board.claim(job, "me")
        handle.cancel("no")
        board.park(job, "me", None, 0)
        assert [one.uuid for one in board.iterjobs(only_unclaimed=True)] == [handle.id]


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_what_comes_while_the_flow_is_suspended_is_not_missed(
    what: str, store: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the engine looked last, and before the job waits."""
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


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_what_comes_while_a_job_is_parked_hastens_it(
    what: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tells it waits for the row that is being parked, and does not read the one before."""
    with stores.backend(uri) as store, boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        handle = engines.submit(signalled.flow, backend=store)
        told = (handle.signal, ("approved", 1)) if what == "signal" else (handle.cancel, ())
        sending = threading.Thread(target=told[0], args=told[1])

        def late(connection: Any, flow_uuid: str) -> bool:
            sending.start()
            sending.join(0.5)
            return False

        monkeypatch.setattr(impl_sql, "_is_given_up", late)
        [job] = board.iterjobs()
        board.claim(job, "me")
        board.park(job, "me", None, 0)
        sending.join()
        assert [job.uuid for job in board.iterjobs(only_unclaimed=True)] == [handle.id]


def test_signal_does_not_hasten_a_flow_that_has_not_begun(local: persistence.Backend) -> None:
    handle = engines.submit(signalled.flow, backend=local, eta=3600)
    handle.signal("approved", 1)
    with boards.backend("b", "sql", persistence=local) as board:
        assert next(board.iterjobs(only_unclaimed=True), None) is None


def test_lost_claim_is_not_parked(local: persistence.Backend) -> None:
    """Another conductor has it."""
    engines.submit(signalled.flow, backend=local)
    with boards.backend("b", "sql", persistence=local) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        [job] = board.iterjobs()
        [same] = board.iterjobs()
        board.claim(job, "me", expiry=0.01)
        until(lambda: board.find_owner(job) is None)
        board.claim(same, "me")
        with pytest.raises(exceptions.JobFailure, match="anew"):
            board.park(job, "me", None, 0)
        board.park(same, "me", None, 0)
        with pytest.raises(exceptions.NotFound, match="not claimed"):
            board.park(same, "me", None, 0)


def test_flow_whose_jobs_are_elsewhere_waits_in_its_place(
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
