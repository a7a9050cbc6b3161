"""What a worker tells Celery's monitors, on a broker in this process."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from tests.support import workers
from wbengine.interop.celery import clock
from wbengine.interop.celery.monitoring import publisher

URL = "memory://"
_numbers = itertools.count()


class Ear:
    """Hears what is published, as it is."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        self._connection = kombu.Connection(URL, transport_options={"polling_interval": 0.005})
        self.heard: list[tuple[str, Any, Any]] = []
        kind = kombu.Exchange(exchange, type="topic")
        queue = kombu.Queue(f"{exchange}.ear", kind, routing_key="#", auto_delete=True)
        self._consumer = kombu.Consumer(
            self._connection.channel(), [queue], no_ack=True, on_message=self._on_message
        )
        self._consumer.consume()

    def _on_message(self, message: Any) -> None:
        assert message.properties["delivery_mode"] == 1
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        body = json.loads(message.body)
        self.heard.append((message.delivery_info["routing_key"], message.headers, body))

    def drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._connection.drain_events(timeout=0.01)

    def until(self, key: str) -> list[str]:
        """Wait for a message; the keys of all until then, without heartbeats."""
        workers.until(lambda: self.drain() or any(heard[0] == key for heard in self.heard))
        return [heard[0] for heard in self.heard if heard[0] != "worker.heartbeat"]

    def bodies(self, key: str) -> list[Any]:
        return [body for heard, _, body in self.heard if heard == key]

    def close(self) -> None:
        self._consumer.cancel()
        self._connection.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    with contextlib.closing(Ear(f"events-{next(_numbers)}")) as made:
        yield made


def make(ear: Ear, **options: Any) -> publisher.EventPublisher:
    return publisher.EventPublisher(URL, "w@h", exchange=ear.exchange, **options)


@contextlib.contextmanager
def running(made: publisher.EventPublisher) -> Iterator[publisher.EventPublisher]:
    made.start()
    try:
        yield made
    finally:
        made.stop()


def test_from_hello_to_goodbye(ear: Ear) -> None:
    made = make(ear, facts=lambda: {"active": 2, "processed": 5})
    with running(made):
        assert ear.until("worker.online") == ["worker.online"]
        with made._changed:  # it sees both at once
            made.tell("task-received", uuid="a", name="add")
            made.tell("task-started", uuid="a")
        ear.until("task.multi")
        made.tell("task-succeeded", uuid="a", result="3", runtime=0.1)
        ear.until("task.succeeded")
        made.tell("task-started", uuid="b")  # told before it says goodbye
    assert ear.until("worker.offline") == [
        "worker.online", "task.multi", "task.succeeded", "task.started", "worker.offline",
    ]  # fmt: skip
    assert {heard[1]["hostname"] for heard in ear.heard} == {"w@h"}
    ((first, second),) = ear.bodies("task.multi")
    assert (first["type"], first["uuid"], first["name"]) == ("task-received", "a", "add")
    assert first["clock"] < second["clock"]
    (online,) = ear.bodies("worker.online")
    assert (online["active"], online["processed"], online["freq"]) == (2, 5, 2.0)
    assert len(online["loadavg"]) == 3
    assert online["sw_ident"] == "py-wbengine"
    assert {"hostname", "timestamp", "utcoffset", "pid", "clock", "sw_ver", "sw_sys"} < set(online)
    assert made.counts["sent"] >= 6
    assert made.counts["dropped"] == made.counts["refused"] == 0


def test_the_clock_goes_on_from_what_was_heard(ear: Ear) -> None:
    shared = clock.Clock()
    with running(make(ear, clock=shared)) as made:
        shared.adjust(1000)
        made.tell("task-started", uuid="a")
        ear.until("task.started")
    assert ear.bodies("task.started")[0]["clock"] > 1000


def test_it_beats(ear: Ear) -> None:
    with running(make(ear, period=0.05)):
        workers.until(lambda: ear.drain() or len(ear.bodies("worker.heartbeat")) >= 3)
    assert {body["freq"] for body in ear.bodies("worker.heartbeat")} == {0.05}


