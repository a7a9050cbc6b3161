"""Parked flows whose jobs are on a board in Redis, ZooKeeper or etcd."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import brokers, conducted, limited, python, signalled
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.conductors import service
from wbengine.conductors.backends import impl_executor
from wbengine.engines import _submission
from wbengine.jobs import _parked_jobs
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base as persistence

HERE = "tests.support.signalled"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture(params=("redis", "zookeeper", "etcd"))
def place(request: pytest.FixtureRequest, broker_servers: brokers.Brokers) -> Iterator[str]:
    with broker_servers[request.param].place() as found:
        yield str(found)


@pytest.fixture
def board(place: str, store: persistence.Backend) -> Iterator[jobs.JobBoard]:
    with boards.backend("board", place, persistence=store) as made:
        yield made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl_executor.ExecutorConductor, "PARK_SECONDS", 0.3)
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.2)


class Site:
    """A store whose jobs are on a board elsewhere."""

    def __init__(self, store: persistence.Backend, board: jobs.JobBoard, place: str) -> None:
        self.store, self.board, self.place = store, board, place

    def serving(self, **options: Any) -> contextlib.AbstractContextManager[None]:
        """Run the service of the board in a thread."""
        fetched = boards.fetch("served", self.place, persistence=self.store)
        options = {"max_simultaneous": 1, **options}
        return conducted.running(service.ConductorService(self.store, board=fetched, **options))

    def submit(self, factory: Any = signalled.flow, *args: Any, **options: Any) -> Any:
        return engines.submit(factory, *args, backend=self.store, board=self.board, **options)

    def is_parked(self, handle: _submission.FlowHandle) -> bool:
        return handle.state == states.WAITING and self.board.job_count == 0

    def submit_parked(self) -> Any:
        """Submit a flow to a running service, and wait until it is parked."""
        handle = self.submit()
        until(lambda: self.is_parked(handle))
        return handle

    @property
    def parked_jobs(self) -> _parked_jobs.ParkedJobs:
        parked = _parked_jobs.ParkedJobs.of(self.board, self.store)
        assert parked is not None
        return parked


@pytest.fixture
def site(store: persistence.Backend, board: jobs.JobBoard, place: str) -> Site:
    return Site(store, board, place)


on_redis = pytest.mark.parametrize("place", ["redis"], indirect=True)


def test_waiting_flows_hold_no_place_and_leave_the_board(site: Site) -> None:
    waiting = [site.submit() for _ in range(3)]
    with site.serving():
        until(lambda: all(site.is_parked(handle) for handle in waiting))
        later = site.submit(f"{HERE}:waiting", ["eta", 1.0])
        assert later.result(60)["found"] == "found"
        for number, handle in enumerate(waiting):
            handle.signal("approved", number)
        for number, handle in enumerate(waiting):
            assert handle.result(60)["found"] == number
        until(lambda: site.board.job_count == 0)
    assert site.parked_jobs.board.job_count == 0


def test_stopped_and_cancelled_while_parked(site: Site) -> None:
    with site.serving():
        suspended, cancelled = site.submit(), site.submit()
        until(lambda: site.is_parked(suspended) and site.is_parked(cancelled))
        operations.suspend(site.store, suspended.id)
        assert cancelled.cancel("no")
        with pytest.raises(exceptions.Cancelled):
            cancelled.result(60)
        suspended.signal("approved", 7)
        # The service has polled since then.
        assert site.submit(f"{HERE}:waiting", ["eta", 0.0]).wait(60)
        assert suspended.state == states.SUSPENDED
        operations.request(site.store, suspended.id, "resume")
        assert suspended.result(60)["found"] == 7


def test_job_of_parked_flow_is_posted_once(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """The service does not repair flows whose job is in the database of the flows."""
    posted: list[object] = []
    searches: list[None] = []
    search = service.ConductorService._resume_lost

    def counted(self: service.ConductorService) -> None:
        search(self)
        searches.append(None)

    monkeypatch.setattr(service.ConductorService, "_resume_lost", counted)
    fetched: Any = boards.fetch("served", site.place, persistence=site.store)
    fetched.notifier.register(jobs.POSTED, lambda _, details: posted.append(details))
    with conducted.running(service.ConductorService(site.store, board=fetched)):
        handle = site.submit_parked()
        posted.clear()
        with monkeypatch.context() as held:
            held.setattr(_parked_jobs.ParkedJobs, "post_due", lambda self, who: None)
            assert handle.cancel("no")
            searches.clear()
            until(lambda: len(searches) > 2)
            assert posted == []
        with pytest.raises(exceptions.Cancelled):
            handle.result(60)
        until(lambda: site.board.job_count == 0)
    assert posted


def test_death_after_posting_a_parked_job_is_harmless(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    """The parked job stays, and is posted again when its claim has expired."""
    monkeypatch.setattr(_parked_jobs, "_CLAIM_SECONDS", 0.5)
    consume, died = impl_sql.SQLJobBoard.consume, threading.Event()

    def die(self: Any, job: jobs.Job, who: str) -> None:
        if not died.is_set():
            died.set()
            raise exceptions.JobFailure("it died")
        consume(self, job, who)

    with site.serving():
        handle = site.submit_parked()
        monkeypatch.setattr(impl_sql.SQLJobBoard, "consume", die)
        handle.signal("approved", 1)
        assert handle.result(60)["found"] == 1
        assert died.is_set()
        left = site.parked_jobs.board
        until(lambda: site.board.job_count == 0 and left.job_count == 0)


@pytest.mark.parametrize("is_parked_here", [True, False])
@on_redis
def test_conductor_that_cannot_park_releases_the_job(is_parked_here: bool, site: Site) -> None:
    """Another one claims the earlier job of the flow to post it. Its post has no effect then."""
    handle = site.submit()
    parked = site.parked_jobs
    (job,) = site.board.take("me", 1)
    if not is_parked_here:
        assert parked.board.park(job, "me", 0.0, 0)
        assert [each.uuid for each in parked.board.take("another", 1)] == [handle.id]
    parked.leave(job, "me", parked.board.park(job, "me", None, 0))
    assert site.board.job_count == (0 if is_parked_here else 1)
    assert parked.board.job_count == 1


@on_redis
def test_flow_in_a_paused_queue_does_not_begin_when_its_limit_permits_it(site: Site) -> None:
    first, second = [site.submit(limited.waiting, inputs={"tenant": "a"}) for _ in range(2)]
    with site.serving():
        until(lambda: site.is_parked(first) and site.is_parked(second))
        site.board.job_queues.pause("default")
        first.signal("go")
        assert first.wait(60)
        until(lambda: site.board.job_count == 1)
        second.signal("go")
        assert not second.wait(1)
        site.board.job_queues.resume("default")
        assert second.wait(60)


@on_redis
def test_flow_of_a_queue_that_no_conductor_serves_takes_no_permit(site: Site) -> None:
    both = ("default", "reports")
    with site.serving(queues=both):
        first, blocked, other = handles = [
            site.submit(limited.waiting, inputs={"tenant": "a"}, queue=queue)
            for queue in ("default", "reports", "default")
        ]
        until(lambda: all(site.is_parked(handle) for handle in handles))
    other.signal("go")
    with site.serving(queues=("default",)):
        first.signal("go")
        assert other.wait(60)
        assert site.parked_jobs.has(blocked.id) and site.board.job_count == 0
    blocked.signal("go")
    with site.serving(queues=both):
        assert blocked.wait(60)


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_change_during_parking_is_not_missed(
    what: str, monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    park: Callable[..., Any] = impl_sql.SQLJobBoard.park
    handle = site.submit()

    def late(*args: Any) -> None:
        monkeypatch.setattr(impl_sql.SQLJobBoard, "park", park)
        handle.signal("approved", 1) if what == "signal" else handle.cancel()
        park(*args)

    monkeypatch.setattr(impl_sql.SQLJobBoard, "park", late)
    with site.serving():
        assert handle.wait(60)
    assert handle.state == (states.SUCCESS if what == "signal" else states.REVERTED)


def test_job_that_stayed_on_both_boards_is_harmless(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    """The conductor died between the two steps: the claim on the first job expires."""
    monkeypatch.setattr(impl_executor.ExecutorConductor, "CLAIM_SECONDS", 1.0)
    kind: Any = type(site.board)
    consume, refused = kind.consume, threading.Event()

    def refuse(self: Any, job: jobs.Job, who: str) -> None:
        if not refused.is_set():
            refused.set()
            raise exceptions.JobFailure("it died")
        consume(self, job, who)

    monkeypatch.setattr(kind, "consume", refuse)
    with site.serving():
        handle = site.submit()
        assert refused.wait(60)
        until(lambda: handle.state == states.WAITING)
    with site.serving():
        until(lambda: site.is_parked(handle))
        handle.signal("approved", 1)
        assert handle.result(60)["found"] == 1
        until(lambda: site.board.job_count == 0)
    assert site.parked_jobs.board.job_count == 0


def test_flows_wait_for_their_limit_without_a_place(site: Site) -> None:
    handles = [
        site.submit(limited.waiting, inputs={"tenant": tenant}) for tenant in ("a", "a", "a", "b")
    ]
    with site.serving():
        until(lambda: all(site.is_parked(handle) for handle in handles))
        for handle in handles:
            handle.signal("go")
        for handle in handles:
            assert handle.wait(60)


@on_redis
def test_command_that_reverts_a_parked_flow_removes_its_job(uri: str, site: Site) -> None:
    with site.serving():
        handle = site.submit_parked()
    command = ["flow", "revert", handle.id, "--here", "--yes", "--persistence", uri]
    environment = {**os.environ, "WBENGINE_BOARD": site.place}
    python.run(["-m", "wbengine", *command], env=environment)
    assert handle.state == states.REVERTED
    assert site.board.job_count == site.parked_jobs.board.job_count == 0


def test_parked_flow_continues_after_its_board_lost_its_data(store: persistence.Backend) -> None:
    """The board has another id then, but the same address."""
    with (
        brokers.redis() as server,
        boards.backend("board", server.url(), persistence=store) as board,
    ):
        site = Site(store, board, server.url())
        with site.serving():
            handle = site.submit_parked()
        with contextlib.closing(redis.Redis.from_url(server.url())) as client:
            client.flushall()
        with site.serving():
            handle.signal("approved", 1)
            assert handle.result(60)["found"] == 1


@on_redis
def test_conductor_of_another_board_does_not_take_parked_flows(
    broker_servers: brokers.Brokers, site: Site
) -> None:
    with site.serving():
        handle = site.submit_parked()
    handle.signal("approved", 1)
    with (
        broker_servers["redis"].place() as elsewhere,
        boards.backend("other", str(elsewhere), persistence=site.store) as board,
    ):
        other = Site(site.store, board, str(elsewhere))
        with other.serving():
            assert other.submit(f"{HERE}:waiting", ["eta", 0.0]).wait(60)
    assert not handle.wait(0)
    with site.serving():
        assert handle.result(60)["found"] == 1
