"""A worker that takes Celery's task messages: what holds whatever becomes of it and its broker."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.support import celery_errands, celery_guests
from tests.support.brokers import KILLED, Broker, Place
from tests.support.celery_errands import NOTE, REST, REST_AGAIN, WAIT, Client, lines
from tests.support.celery_guests import HASTY, PATIENT, Serve, Start
from tests.support.waiting import RECONNECTED
from tests.support.workers import WorkerProcess, until
from wbengine.engines.worker_based.messages import life as lives
from wbengine.interop.celery.protocol.message import TaskMessage


def value(told: dict[str, Any]) -> Any:
    assert told["status"] == "SUCCESS", told
    return told["result"]


def test_tasks_run_and_their_results_are_kept(client: Client, start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    with start() as (worker,):
        sent = [client.send(NOTE, path, str(number)) for number in range(20)]
        assert [value(client.ended(name)) for name in sent] == [str(n) for n in range(20)]
        unknown = client.ended(client.send("nobody.knows", 1))
        assert (unknown["status"], unknown["result"]["exc_type"]) == ("FAILURE", "NotRegistered")
        assert worker.stop() == 0
    assert sorted(lines(tmp_path / "notes"), key=int) == [str(n) for n in range(20)]
    assert client.left() == []


@pytest.mark.parametrize("broker", KILLED, indirect=True)
def test_a_broker_that_is_killed_and_started_again(
    broker: Broker, client: Client, serve: Serve, tmp_path: Path
) -> None:
    """One ends while it is away, one afterwards; both once, and others follow."""
    short, long = tmp_path / "short", tmp_path / "long"
    gates = tmp_path / "gate", tmp_path / "another"
    with serve() as there:
        first = client.send(WAIT, str(short), str(gates[0]))
        second = client.send(WAIT, str(long), str(gates[1]))
        until(lambda: lines(short) and lines(long))
        broker.kill()
        gates[0].touch()
        until(lambda: there.running == 1)
        broker.start()
        assert value(client.ended(first)) == "waited"
        third = client.send(NOTE, str(tmp_path / "third"), "more")
        gates[1].touch()
        assert value(client.ended(second)) == "waited"
        assert value(client.ended(third)) == "more"
        until(lambda: there.rests)
    assert lines(short) == lines(long) == ["here"]
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)  # it is back before they end
def test_slots_are_busy_whatever_became_of_the_broker(
    broker: Broker, client: Client, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits stays where others can take it."""
    path, gate = tmp_path / "rest", tmp_path / "gate"
    with serve():
        runs = [client.send(WAIT, str(path), str(gate)) for _ in range(2)]
        until(lambda: len(lines(path)) == 2)
        broker.kill()
        broker.start()
        until(lambda: "is back" in caplog.text, within=RECONNECTED)
        waits = client.send(NOTE, str(path), "waits")
        time.sleep(0.3)
        assert len(lines(path)) == 2
        assert client.waiting == 1
        gate.touch()
        assert [value(client.ended(name)) for name in runs] == ["waited", "waited"]
        assert value(client.ended(waits)) == "waits"


@pytest.mark.parametrize("broker", KILLED, indirect=True)
def test_what_is_held_runs_once_whatever_became_of_the_broker(
    broker: Broker, client: Client, serve: Serve, tmp_path: Path
) -> None:
    """It comes again to one of two workers, which may not be the one that held it."""
    path = tmp_path / "notes"
    with serve() as first, serve() as second:
        due = _moment(time.time() + 3)
        sent = list("012345")
        client.publish(*(TaskMessage(NOTE, name, (str(path), name), eta=due) for name in sent))
        until(lambda: first.held + second.held == 6)
        broker.kill()
        broker.start()
        assert [value(client.ended(name)) for name in sent] == list("012345")
        until(lambda: first.rests and second.rests)
    assert sorted(lines(path)) == list("012345")
    assert client.left() == []


