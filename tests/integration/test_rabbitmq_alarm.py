"""RabbitMQ with a memory alarm: publishing is blocked, consuming continues."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.rabbitmq_clients import Client, ReplyingWorker
from tests.support import brokers, python, sample_tasks, workers
from tests.support.workers import until
from wbengine.transports._amqp import amqp_confirms


@pytest.fixture
def starved(broker_servers: brokers.Brokers) -> Iterator[Any]:
    """Separate RabbitMQ whose alarms affect all its clients, and its URL."""
    server = broker_servers["own rabbitmq"]
    with server.place() as url:
        yield server, url


def is_blocked(side: Client) -> bool:
    """Return True if the connection for publishing is blocked."""
    return side.proxy._sender.is_blocked


def try_to_reply(worker: ReplyingWorker, number: int) -> bool:
    """Reply to a request; return True if it has arrived and its reply is accepted."""
    return len(worker.received) > number and worker.answer(worker.messages[number])


def test_engine_receives_waiting_messages_while_publishing_is_blocked(starved: Any) -> None:
    server, url = starved
    count = 600
    with Client(url, "w").running() as w:
        with Client(url, "e").running() as e:
            e.proxy.consumer.keeps_queue = True
        for number in range(count):
            w.send(number, "e")
        assert w.proxy.flush(60)
        server.alarm()
        with Client(url, "e").running() as e:
            e.send(0, "w")
            e.send(1, "w")
            until(lambda: is_blocked(e))
            until(lambda: len(e.received) == count)
            assert e.received == list(range(count))
            assert is_blocked(e) and not e.proxy.consumer.is_blocked
            server.calm()
            until(lambda: w.received == [0, 1])


def test_messages_published_during_alarm_arrive_once_after_it_ends(
    starved: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp_confirms, "CONFIRM_TIMEOUT_SECONDS", 0.5)
    server, url = starved
    confirmed: list[int] = []
    with Client(url, "e").running() as e, Client(url, "w").running() as w:
        e.send(0, "w")
        until(lambda: w.received == [0])
        server.alarm()
        for number in range(1, 100):
            e.send(number, "w", after=lambda n=number: confirmed.append(n))
        until(lambda: is_blocked(e))
        time.sleep(2)  # nothing may happen during this time
        assert len(confirmed) < 99
        monkeypatch.setattr(amqp_confirms, "CONFIRM_TIMEOUT_SECONDS", 60)
        server.calm()
        assert e.proxy.flush(60)
        until(lambda: len(w.received) >= 100)
        assert (w.received, confirmed) == (list(range(100)), list(range(1, 100)))
    assert [record.getMessage() for record in caplog.records] == [
        "the broker accepts no messages now: it is short of memory or disk",
        "the broker accepts messages again",
    ]


def test_worker_replies_to_held_requests_when_alarm_ends(starved: Any) -> None:
    server, url = starved
    with Client(url, "e").running() as e, ReplyingWorker(url, slots=2).running() as w:
        for number in range(4):
            e.send(number, "q")
        assert e.proxy.flush(60)
        until(lambda: w.received == [0, 1])
        server.alarm()
        assert w.answer(w.messages[0])
        until(lambda: w.proxy.consumer.is_blocked)
        assert not w.answer(w.messages[1])
        server.calm()
        for number in (1, 2, 3):
            until(functools.partial(try_to_reply, w, number))
        until(lambda: len(e.received) == 4)
        assert Counter(e.received) == Counter(w.received) == Counter(range(4))


def test_stop_does_not_wait_for_end_of_alarm(starved: Any) -> None:
    server, url = starved
    with contextlib.ExitStack() as stack:
        e = stack.enter_context(Client(url, "e").running())
        w = stack.enter_context(ReplyingWorker(url).running())
        e.send(1, "q")
        until(lambda: w.received == [1])
        server.alarm()
        assert w.answer(w.messages[0])
        for side in (e, w):
            side.send(2, "e")
            side.send(3, "e")
            until(functools.partial(is_blocked, side))
        until(lambda: w.proxy.consumer.is_blocked)
        for side in (e, w):
            began = time.monotonic()
            side.proxy.stop(timeout=0.1)
            assert side.proxy.consumer.join(60)
            assert time.monotonic() - began < 5


def test_worker_and_status_report_that_broker_accepts_no_messages(starved: Any) -> None:
    server, url = starved
    warning = "the broker accepts no messages: it is short of memory or disk"
    with workers.worker_in_thread(url, sample_tasks.Nothing) as worker:
        until(lambda: worker.trouble is None)
        server.alarm()
        until(lambda: worker.trouble == warning)
        command = python.run(
            ["-m", "wbengine", "status", "--url", url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "(blocked: memory or disk space is low)" in command.stdout
        server.calm()
        until(lambda: worker.trouble is None)