def test_it_beats_when_it_is_asked(ear: Ear) -> None:
    with running(make(ear, period=60.0)) as made:
        ear.until("worker.online")
        made.beat()
        ear.until("worker.heartbeat")


def test_facts_that_fail_do_not_end_it(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    def facts() -> dict[str, Any]:
        raise ValueError("boom")

    with running(make(ear, facts=facts)):
        ear.until("worker.online")
    assert ear.bodies("worker.online")[0]["active"] == 0
    assert "boom" in caplog.text


def test_events_of_tasks_can_be_switched(ear: Ear) -> None:
    with running(make(ear, tasks=False)) as made:
        made.tell("task-started", uuid="a")
        assert (made.enabled, made.enable(), made.enable()) == (False, True, False)
        made.tell("task-started", uuid="b")
        ear.until("task.started")
        assert (made.disable(), made.disable(), made.enabled) == (True, False, False)
        made.tell("task-started", uuid="c")
    ear.until("worker.offline")
    assert [body["uuid"] for body in ear.bodies("task.started")] == ["b"]


def test_the_oldest_go_first(ear: Ear) -> None:
    made = make(ear, limit=5)
    for number in range(12):
        made.tell("task-started", uuid=str(number))
    assert made.counts["dropped"] == 7
    with running(made):
        ear.until("task.multi")
    assert [body["uuid"] for body in ear.bodies("task.multi")[0]] == ["7", "8", "9", "10", "11"]


def test_what_is_many_goes_out_in_parts(ear: Ear) -> None:
    made = make(ear)
    for number in range(250):
        made.tell("task-started", uuid=str(number))
    with running(made):
        workers.until(lambda: ear.drain() or len(ear.bodies("task.multi")) == 3)
    assert [len(body) for body in ear.bodies("task.multi")] == [100, 100, 50]


def test_all_of_it_is_told_before_it_ends(ear: Ear) -> None:
    made = make(ear)
    with running(made):
        ear.until("worker.online")
        for number in range(1050):
            made.tell("task-started", uuid=str(number))
    ear.until("worker.offline")
    bodies = [body for key, _, body in ear.heard if key.startswith("task.")]
    told = [event for body in bodies for event in (body if isinstance(body, list) else [body])]
    uuids = [event["uuid"] for event in told]
    assert uuids == [str(number) for number in range(1050)]


def test_other_groups_are_told_one_by_one_and_in_order(ear: Ear) -> None:
    made = make(ear)
    for kind in ("task-started", "task-failed", "my-own-event", "my-own-event", "task-started"):
        made.tell(kind, uuid="a")
    with running(made):
        ear.until("task.started")
    assert ear.until("worker.offline")[1:-1] == [
        "task.multi", "my.own.event", "my.own.event", "task.started",
    ]  # fmt: skip


def test_what_cannot_be_told_does_not_hurt_the_others(
    ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(ear)
    made.tell("task-started", uuid="a")
    made.tell("task-failed", uuid="b", exception=object())
    made.tell("task-started", uuid="c")
    with running(made):
        ear.until("task.started")
    ear.until("worker.offline")
    assert [body["uuid"] for body in ear.bodies("task.started")] == ["a", "c"]
    assert made.counts["refused"] == 1
    assert "a task-failed event cannot be told" in caplog.text


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A broker that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_nobody_waits_for_a_broker_that_is_away(nowhere: str) -> None:
    made = publisher.EventPublisher(nowhere, "w@h", limit=100)
    made.start()
    began = time.monotonic()
    for number in range(2_000):
        made.tell("task-started", uuid=str(number))
    assert time.monotonic() - began < 5
    assert made.counts["dropped"] >= 1_800
    began = time.monotonic()
    made.stop(0.1)
    assert time.monotonic() - began < 5


def test_a_broker_that_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again and again, and told once."""
    tries = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        made = publisher.EventPublisher(f"redis://127.0.0.1:{server.getsockname()[1]}/0", "w@h")
        made.start()
        while tries < 3:
            server.accept()[0].close()
            tries += 1
    made.stop()
    assert not any(thread.name == "wbengine-events" for thread in threading.enumerate())
    assert caplog.text.count("events cannot be told") == 1


def test_a_url_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="amqp://localhost"):
        publisher.EventPublisher("localhost", "w@h")
