"""A worker that takes Celery's task messages: what holds whatever becomes of it and its broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests import celery_errands, workers
from tests.brokers import Broker, Brokers, Place
from tests.celery_errands import NOTE, REST, REST_AGAIN, WAIT, Client, lines
from tests.workers import WorkerProcess, until

Start = Callable[..., AbstractContextManager[list[WorkerProcess]]]


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, broker_servers: Brokers) -> Broker:
    return broker_servers[request.param]


@pytest.fixture
def url(broker: Broker) -> Iterator[Place]:
    with broker.place() as place:
        yield place


@pytest.fixture
def client(url: Place, redis_url: Place) -> Client:
    return Client(url, redis_url)


@pytest.fixture
def start(url: Place, redis_url: Place, tmp_path: Path) -> Start:
    def workers_there(*more: str, count: int = 1) -> Any:
        given = ("--celery-broker", str(url), "--celery-result-backend", str(redis_url))
        tasks = ("--celery-queue", "celery", "--tasks", celery_errands.__name__)
        return workers.workers(tmp_path, *tasks, *given, "--threads", "2", *more, count=count)

    return workers_there


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


def test_a_broker_that_is_killed_and_started_again(
    broker: Broker, client: Client, start: Start, tmp_path: Path
) -> None:
    """One ends while it is away, one afterwards; both once, and others follow."""
    short, long = tmp_path / "short", tmp_path / "long"
    with start() as (worker,):
        first, second = client.send(REST, str(short), 0.5), client.send(REST, str(long), 3.0)
        until(lambda: lines(short) and lines(long))
        broker.kill()
        time.sleep(0.8)  # the first ends meanwhile
        broker.start()
        until(lambda: "is back" in worker.text)
        assert value(client.ended(first)) == 0.5
        third = client.send(NOTE, str(tmp_path / "third"), "more")
        assert value(client.ended(second)) == 3.0
        assert value(client.ended(third)) == "more"
        assert worker.stop() == 0
    assert lines(short) == lines(long) == ["here"]
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)  # it is back before they end
def test_slots_are_busy_whatever_became_of_the_broker(
    broker: Broker, client: Client, start: Start, tmp_path: Path
) -> None:
    """What waits stays where others can take it."""
    path, gate = tmp_path / "rest", tmp_path / "gate"
    with start() as (worker,):
        runs = [client.send(WAIT, str(path), str(gate)) for _ in range(2)]
        until(lambda: len(lines(path)) == 2)
        broker.kill()
        broker.start()
        until(lambda: "is back" in worker.text)
        waits = client.send(NOTE, str(path), "waits")
        time.sleep(0.3)
        assert len(lines(path)) == 2
        assert client.waiting == 1
        gate.touch()
        assert [value(client.ended(name)) for name in runs] == ["waited", "waited"]
        assert value(client.ended(waits)) == "waits"
        assert worker.stop() == 0


def test_what_is_held_runs_once_whatever_became_of_the_broker(
    broker: Broker, client: Client, start: Start, tmp_path: Path
) -> None:
    """It comes again to one of two workers, which may not be the one that held it."""
    path = tmp_path / "notes"
    with start(count=2) as (first, second):
        until(lambda: all("serving Celery's queues" in each.text for each in (first, second)))
        due = _moment(time.time() + 3)
        sent = [client.send(NOTE, str(path), str(number), eta=due) for number in range(6)]
        until(lambda: client.waiting == 0)
        broker.kill()
        broker.start()
        assert [value(client.ended(name)) for name in sent] == list("012345")
        assert first.stop() == second.stop() == 0
    assert sorted(lines(path)) == list("012345")
    assert client.left() == []


def test_a_broker_that_is_stopped_for_a_while(
    broker: Broker, client: Client, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "rest"
    with start() as (worker,):
        name = client.send(REST, str(path), 0.5)
        until(lambda: lines(path))
        broker.pause()
        time.sleep(2.0)
        broker.resume()
        assert value(client.ended(name)) == 0.5
        assert value(client.ended(client.send(NOTE, str(path), "more"))) == "more"
        assert worker.stop() == 0
    assert lines(path) == ["here", "more"]


def test_told_to_end_it_finishes_what_runs_and_gives_back_the_rest(
    client: Client, start: Start, tmp_path: Path
) -> None:
    """What it gave back nobody may take for something that has begun."""
    path = tmp_path / "rest"
    with start() as (worker,):
        client.send(NOTE, str(path), "held", eta=_moment(time.time() + 3600), id="held")
        until(lambda: client.waiting == 0)
        runs = [client.send(REST, str(path), 1.5) for _ in range(2)]
        until(lambda: len(lines(path)) == 2)
        worker.signal(signal.SIGTERM)
        until(lambda: client.waiting == 1)
        assert worker.process.poll() is None  # it still runs both
        (back,) = client.left()
        assert back.headers["id"] == "held"
        assert not (back.headers.get("redelivered") or back.delivery_info.get("redelivered"))
        assert worker.wait() == 0
    assert [value(client.ended(name)) for name in runs] == [1.5, 1.5]


def test_what_was_given_back_runs_elsewhere(client: Client, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "rest"
    with start() as (first,):
        until(lambda: "serving Celery's queues" in first.text)
        held = client.send(NOTE, str(path), "held", eta=_moment(time.time() + 3))
        until(lambda: client.waiting == 0)
        assert first.stop() == 0
        with start() as (second,):
            assert value(client.ended(held)) == "held"
            assert second.stop() == 0
    assert lines(path) == ["held"]


def test_told_twice_it_ends_at_once(client: Client, start: Start, tmp_path: Path) -> None:
    """What it gives up fails, unless it may run again: that goes back."""
    path = tmp_path / "rest"
    with start() as (worker,):
        lost, again = client.send(REST, str(path), 60), client.send(REST_AGAIN, str(path), 60)
        until(lambda: len(lines(path)) == 2)
        worker.signal(signal.SIGTERM)
        until(lambda: "taking nothing new" in worker.text)
        time.sleep(0.2)
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1
        assert time.monotonic() - began < 5
    told = client.ended(lost)
    assert (told["status"], told["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
    assert [message.headers["id"] for message in client.left()] == [again]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
@pytest.mark.parametrize("killed", [False, True])
def test_the_visibility_timeout_of_a_redis(
    killed: bool, client: Client, start: Start, tmp_path: Path
) -> None:
    """What takes longer stays with its worker, for as long as that lives."""
    path = tmp_path / "rest"
    # One slot: it cannot take it from the others.
    quick = ("visibility_timeout=2", "unacked_restore_interval=1", "unacked_restore_throttle=1")
    options = ["--threads", "1"]
    options += [word for each in quick for word in ("--celery-broker-option", each)]
    with start(*options) as (worker,):
        name = client.send(REST, str(path), 60.0 if killed else 5.0)
        until(lambda: lines(path))
        with start(*options) as (second,):
            if killed:
                worker.process.kill()
                assert client.ended(name)["result"]["exc_type"] == "WorkerLostError"
            else:
                assert value(client.ended(name)) == 5.0
                assert worker.stop() == 0
            assert second.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_what_a_worker_of_celery_put_back(
    url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    """It is marked as delivered before, but Celery acknowledges what it begins."""
    name = client.send(NOTE, str(tmp_path / "notes"), "back")
    with kombu.Connection(str(url)) as connection:
        channel = connection.channel()
        message = channel.basic_get("celery")
        channel.qos.restore_by_tag(message.delivery_tag)
    with start() as (worker,):
        assert value(client.ended(name)) == "back"
        assert worker.stop() == 0
    assert client.left() == []


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_worker_that_was_stopped_for_long(
    url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    """Its message comes back to it: it goes on to be its own, and is not run again."""
    path, gate = tmp_path / "rest", tmp_path / "gate"
    with start("--celery-broker-option", "visibility_timeout=4") as (worker,):
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
        assert worker.wait() == 0
    assert len(lines(path)) == 3
    with start("--burst") as (worker,):
        assert worker.wait() == 0
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
    broker: Broker, url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    """Its priorities are those of its broker: a Redis serves the lowest number first."""
    path = tmp_path / "notes"
    exchange = kombu.Exchange("celery", type="direct")
    queue = kombu.Queue("celery", exchange, "celery", max_priority=10)
    with kombu.Connection(str(url)) as connection:
        queue(connection.channel()).declare()
    first, last = (9, 1) if broker.kind == "rabbitmq" else (0, 9)
    with kombu.Connection(str(url)) as connection, connection.Producer() as producer:
        for priority in (last, first):
            message = celery_errands.TaskMessage(
                NOTE, str(priority), (str(path), str(priority)), priority=priority
            )
            wire = celery_errands.codec.encode(message)
            producer.publish(wire.body, routing_key="celery", **wire.arguments())
    with start("--threads", "1") as (worker,):
        for name in (first, last):
            client.ended(str(name))
        assert worker.stop() == 0
    assert lines(path) == [str(first), str(last)]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_quorum_queue(url: Place, client: Client, start: Start, tmp_path: Path) -> None:
    """It knows no prefetch that several consumers share.  What is held takes nobody's slot."""
    path = tmp_path / "notes"
    arguments = {"x-queue-type": "quorum"}
    queue = kombu.Queue("celery", kombu.Exchange("celery"), "celery", queue_arguments=arguments)
    with kombu.Connection(str(url)) as connection:
        queue(connection.channel()).declare()
        message = celery_errands.TaskMessage(NOTE, "held", (str(path), "held"))
        with connection.Producer() as producer:
            for number in range(7):
                message.id, message.eta = str(number), _moment(time.time() + 8)
                wire = celery_errands.codec.encode(message)
                producer.publish(wire.body, routing_key="celery", **wire.arguments())
            message.id, message.eta, message.args = "now", None, (str(path), "now")
            wire = celery_errands.codec.encode(message)
            producer.publish(wire.body, routing_key="celery", **wire.arguments())
        with start() as (worker,):
            assert value(client.ended("now")) == "now"
            assert lines(path) == ["now"]
            for number in range(7):
                assert value(client.ended(str(number))) == "held"
            assert worker.stop() == 0
    assert len(lines(path)) == 8