@pytest.mark.parametrize("broker", KILLED, indirect=True)
def test_a_broker_that_is_stopped_for_a_while(
    broker: Broker, client: Client, serve: Serve, tmp_path: Path
) -> None:
    path, gate = tmp_path / "wait", tmp_path / "gate"
    with serve() as there:
        name = client.send(WAIT, str(path), str(gate))
        until(lambda: lines(path))
        broker.pause()
        gate.touch()
        until(lambda: there.running == 0)
        broker.resume()
        assert value(client.ended(name)) == "waited"
        assert value(client.ended(client.send(NOTE, str(path), "more"))) == "more"
        until(lambda: there.rests)
    assert lines(path) == ["here", "more"]


def test_told_to_end_it_finishes_what_runs_and_gives_back_the_rest(
    client: Client, start: Start, tmp_path: Path
) -> None:
    """What it gave back nobody may take for something that has begun."""
    path, gate = tmp_path / "wait", tmp_path / "gate"
    with start() as (worker,):
        client.send(NOTE, str(path), "held", eta=_moment(time.time() + 3600), id="held")
        until(lambda: client.waiting == 0)
        runs = [client.send(WAIT, str(path), str(gate)) for _ in range(2)]
        until(lambda: len(lines(path)) == 2)
        worker.signal(signal.SIGTERM)
        until(lambda: client.waiting == 1)
        assert worker.process.poll() is None  # it still runs both
        (back,) = client.left()
        assert back.headers["id"] == "held"
        assert not (back.headers.get("redelivered") or back.delivery_info.get("redelivered"))
        gate.touch()
        assert worker.wait() == 0
    assert [value(client.ended(name)) for name in runs] == ["waited", "waited"]


