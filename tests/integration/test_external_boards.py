"""Flows in a database whose jobs are on a board in Redis, ZooKeeper or etcd."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import brokers, conducted, python, requested, servers
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.conductors import service
from wbengine.conductors.backends import impl_blocking
from wbengine.jobs import _stored
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.persistence import base as persistence
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules._service import ScheduleService

HERE = "tests.support.conducted"
KINDS = ("redis", "zookeeper", "etcd")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, broker_servers: brokers.Brokers) -> Iterator[str]:
    with broker_servers[request.param].place() as found:
        yield str(found)


@pytest.fixture
def board(place: str, store: persistence.Backend) -> Iterator[jobs.JobBoard]:
    with boards.backend("board", place, persistence=store) as made:
        yield made


def serving(
    store: persistence.Backend, board: jobs.JobBoard
) -> contextlib.AbstractContextManager[None]:
    """Run the service of `wbengine serve --board` in a thread, and close the board afterwards."""
    return conducted.running(service.ConductorService(store, board=board))


def greet(
    store: persistence.Backend, board: jobs.JobBoard, name: str = "Ada", **options: Any
) -> engines.FlowHandle:
    """Submit a flow."""
    inputs = {"name": name}
    return engines.submit(f"{HERE}:greeting", backend=store, board=board, inputs=inputs, **options)


def die(*args: object) -> None:
    """Stand for a process that dies before it posts a job."""
    raise exceptions.JobFailure("it died")


def inputs(folder: Path, mark: str = "m") -> dict[str, Any]:
    return {"folder": str(folder), "mark": mark}


def test_conductor_of_the_board_runs_submitted_flow(
    store: persistence.Backend, place: str, tmp_path: Path
) -> None:
    with boards.backend("mine", place, persistence=store) as mine:
        handle = greet(store, mine, priority="high")
        [job] = mine.iterjobs()
        assert (job.uuid, job.priority) == (handle.id, jobs.JobPriority.HIGH)
        assert handle.state == states.PENDING
        with serving(store, boards.fetch("served", place, persistence=store)):
            assert handle.result(60)["greeting"] == "hello Ada"
            until(lambda: mine.job_count == 0)
        assert engines.handle(handle.id, backend=store, board=mine).wait(0)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_conductor_of_the_board_runs_flows_of_submit_many(
    store: persistence.Backend, place: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service also finds the flows if the submitter dies before it posts their jobs."""
    with boards.backend("mine", place, persistence=store) as mine:
        given = [{"name": f"n{number}"} for number in range(20)]
        if dies:
            monkeypatch.setattr(mine, "repost_all", die)
        with pytest.raises(exceptions.JobFailure) if dies else contextlib.nullcontext():
            engines.submit_many(f"{HERE}:greeting", given, backend=store, board=mine)
        assert mine.job_count == (0 if dies else len(given))
        with contextlib.closing(store.get_connection()) as connection:
            uuids = [row.uuid for row in connection.list_flows().flows]
        assert len(uuids) == len(given)
        with serving(store, boards.fetch("served", place, persistence=store)):
            found = {engines.handle(uuid, backend=store).result(60)["name"] for uuid in uuids}
        assert found == {one["name"] for one in given}


