"""Hearing events, on a broker in this process."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from tests.support import workers
from wbengine import exceptions
from wbengine.interop.celery import clock
from wbengine.interop.celery.monitoring import events, publisher, receiver

URL = "memory://"
FAST = {"polling_interval": 0.005}
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_LOOK", 0.05)


class Mouth:
    """Publishes anything as events."""

    def __init__(self) -> None:
        self.exchange = f"heard-{next(_numbers)}"
        self._connection = kombu.Connection(URL)
        self._channel = self._connection.channel()
        self._where = kombu.Exchange(self.exchange, type="topic", channel=self._channel)
        self._where.declare()

    def say(self, body: Any, key: str = "task.x", **options: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kombu.Producer(self._channel).publish(
            data, exchange=self._where, routing_key=key,
            **{"content_type": "application/json", "content_encoding": "utf-8", **options},
        )  # fmt: skip

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def mouth() -> Iterator[Mouth]:
    with contextlib.closing(Mouth()) as made:
        yield made


def make(mouth: Mouth, handlers: Any = None, **options: Any) -> receiver.EventReceiver:
    return receiver.EventReceiver(
        URL, handlers, exchange=mouth.exchange, transport_options=FAST, **options
    )


@contextlib.contextmanager
def running(made: receiver.EventReceiver) -> Iterator[receiver.EventReceiver]:
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    assert made.wait(60)
    try:
        yield made
    finally:
        made.stop()
        thread.join(60)
        assert not thread.is_alive()


def body(kind: str = "task-started", uuid: str = "u", **fields: Any) -> dict[str, Any]:
    return {
        "type": kind, "hostname": "w@h", "clock": 5, "timestamp": 1.5, "utcoffset": 0, "pid": 3,
        "uuid": uuid, **fields,
    }  # fmt: skip


def test_both_forms_come_to_handlers_and_into_the_state(mouth: Mouth) -> None:
    heard: list[tuple[str, str]] = []
    made = make(
        mouth,
        {
            "task-started": lambda event: heard.append(("started", event.uuid)),
            "*": lambda event: heard.append((event.type, event.uuid)),
        },
    )
    with running(made):
        mouth.say(body(), "task.started")
        mouth.say([body("task-received", "a", name="add"), body("task-failed", "b")], "task.multi")
        workers.until(lambda: made.counts["received"] == 3)
    assert heard == [("started", "u"), ("task-received", "a"), ("task-failed", "b")]
    assert {task.uuid: task.state for task in made.state.tasks()} == {
        "u": "STARTED", "a": "RECEIVED", "b": "FAILURE",
    }  # fmt: skip
    assert [worker.hostname for worker in made.state.alive()] == ["w@h"]


def test_one_of_a_list_does_not_hurt_the_others(mouth: Mouth) -> None:
    made = make(mouth)
    with running(made):
        mouth.say([body(uuid="a"), {"type": 7}, body(uuid="b")])
        workers.until(lambda: made.counts["received"] == 2)
    assert made.counts["refused"] == 1
    assert {task.uuid for task in made.state.tasks()} == {"a", "b"}


def test_what_is_packed_is_unpacked_as_far_as_it_makes_sense(mouth: Mouth) -> None:
    packer = zlib.compressobj()
    part = bytes(1 << 20)
    bomb = b"".join(packer.compress(part) for _ in range(200)) + packer.flush()
    made = make(mouth)
    with running(made):
        headers = {"compression": "application/x-gzip"}
        mouth.say(zlib.compress(json.dumps(body(uuid="a")).encode()), headers=headers)
        tracemalloc.start()
        try:
            mouth.say(bomb, headers=headers)
            workers.until(lambda: made.counts["refused"] == 1)
            assert tracemalloc.get_traced_memory()[1] < 100 << 20
        finally:
            tracemalloc.stop()
    assert made.state.task("a")


def test_it_can_be_iterated_over(mouth: Mouth) -> None:
    made = make(mouth)
    found: list[str | None] = []

    def listen() -> None:
        for event in made:
            found.append(event.uuid)
            if event.uuid == "last":
                break

    thread = threading.Thread(target=listen)
    thread.start()
    assert made.wait(60)
    mouth.say([body(uuid="first"), body(uuid="second")])
    mouth.say(body(uuid="last"))
    thread.join(60)
    assert found == ["first", "second", "last"]


def test_its_clock_moves_on_with_what_it_hears(mouth: Mouth) -> None:
    shared = clock.Clock(7)
    made = make(mouth, clock=shared)
    with running(made):
        mouth.say(body(clock=100))
        mouth.say(body(clock=50))
        mouth.say(body(clock=None))
        mouth.say(body("task-sent", clock=10_000))  # clients hear nothing, and are not believed
        workers.until(lambda: made.counts["received"] == 4)
    assert shared.value == 104


def test_it_hears_what_is_asked_for(mouth: Mouth) -> None:
    made = make(mouth, routing_key="worker.#")
    with running(made):
        mouth.say(body(), "task.started")
        mouth.say(body("worker-online"), "worker.online")
        workers.until(lambda: made.counts["received"] == 1)
    assert made.state.counts == {"worker": 1}


def test_a_handler_that_fails_is_called_again(
    mouth: Mouth, caplog: pytest.LogCaptureFixture
) -> None:
    heard = []

    def handler(event: events.Event) -> None:
        heard.append(event)
        raise ValueError("boom")

    made = make(mouth, {"*": handler})
    with running(made):
        mouth.say([body(), body()])
        workers.until(lambda: len(heard) == 2)
    assert made.counts["failed"] == 2
    assert "boom" in caplog.text


def test_mutated_messages_never_end_it(mouth: Mouth, caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(3)
    made = make(mouth)
    good = json.dumps([body(), body()]).encode()
    with running(made):
        for turn in range(2000):
            data = bytearray(good)
            for _ in range(dice.randint(1, 3)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            mouth.say(
                bytes(data),
                content_type=dice.choice(["application/json"] * 9 + ["application/x-yaml"]),
                content_encoding=dice.choice(["utf-8", "binary", "nonsense"]),
                headers={"compression": "application/x-bz2"} if turn % 5 == 0 else {},
            )
        mouth.say(body(uuid="the last"))
        workers.until(lambda: made.state.task("the last"))
    assert made.counts["connected"] == 1
    assert made.counts["refused"] > 500
    assert made.counts["received"] > 100
    assert 0 < caplog.text.count("what came is no event") < 100


def test_it_hears_our_own_publisher(mouth: Mouth) -> None:
    told = publisher.EventPublisher(URL, "me@h", exchange=mouth.exchange, period=60.0)
    made = make(mouth)
    with running(made):
        told.start()
        told.tell("task-received", uuid="a", name="add")
        told.tell("task-started", uuid="a")
        workers.until(lambda: (task := made.state.task("a")) and task.state == "STARTED")
        (worker,) = made.state.alive()
        assert (worker.hostname, worker.freq, worker.sw_ident) == ("me@h", 60.0, "py-wbengine")
        told.stop()
        workers.until(lambda: not made.state.alive())


def test_it_can_be_stopped_before_it_begins(mouth: Mouth) -> None:
    made = make(mouth)
    made.stop()
    made.run()
    assert made.counts == {}


def test_a_connection_that_kombu_made_anew_by_itself_is_noticed() -> None:
    """Nobody consumes over that one."""
    with kombu.Connection(URL) as connection:
        channel = connection.default_channel
        receiver._check(connection, channel)
        connection.revive(connection.channel())
        with pytest.raises(exceptions.TransportFailure, match="replaced"):
            receiver._check(connection, channel)


def test_a_broker_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    made = receiver.EventReceiver("amqp://127.0.0.1:1//")
    thread = threading.Thread(target=made.run)
    thread.start()
    workers.until(lambda: "events cannot be heard" in caplog.text)
    assert not made.wait(0)
    made.stop()
    thread.join(60)
    assert not thread.is_alive()
