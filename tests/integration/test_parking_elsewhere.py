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
from wbengine.jobs.backends import impl_redis, impl_sql
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


def serving(
    store: persistence.Backend, place: str, most: int = 1, **options: Any
) -> service.ConductorService:
    fetched = boards.fetch("served", place, persistence=store)
    return service.ConductorService(store, board=fetched, max_simultaneous=most, **options)


def submit(store: persistence.Backend, board: jobs.JobBoard, **named: Any) -> Any:
    return engines.submit(signalled.flow, backend=store, board=board, **named)


def is_parked(handle: _submission.FlowHandle, board: jobs.JobBoard) -> bool:
    return handle.state == states.WAITING and board.job_count == 0


def parked_jobs(store: persistence.Backend, board: jobs.JobBoard) -> _parked_jobs.ParkedJobs:
    parked = _parked_jobs.ParkedJobs.of(board, store)
    assert parked is not None
    return parked


def test_waiting_flows_hold_no_place_and_leave_the_board(
    store: persistence.Backend, board: jobs.JobBoard, place: str
) -> None:
    waiting = [submit(store, board) for _ in range(3)]
    with conducted.running(serving(store, place)):
        until(lambda: all(is_parked(handle, board) for handle in waiting))
        later = engines.submit(f"{HERE}:waiting", ["eta", 1.0], backend=store, board=board)
        assert later.result(60)["found"] == "found"
        for number, handle in enumerate(waiting):
            handle.signal("approved", number)
        for number, handle in enumerate(waiting):
            assert handle.result(60)["found"] == number
        until(lambda: board.job_count == 0)
    assert parked_jobs(store, board).board.job_count == 0


def test_stopped_and_cancelled_while_parked(
    store: persistence.Backend, board: jobs.JobBoard, place: str
) -> None:
    with conducted.running(serving(store, place)):
        suspended, cancelled = submit(store, board), submit(store, board)
        until(lambda: is_parked(suspended, board) and is_parked(cancelled, board))
        operations.suspend(store, suspended.id)
        assert cancelled.cancel("no")
        with pytest.raises(exceptions.Cancelled):
            cancelled.result(60)
        suspended.signal("approved", 7)
        # The service has polled since then.
        assert engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store, board=board).wait(60)
        assert suspended.state == states.SUSPENDED
        operations.request(store, suspended.id, "resume")
        assert suspended.result(60)["found"] == 7