def test_what_was_given_back_runs_elsewhere(client: Client, serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "rest"
    with serve() as first:
        held = client.send(NOTE, str(path), "held", eta=_moment(time.time() + 3))
        until(lambda: first.held == 1)
    with serve():
        assert value(client.ended(held)) == "held"
    assert lines(path) == ["held"]


def test_told_twice_it_ends_at_once(client: Client, start: Start, tmp_path: Path) -> None:
    """What it gives up fails, unless it may run again: that goes back."""
    path = tmp_path / "rest"
    with start() as (worker,):
        lost, again = client.send(REST, str(path), 600), client.send(REST_AGAIN, str(path), 600)
        until(lambda: len(lines(path)) == 2)
        worker.signal(signal.SIGTERM)
        until(lambda: "taking nothing new" in worker.text)
        time.sleep(0.2)  # signals that are closer to each other are one
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1
    told = client.ended(lost)
    assert (told["status"], told["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
    assert [message.headers["id"] for message in client.left()] == [again]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("killed", [False, True])
def test_the_visibility_timeout_of_a_redis(
    killed: bool, client: Client, start: Start, serve: Serve, soon: dict[str, Any], tmp_path: Path
) -> None:
    """What takes longer stays with its worker, for as long as that lives."""
    path = tmp_path / "rest"
    with start("--threads", "1", options=soon) as (worker,):  # it cannot take it from the others
        name = client.send(REST, str(path), 600.0 if killed else 3.0)
        until(lambda: lines(path))
        with serve(soon, threads=1, patience=HASTY if killed else PATIENT) as second:
            if killed:
                worker.process.kill()
                assert client.ended(name)["result"]["exc_type"] == "WorkerLostError"
                until(lambda: second.rests)
            else:
                assert value(client.ended(name)) == 3.0
                assert worker.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_a_worker_of_celery_put_back(
    url: Place, client: Client, serve: Serve, tmp_path: Path
) -> None:
    """It is marked as delivered before, but Celery acknowledges what it begins."""
    name = client.send(NOTE, str(tmp_path / "notes"), "back")
    with kombu.Connection(str(url)) as connection:
        channel = connection.channel()
        message = channel.basic_get("celery")
        channel.qos.restore_by_tag(message.delivery_tag)
    with serve() as there:
        assert value(client.ended(name)) == "back"
        until(lambda: there.rests)
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_worker_that_was_stopped_for_long(
    url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    """Its message comes back to it: it goes on to be its own, and is not run again."""
    path, gate = tmp_path / "rest", tmp_path / "gate"
    with start(options={"visibility_timeout": 2}) as (worker,):
        name = client.send(WAIT, str(path), str(gate))
        until(lambda: lines(path))
        worker.signal(signal.SIGSTOP)
        with kombu.Connection(str(url)) as connection:
            channel = connection.channel()
            (tag,) = channel.client.hkeys("unacked")
            channel.qos.restore_by_tag(tag)  # as others do when its time is over
            assert client.waiting == 1
            worker.signal(signal.SIGCONT)
            until(lambda: client.waiting == 0)
            taken = channel.client.zscore("unacked_index", tag)
            # It says again that it has it.
            until(lambda: (channel.client.zscore("unacked_index", tag) or 0.0) > taken)
            assert channel.client.hkeys("unacked") == [tag]
        gate.touch()
        assert value(client.ended(name)) == "waited"
        assert worker.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == []


def test_it_ends_by_itself(client: Client, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for number in range(5):
        client.send(NOTE, str(path), str(number))
    with start("--max-tasks", "3") as (worker,):
        assert worker.wait(60) == 0
    assert len(lines(path)) == 3
    with start("--burst") as (worker,):
        assert worker.wait(60) == 0
    assert sorted(lines(path)) == list("01234")
    assert client.left() == []


def test_what_takes_too_long_is_given_up(client: Client, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "rest"
    with start("--drain-timeout", "0.3") as (worker,):
        name = client.send(REST, str(path), 60)
        until(lambda: lines(path))
        assert worker.stop() == 1
    assert client.ended(name)["result"]["exc_type"] == "WorkerLostError"


def test_a_queue_that_is_there_with_other_arguments(
    broker: Broker, url: Place, client: Client, serve: Serve, tmp_path: Path
) -> None:
    """Its priorities are those of its broker: a Redis serves the lowest number first."""
    path = tmp_path / "notes"
    exchange = kombu.Exchange("celery", type="direct")
    queue = kombu.Queue("celery", exchange, "celery", max_priority=10)
    with kombu.Connection(str(url)) as connection:
        queue(connection.channel()).declare()
    first, last = (9, 1) if broker.kind == "rabbitmq" else (0, 9)
    messages = [TaskMessage(NOTE, str(n), (str(path), str(n)), priority=n) for n in (last, first)]
    client.publish(*messages, declare=False)
    with serve(threads=1):
        for name in (first, last):
            client.ended(str(name))
    assert lines(path) == [str(first), str(last)]


def test_what_is_held_makes_room_at_once(client: Client, serve: Serve) -> None:
    """However few slots there are, what is due one day keeps nobody from what comes after it."""
    due = _moment(time.time() + 3600)
    sent = [TaskMessage(NOTE, str(number), ("/dev/null", ""), eta=due) for number in range(200)]
    with serve() as there:
        client.publish(*sent)
        until(lambda: there.held == 200, within=2.0)
        assert client.waiting == 0


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_quorum_queue(url: Place, client: Client, serve: Serve, tmp_path: Path) -> None:
    """It knows no prefetch that several consumers share.  What is held takes nobody's slot."""
    path = tmp_path / "notes"
    arguments = {"x-queue-type": "quorum"}
    queue = kombu.Queue("celery", kombu.Exchange("celery"), "celery", queue_arguments=arguments)
    with kombu.Connection(str(url)) as connection:
        queue(connection.channel()).declare()
    with serve() as there:
        due = _moment(time.time() + 4)
        held = [TaskMessage(NOTE, str(n), (str(path), "held"), eta=due) for n in range(7)]
        client.publish(*held, declare=False)
        until(lambda: there.held == 7)
        client.publish(TaskMessage(NOTE, "now", (str(path), "now")), declare=False)
        assert value(client.ended("now")) == "now"
        assert lines(path) == ["now"]
        for number in range(7):
            assert value(client.ended(str(number))) == "held"
        until(lambda: there.rests)
    assert len(lines(path)) == 8


def test_suspended_it_takes_nothing(client: Client, serve: Serve) -> None:
    with serve() as there:
        held = client.send(NOTE, "/dev/null", "held", eta=_moment(time.time() + 3600))
        until(lambda: there.held == 1)
        there.worker.suspend()
        until(lambda: client.waiting == 1)
        client.send(NOTE, "/dev/null", "more", id="more")
        time.sleep(0.3)
        assert client.waiting == 2
        there.worker.resume()
        assert value(client.ended("more")) == "more"
        until(lambda: there.held == 1)
        assert client.meta(held) is None
    assert client.waiting == 1


@pytest.mark.parametrize("scheme", ["memory", "filesystem"])
def test_other_transports_of_kombu(scheme: str, redis_url: Place, tmp_path: Path) -> None:
    options = {}
    if scheme == "filesystem":
        options = {f"data_folder_{way}": str(tmp_path) for way in ("in", "out")}
        options["control_folder"] = str(tmp_path / "control")
    url = f"{scheme}://"
    with celery_guests.serving(url, redis_url, options):
        client = Client(url, redis_url, options=options)
        sent = [client.send(NOTE, "/dev/null", str(number)) for number in range(10)]
        assert [value(client.ended(name)) for name in sent] == [str(n) for n in range(10)]


def test_a_broker_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wbengine import worker
    from wbengine.interop.celery import brokers

    monkeypatch.setattr(brokers, "CONNECT_TIMEOUT", 2.0)
    nowhere = ["--celery-queue", "q", "--celery-broker", "redis://127.0.0.1:1/0"]
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert worker.main([*nowhere, "--tasks", celery_errands.__name__]) == 69
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "redis://127.0.0.1:1/0 cannot be reached" in capsys.readouterr().err


def test_topics_and_queues_at_once(
    url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    from tests.support.celery_errands import Note
    from wbengine import engines
    from wbengine.patterns import linear_flow

    place = f"filesystem://{tmp_path / 'broker'}"
    with start("--topic", "t", "--url", place) as (worker,):
        name = client.send(NOTE, str(tmp_path / "one"), "celery")
        flow = linear_flow.Flow("f").add(Note(provides="noted"))
        store = {"path": str(tmp_path / "two"), "text": "flow"}
        values = engines.run(flow, store=store, engine="worker-based", url=place)
        assert values["noted"] == "flow"
        assert value(client.ended(name)) == "celery"
        assert worker.stop() == 0


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_it_runs_is_its_current_work(client: Client, serve: Serve, tmp_path: Path) -> None:
    path, gate = tmp_path / "wait", tmp_path / "gate"
    before = time.time()
    with serve() as there:
        name = client.send(WAIT, str(path), str(gate))
        until(lambda: lines(path))
        told = lives.Life.from_header(there.worker.life.to_header())  # as in its beats
        assert told is not None
        assert told.current == ((name, WAIT),)
        assert before - 1 < told.since[0] < time.time() + 1
        gate.touch()
        until(lambda: there.rests)
        assert there.worker.life.current == ()


def test_an_idle_worker_rests(client: Client, start: Start, tmp_path: Path) -> None:
    """And is awake at once."""

    def took() -> float:
        began = time.monotonic()
        client.ended(client.send(NOTE, str(tmp_path / "notes")))
        return time.monotonic() - began

    with start() as (worker,):
        took()
        before = _woken(worker)
        time.sleep(1)
        assert _woken(worker) - before < 50  # it is some 5
        assert min(took() for _ in range(3)) < 1.0
        assert worker.stop() == 0


def _woken(worker: WorkerProcess) -> int:
    """How often one of its threads was woken."""
    told = "".join(
        path.read_text() for path in Path(f"/proc/{worker.process.pid}/task").glob("*/status")
    )
    return sum(map(int, re.findall(r"(?m)^voluntary_ctxt_switches:\s+(\d+)$", told)))


def _moment(seconds: float) -> Any:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