def test_suspended_it_takes_nothing(url: Place, client: Client, redis_url: Place) -> None:
    from wbengine.engines.worker_based import worker as workers_

    guest = _guest(url, redis_url)
    made = workers_.Worker("default", (), [celery_errands], guests=[guest], threads_count=2)
    thread = threading.Thread(target=made.run, kwargs={"display_banner": False})
    thread.start()
    try:
        assert made.wait(20)
        held = client.send(NOTE, "/dev/null", "held", eta=_moment(time.time() + 3600))
        until(lambda: guest.known("held") == 1)
        made.suspend()
        until(lambda: client.waiting == 1)
        client.send(NOTE, "/dev/null", "more", id="more")
        time.sleep(0.5)
        assert client.waiting == 2
        made.resume()
        assert value(client.ended("more")) == "more"
        until(lambda: guest.known("held") == 1)
        assert client.meta(held) is None
    finally:
        made.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert client.waiting == 1


@pytest.mark.parametrize("scheme", ["memory", "filesystem"])
def test_other_transports_of_kombu(scheme: str, redis_url: Place, tmp_path: Path) -> None:
    options = {}
    if scheme == "filesystem":
        options = {f"data_folder_{way}": str(tmp_path) for way in ("in", "out")}
        options["control_folder"] = str(tmp_path / "control")
    url = f"{scheme}://"
    guest = _guest(url, redis_url, options)
    from wbengine.engines.worker_based import worker as workers_

    made = workers_.Worker("default", (), [celery_errands], guests=[guest], threads_count=2)
    thread = threading.Thread(target=made.run, kwargs={"display_banner": False})
    thread.start()
    try:
        assert made.wait(20)
        client = Client(url, redis_url, options=options)
        sent = [client.send(NOTE, "/dev/null", str(number)) for number in range(10)]
        assert [value(client.ended(name)) for name in sent] == [str(n) for n in range(10)]
    finally:
        made.stop()
        thread.join(20)
    assert not thread.is_alive()


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


def _guest(url: str, results: str, options: Any = None) -> Any:
    from wbengine.interop.celery import brokers
    from wbengine.interop.celery.worker import backends, guest, mapping

    return guest.Guest(
        brokers.Broker(url, options),
        ["celery"],
        mapping.Tasks([celery_errands]),
        node="test@here",
        backend=backends.backend_for(results),
    )


def test_topics_and_queues_at_once(
    url: Place, client: Client, start: Start, tmp_path: Path
) -> None:
    from tests.celery_errands import Note
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


def test_an_idle_worker_rests(client: Client, start: Start, tmp_path: Path) -> None:
    """And is awake at once."""
    with start() as (worker,):
        client.ended(client.send(NOTE, str(tmp_path / "notes")))
        time.sleep(0.5)
        before = _seconds(worker)
        time.sleep(2)
        assert _seconds(worker) - before < 0.06
        began = time.monotonic()
        client.ended(client.send(NOTE, str(tmp_path / "notes")))
        assert time.monotonic() - began < 1.0
        assert worker.stop() == 0


def _seconds(worker: WorkerProcess) -> float:
    """Of processor time that it used."""
    words = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _moment(seconds: float) -> Any:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