def test_job_of_parked_flow_is_posted_once(
    store: persistence.Backend, board: jobs.JobBoard, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service does not repair flows whose job is in the database of the flows."""
    posted: list[object] = []
    searches: list[None] = []
    search = service.ConductorService._resume_lost

    def counted(self: service.ConductorService) -> None:
        search(self)
        searches.append(None)

    monkeypatch.setattr(service.ConductorService, "_resume_lost", counted)
    fetched: Any = boards.fetch("served", place, persistence=store)
    fetched.notifier.register(jobs.POSTED, lambda _, details: posted.append(details))
    with conducted.running(service.ConductorService(store, board=fetched)):
        handle = submit(store, board)
        until(lambda: is_parked(handle, board))
        posted.clear()
        with monkeypatch.context() as held:
            held.setattr(_parked_jobs.ParkedJobs, "post_due", lambda self, who: None)
            assert handle.cancel("no")
            searches.clear()
            until(lambda: len(searches) > 2)
            assert posted == []
        with pytest.raises(exceptions.Cancelled):
            handle.result(60)
        until(lambda: board.job_count == 0)
    assert posted


def test_death_after_posting_a_parked_job_is_harmless(
    store: persistence.Backend, board: jobs.JobBoard, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parked job stays, and is posted again when its claim has expired."""
    monkeypatch.setattr(_parked_jobs, "_CLAIM_SECONDS", 0.5)
    consume, died = impl_sql.SQLJobBoard.consume, threading.Event()

    def die(self: Any, job: jobs.Job, who: str) -> None:
        if not died.is_set():
            died.set()
            raise exceptions.JobFailure("it died")
        consume(self, job, who)

    with conducted.running(serving(store, place)):
        handle = submit(store, board)
        until(lambda: is_parked(handle, board))
        monkeypatch.setattr(impl_sql.SQLJobBoard, "consume", die)
        handle.signal("approved", 1)
        assert handle.result(60)["found"] == 1
        assert died.is_set()
        left = parked_jobs(store, board).board
        until(lambda: board.job_count == 0 and left.job_count == 0)


@pytest.mark.parametrize("is_parked_here", [True, False])
def test_conductor_that_cannot_park_releases_the_job(
    store: persistence.Backend, redis_url: brokers.Place, is_parked_here: bool
) -> None:
    """Another one claims the earlier job of the flow to post it. Its post has no effect then."""
    with boards.backend("board", str(redis_url), persistence=store) as board:
        handle = submit(store, board)
        parked = parked_jobs(store, board)
        (job,) = board.take("me", 1)
        if not is_parked_here:
            assert parked.board.park(job, "me", 0.0, 0)
            assert [each.uuid for each in parked.board.take("another", 1)] == [handle.id]
        parked.leave(job, "me", parked.board.park(job, "me", None, 0))
        assert board.job_count == (0 if is_parked_here else 1)
        assert parked.board.job_count == 1


def test_flow_in_a_paused_queue_does_not_begin_when_its_limit_permits_it(
    store: persistence.Backend, redis_url: brokers.Place
) -> None:
    with boards.backend("board", str(redis_url), persistence=store) as board:
        assert isinstance(board, impl_redis.RedisJobBoard)
        first, second = [
            engines.submit(limited.waiting, backend=store, board=board, inputs={"tenant": "a"})
            for _ in range(2)
        ]
        with conducted.running(serving(store, str(redis_url))):
            until(lambda: is_parked(first, board) and is_parked(second, board))
            board.job_queues.pause("default")
            first.signal("go")
            assert first.wait(60)
            until(lambda: board.job_count == 1)
            second.signal("go")
            assert not second.wait(1)
            board.job_queues.resume("default")
            assert second.wait(60)


def test_flow_of_a_queue_that_no_conductor_serves_takes_no_permit(
    store: persistence.Backend, redis_url: brokers.Place
) -> None:
    url, both = str(redis_url), ("default", "reports")

    def submitted(queue: str) -> Any:
        return engines.submit(
            limited.waiting, backend=store, board=board, inputs={"tenant": "a"}, queue=queue
        )

    with boards.backend("board", url, persistence=store) as board:
        parked = parked_jobs(store, board)
        with conducted.running(serving(store, url, queues=both)):
            handles = [submitted(queue) for queue in ("default", "reports", "default")]
            until(lambda: all(is_parked(handle, board) for handle in handles))
        first, blocked, other = handles
        other.signal("go")
        with conducted.running(serving(store, url, queues=("default",))):
            first.signal("go")
            assert other.wait(60)
            assert parked.has(blocked.id) and board.job_count == 0
        blocked.signal("go")
        with conducted.running(serving(store, url, queues=both)):
            assert blocked.wait(60)


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_change_during_parking_is_not_missed(
    what: str, store: persistence.Backend, board: jobs.JobBoard, place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    park: Callable[..., Any] = impl_sql.SQLJobBoard.park
    handle = submit(store, board)

    def late(*args: Any) -> None:
        monkeypatch.setattr(impl_sql.SQLJobBoard, "park", park)
        handle.signal("approved", 1) if what == "signal" else handle.cancel()
        park(*args)

    monkeypatch.setattr(impl_sql.SQLJobBoard, "park", late)
    with conducted.running(serving(store, place)):
        assert handle.wait(60)
    assert handle.state == (states.SUCCESS if what == "signal" else states.REVERTED)


def test_job_that_stayed_on_both_boards_is_harmless(
    store: persistence.Backend, board: jobs.JobBoard, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conductor died between the two steps: the claim on the first job expires."""
    monkeypatch.setattr(impl_executor.ExecutorConductor, "CLAIM_SECONDS", 1.0)
    kind: Any = type(board)
    consume, refused = kind.consume, threading.Event()

    def refuse(self: Any, job: jobs.Job, who: str) -> None:
        if not refused.is_set():
            refused.set()
            raise exceptions.JobFailure("it died")
        consume(self, job, who)

    monkeypatch.setattr(kind, "consume", refuse)
    with conducted.running(serving(store, place)):
        handle = submit(store, board)
        assert refused.wait(60)
        until(lambda: handle.state == states.WAITING)
    with conducted.running(serving(store, place)):
        until(lambda: is_parked(handle, board))
        handle.signal("approved", 1)
        assert handle.result(60)["found"] == 1
        until(lambda: board.job_count == 0)
    assert parked_jobs(store, board).board.job_count == 0


def test_flows_wait_for_their_limit_without_a_place(
    store: persistence.Backend, board: jobs.JobBoard, place: str
) -> None:
    handles = [
        engines.submit(limited.waiting, backend=store, board=board, inputs={"tenant": tenant})
        for tenant in ("a", "a", "a", "b")
    ]
    with conducted.running(serving(store, place)):
        until(lambda: all(is_parked(handle, board) for handle in handles))
        for handle in handles:
            handle.signal("go")
        for handle in handles:
            assert handle.wait(60)


def test_command_that_reverts_a_parked_flow_removes_its_job(
    store: persistence.Backend, uri: str, redis_url: brokers.Place
) -> None:
    with boards.backend("board", str(redis_url), persistence=store) as board:
        with conducted.running(serving(store, str(redis_url))):
            handle = submit(store, board)
            until(lambda: is_parked(handle, board))
        command = ["flow", "revert", handle.id, "--here", "--yes", "--persistence", uri]
        environment = {**os.environ, "WBENGINE_BOARD": str(redis_url)}
        python.run(["-m", "wbengine", *command], env=environment)
        assert handle.state == states.REVERTED
        assert board.job_count == parked_jobs(store, board).board.job_count == 0


def test_parked_flow_continues_after_its_board_lost_its_data(store: persistence.Backend) -> None:
    """The board has another id then, but the same address."""
    with (
        brokers.redis() as server,
        boards.backend("board", server.url(), persistence=store) as board,
    ):
        with conducted.running(serving(store, server.url())):
            handle = submit(store, board)
            until(lambda: is_parked(handle, board))
        with contextlib.closing(redis.Redis.from_url(server.url())) as client:
            client.flushall()
        with conducted.running(serving(store, server.url())):
            handle.signal("approved", 1)
            assert handle.result(60)["found"] == 1


def test_conductor_of_another_board_does_not_take_parked_flows(
    store: persistence.Backend, redis_url: brokers.Place, broker_servers: brokers.Brokers
) -> None:
    with boards.backend("board", str(redis_url), persistence=store) as board:
        with conducted.running(serving(store, str(redis_url))):
            handle = submit(store, board)
            until(lambda: is_parked(handle, board))
        handle.signal("approved", 1)
        with (
            broker_servers["redis"].place() as elsewhere,
            boards.backend("other", str(elsewhere), persistence=store) as other,
            conducted.running(serving(store, str(elsewhere))),
        ):
            last = engines.submit(f"{HERE}:waiting", ["eta", 0.0], backend=store, board=other)
            assert last.wait(60)
        assert not handle.wait(0)
        with conducted.running(serving(store, str(redis_url))):
            assert handle.result(60)["found"] == 1