def test_requests_restore_jobs_of_the_board_from_the_trash(
    store: persistence.Backend, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conductor that could create no engine trashed the job of a flow; another flow has ended."""
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.05)
    with boards.backend("mine", place, persistence=store) as mine:
        pending = greet(store, mine)
        (job,) = mine.iterjobs()
        mine.claim(job, "me")
        mine.trash(job, "me")
        with requested.failing_step():
            ended = engines.submit(requested.STEPS, backend=store, board=mine)
            with serving(store, boards.fetch("served", place, persistence=store)):
                assert ended.wait(60)
                until(lambda: mine.job_count == 0)
        operations.request(store, pending.id, "resume")
        operations.request(store, ended.id, "retry")
        with serving(store, boards.fetch("served", place, persistence=store)):
            assert pending.result(60)["greeting"] == "hello Ada"
            assert ended.result(60)["of_d"] == "d"


@pytest.mark.parametrize("dies", [False, True])
def test_conductor_of_the_board_runs_flow_of_fired_schedule(
    store: persistence.Backend, place: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow is stored before its job, so it also runs if the job is not posted."""
    kept = Schedules(store)
    kept.add(Schedule(name="s", factory=f"{HERE}:greeting", every=3600, inputs={"name": "Ada"}))
    uuid = kept.run("s")
    with (
        boards.backend("mine", place, persistence=store) as mine,
        monkeypatch.context() as patch,
    ):
        if dies:
            patch.setattr(mine, "repost", die)
        assert ScheduleService(store, mine).fire_due() == 0
        assert mine.job_count == (not dies) and kept.get("s").wanted is None
    with serving(store, boards.fetch("served", place, persistence=store)):
        handle = engines.handle(uuid, backend=store)
        assert handle.result(60)["greeting"] == "hello Ada"


def test_second_conductor_takes_over_job_of_killed_conductor(
    store: persistence.Backend, uri: str, place: str, tmp_path: Path
) -> None:
    where = f"{place}?timeout=2" if place.startswith("zookeeper") else place
    command = ["-m", HERE, uri, str(tmp_path), "2", where]
    with boards.backend("mine", where, persistence=store) as mine:
        told = {"folder": str(tmp_path), "value": 1, "nap": 0.3}
        job, uuid = conducted.post(mine, store, conducted.audited, "flow", inputs=told)
        with python.start(command, cwd=servers.REPOSITORY) as first:
            until(lambda: len(conducted.notes(tmp_path, "runs")) >= 2)
            first.send_signal(signal.SIGKILL)
        assert mine.find_owner(job) == "conductor"
        with python.start(command, cwd=servers.REPOSITORY) as second:
            until(lambda: job.state == states.COMPLETE, within=20)
            second.kill()
    # Saved tasks are not repeated. Only the task that was running at the kill runs again.
    conducted.check_runs(tmp_path, 1)
    assert len(conducted.notes(tmp_path, "runs")) <= 5
    assert engines.handle(uuid, backend=store).state == states.SUCCESS


# Queues of boards that have them.


@pytest.fixture(params=["redis", "memory"])
def queued(
    request: pytest.FixtureRequest, redis_url: brokers.Place, store: persistence.Backend
) -> Iterator[_stored.BaseStoredJobBoard]:
    """A board with queues, which the conductors of this process also use."""
    url = str(redis_url) if request.param == "redis" else "memory"
    with boards.backend("queued", url, persistence=store) as board:
        assert isinstance(board, _stored.BaseStoredJobBoard)
        yield board


def test_conductor_serves_named_queues_of_a_board(
    store: persistence.Backend, queued: _stored.BaseStoredJobBoard
) -> None:
    queues = queued.job_queues
    assert queues is not None
    submitted = [
        greet(store, queued, name, queue=queue, fair_key=name)
        for name, queue in (("Ada", None), ("Bob", "mails"), ("Cy", "reports"))
    ]
    assert [queue.name for queue in queues.all()] == ["default", "mails", "reports"]
    conductor = service.ConductorService(store, board=queued, queues=["reports", "mails"])
    with conducted.running(conductor):
        assert [handle.result(60)["name"] for handle in submitted[1:]] == ["Bob", "Cy"]
        until(lambda: queues.is_served("mails"))
        assert not queues.is_served("default") and submitted[0].state == states.PENDING


def test_paused_queue_of_a_board_carries_out_commands(
    store: persistence.Backend,
    queued: _stored.BaseStoredJobBoard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.05)
    assert queued.job_queues is not None
    queued.job_queues.pause("*")
    new, cancelled = greet(store, queued), greet(store, queued)
    assert cancelled.cancel()
    with serving(store, queued):
        assert cancelled.wait(60)
    assert cancelled.state == states.REVERTED and new.state == states.PENDING


def test_interrupted_submission_is_posted_in_its_queue(
    store: persistence.Backend, redis_url: brokers.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boards.backend("mine", str(redis_url), persistence=store) as mine:
        submit_without_job(store, mine, monkeypatch, queue="mails", fair_key="a")
        with serving(store, boards.fetch("served", str(redis_url), persistence=store)):
            until(lambda: mine.job_count == 1)
        assert isinstance(mine, _stored.StoredJobBoard) and mine.job_queues is not None
        mails = mine.job_queues.keys("mails")
    assert [(key.key, key.waiting) for key in mails] == [("a", 1)]


@pytest.mark.parametrize("place", ["zookeeper", "etcd"], indirect=True)
def test_board_without_queues_refuses_flows_before_they_are_stored(
    store: persistence.Backend, place: str
) -> None:
    kept = Schedules(store)
    kept.add(
        Schedule(
            name="s", factory=f"{HERE}:greeting", every=3600, queue="mails", inputs={"name": "Ada"}
        )
    )
    kept.run("s")
    with boards.backend("mine", place, persistence=store) as mine:
        places: list[dict[str, Any]] = [{"queue": "x"}, {"fair_key": "x"}]
        for place_of_flow in places:
            with pytest.raises(ValueError, match=r"= requires .* a database or in Redis"):
                greet(store, mine, **place_of_flow)
        with pytest.raises(ValueError, match="queues require a job board in a database or in Re"):
            service.ConductorService(store, board=mine, queues=["mails"])
        ScheduleService(store, mine).fire_due()
        assert mine.job_count == 0
    with contextlib.closing(store.get_connection()) as connection:
        assert not connection.list_flows().flows


# The flow and its job are in two systems.

SUBMITS = """
import os, sys
from wbengine import engines
from wbengine._concurrency import crash_points as _crash
_crash.install(lambda name: os._exit(9) if name == "submit.kept" else None)
engines.submit("tests.support.conducted:greeting", backend=sys.argv[1], board=sys.argv[2],
               inputs={"name": "Ada"}, priority="low")
"""


def test_flow_is_run_if_submitter_dies_before_posting_the_job(
    store: persistence.Backend, uri: str, redis_url: brokers.Place, tmp_path: Path
) -> None:
    # A flow that was loaded and not submitted.
    engines.load_from_factory(conducted.plain, inputs=inputs(tmp_path), backend=store)
    died = python.run(["-c", SUBMITS, uri, redis_url], cwd=servers.REPOSITORY)
    assert died.returncode == 9
    with contextlib.closing(store.get_connection()) as connection:
        rows = connection.list_flows().flows
    [uuid] = [row.uuid for row in rows if row.name == "greeting"]
    with boards.backend("mine", str(redis_url), persistence=store) as mine:
        assert mine.job_count == 0
        # A conductor of another board leaves the flow alone.
        conf = {"board": str(redis_url), "namespace": "other"}
        other = boards.fetch("other", conf, persistence=store)
        with serving(store, other):
            until(lambda: other.connected)
        handle = engines.handle(uuid, backend=store, board=mine)
        with boards.backend("other", conf) as looked_at:
            assert looked_at.job_count == mine.job_count == 0
        assert handle.state == states.PENDING
        with serving(store, boards.fetch("served", str(redis_url), persistence=store)):
            assert handle.result(60)["greeting"] == "hello Ada"
            until(lambda: mine.job_count == 0)
    assert conducted.notes(tmp_path) == []


def test_submit_reports_saved_flow_if_the_board_is_unreachable(
    store: persistence.Backend, redis_server: brokers.Broker, redis_url: brokers.Place
) -> None:
    with boards.backend("mine", str(redis_url), persistence=store) as mine:
        redis_server.kill()
        with pytest.raises(exceptions.JobFailure, match=r"Flow \S+ is saved, but its job") as told:
            greet(store, mine, "A")
        redis_server.start()
        uuid = str(told.value).split()[1]
        with serving(store, boards.fetch("served", str(redis_url), persistence=store)):
            assert engines.handle(uuid, backend=store, board=mine).result(60)["name"] == "A"


class CountingConductor(impl_blocking.BlockingConductor):
    """Conductor that counts its connection attempts."""

    attempts = 0

    def connect(self) -> None:
        self.attempts += 1
        super().connect()


def test_conductor_logs_unreachable_board_once_and_retries(
    store: persistence.Backend,
    redis_server: brokers.Broker,
    redis_url: brokers.Place,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`run` connects the board, so a conductor can start before its board."""
    caplog.set_level(logging.INFO, "wbengine.conductors")
    with boards.backend("mine", str(redis_url), persistence=store) as mine:
        conducted.post(mine, store, conducted.plain, inputs=inputs(tmp_path))
    redis_server.kill()
    board = boards.fetch("late", str(redis_url), persistence=store)
    conductor = CountingConductor("c", board, persistence=store)
    with contextlib.closing(board), conducted.running(conductor):
        until(lambda: "retrying until the job board answers" in caplog.text)
        attempts = conductor.attempts
        until(lambda: conductor.attempts > attempts + 20)
        redis_server.start()
        until(lambda: len(conducted.notes(tmp_path)) == 2)
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "retrying until the job board answers" in line]) == 1
    assert len([line for line in told if "job board late answers again" in line]) == 1


# Several boards, and boards that lose jobs.


def submit_without_job(
    store: persistence.Backend, board: jobs.JobBoard, monkeypatch: pytest.MonkeyPatch, **told: Any
) -> engines.FlowHandle:
    """Submit a flow whose submitter dies before it posts the job."""
    with monkeypatch.context() as patch:
        patch.setattr(board, "repost_all", die)
        with pytest.raises(exceptions.JobFailure, match="is saved") as raised:
            greet(store, board, **told)
    return engines.handle(str(raised.value).split()[1], backend=store, board=board)


def test_handle_finds_job_posted_by_another_process(
    store: persistence.Backend, redis_url: brokers.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conductor of the board can post the job before the submitter does."""
    with boards.backend("mine", str(redis_url), persistence=store) as mine:
        assert isinstance(mine, _stored.StoredJobBoard)
        post = mine.repost_all

        def late(*told: Any) -> list[_stored.StoredJob | None]:
            post(*told)
            return post(*told)

        monkeypatch.setattr(mine, "repost_all", late)
        handle = greet(store, mine)
        [job] = mine.iterjobs()
        mine.claim(job, "me")
        mine.consume(job, "me")
        with pytest.raises(exceptions.JobFailure, match="its job was deleted"):
            handle.wait(10)


def lose_engine(store: persistence.Backend, uuid: str) -> None:
    """Set the state of a flow to that after the death of its engine."""
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        detail.state = states.RUNNING
        connection.update_flow_details(detail)


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("other", ["redis", "sql"])
def test_conductor_of_another_board_leaves_the_flow_alone(
    store: persistence.Backend,
    redis_url: brokers.Place,
    broker_servers: brokers.Brokers,
    monkeypatch: pytest.MonkeyPatch,
    is_begun: bool,
    other: str,
) -> None:
    """The conductors of its board post its job with the submitted priority."""
    with (
        boards.backend("mine", str(redis_url), persistence=store) as mine,
        broker_servers["redis"].place() as elsewhere,
    ):
        handle = submit_without_job(store, mine, monkeypatch, priority="high")
        # When this flow has run, the service has polled the first one, too.
        last = engines.load_from_factory(
            conducted.greeting, inputs={"name": "Bob"}, backend=store
        ).storage.flow_uuid
        lose_engine(store, last)
        if is_begun:
            lose_engine(store, handle.id)
        before = handle.state
        theirs = boards.fetch(
            "theirs", "sql" if other == "sql" else str(elsewhere), persistence=store
        )
        monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.1)
        with serving(store, theirs):
            assert engines.handle(last, backend=store, board=mine).wait(60)
            if other == "redis":
                with boards.backend("also", str(elsewhere), persistence=store) as also:
                    assert submit_without_job(store, also, monkeypatch).wait(60)
            assert handle.state == before
        assert mine.job_count == 0
        served = boards.fetch("served", str(redis_url), persistence=store)
        assert isinstance(served, jobs.NotifyingJobBoard)
        posted: list[jobs.Job] = []
        served.notifier.register(jobs.POSTED, lambda _, details: posted.append(details["job"]))
        with serving(store, served):
            assert handle.result(60)["greeting"] == "hello Ada"
        assert [(job.uuid, job.priority) for job in posted] == [(handle.id, jobs.JobPriority.HIGH)]


@pytest.mark.parametrize("loses", ["all", "the last"])
def test_jobs_lost_by_redis_are_posted_again(
    store: persistence.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    """This also works if no poll of the board failed in the meantime."""
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 2.0)
    mark = f"lost {loses}"
    gate, begun = threading.Event(), threading.Event()
    monkeypatch.setitem(conducted.GATES, mark, gate)
    monkeypatch.setitem(conducted.BEGUN, mark, begun)
    with (
        brokers.redis() as server,
        boards.backend("mine", server.url(), persistence=store) as mine,
    ):
        served = service.ConductorService(
            store, board=boards.fetch("s", server.url(), persistence=store), max_simultaneous=1
        )
        with conducted.running(served), contextlib.ExitStack() as stack:
            stack.callback(gate.set)
            gated = inputs(tmp_path, mark)
            engines.submit(f"{HERE}:gated", inputs=gated, backend=store, board=mine)
            assert begun.wait(60)
            set_back = server.copy_data()
            waiting = greet(store, mine)
            # The next poll posts the job of this flow, and has then checked the other one.
            submit_without_job(store, mine, monkeypatch)
            until(lambda: mine.job_count == 3)
            if loses == "all":
                with server.client() as client:
                    client.flushdb()
            else:
                set_back()
            gate.set()
            until(lambda: waiting.state == states.SUCCESS)
