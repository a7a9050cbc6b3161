"""What a worker gives back to a RabbitMQ is there once, whatever becomes of its connection."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import celery_errands, tcp_proxy
from tests.brokers import Place, Rabbitmq
from tests.celery_errands import NOTE, REFUSE, Client
from tests.workers import until
from wbengine.engines.worker_based import worker as workers
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.worker import backends, guest, mapping

LATER = dt.datetime.fromtimestamp(time.time() + 3600, dt.timezone.utc)

#: More than one transaction takes.
MANY = 230


@pytest.fixture
def client(rabbitmq_url: Place, redis_url: Place) -> Client:
    return Client(rabbitmq_url, redis_url)


@contextlib.contextmanager
def serving(url: str, results: str) -> Iterator[tuple[workers.Worker, guest.Guest]]:
    """A worker in a thread."""
    made = guest.Guest(
        brokers.Broker(url),
        ["celery"],
        mapping.Tasks([celery_errands]),
        node="test@here",
        backend=backends.backend_for(results),
    )
    worker = workers.Worker("default", (), [celery_errands], guests=[made], threads_count=2)
    thread = threading.Thread(target=worker.run, kwargs={"display_banner": False})
    thread.start()
    try:
        assert worker.wait(20)
        yield worker, made
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()


def hold(client: Client, made: guest.Guest, count: int) -> None:
    """Have a guest hold so many messages."""
    client.publish(
        *(
            TaskMessage(NOTE, str(n), ("/dev/null",), eta=LATER, priority=n % 7)
            for n in range(count)
        )
    )
    until(lambda: made.known("held") == count)


def names(messages: list[Any]) -> list[str]:
    return sorted((each.headers["id"] for each in messages), key=int)


def test_all_that_is_held_is_new_again(
    client: Client, rabbitmq_url: Place, redis_url: Place
) -> None:
    with serving(rabbitmq_url, redis_url) as (worker, made):
        hold(client, made, MANY)
        worker.suspend()
        until(lambda: client.waiting == MANY)
        until(lambda: not made.known("busy"))
        left = client.left()
    assert names(left) == [str(number) for number in range(MANY)]
    for each in left:
        assert not each.delivery_info["redelivered"]
        assert each.properties["priority"] == int(each.headers["id"]) % 7
        assert each.properties["delivery_mode"] == 2
        assert (each.content_type, each.content_encoding) == ("application/json", "utf-8")
        assert each.headers["eta"] == LATER.isoformat()
    assert client.left() == []


def test_its_connection_is_lost_before_that_is_done(
    client: Client, rabbitmq_server: Rabbitmq, rabbitmq_url: Place, redis_url: Place
) -> None:
    """The broker gives it to others by itself."""
    with tcp_proxy.threaded(rabbitmq_server.port) as proxy:
        url = rabbitmq_url.replace(f":{rabbitmq_server.port}/", f":{proxy.port}/")
        with serving(url, redis_url) as (worker, made):
            hold(client, made, 5)
            proxy.stall()
            worker.suspend()
            assert made.known("busy")
            proxy.cut()
            until(lambda: client.waiting == 5)
            proxy.resume()
            until(lambda: not made.busy)  # it is connected, and nothing is left to be done
            assert names(client.left()) == list("01234")
            assert client.left() == []


def test_a_task_gives_its_message_back(
    client: Client, rabbitmq_url: Place, redis_url: Place, tmp_path: Path
) -> None:
    """It has begun, and is as new all the same."""
    path = tmp_path / "refused"
    with serving(rabbitmq_url, redis_url) as (_, made):
        name = client.send(REFUSE, str(path))
        told = client.ended(name)
        assert (told["status"], told["result"]) == ("SUCCESS", "taken")
        until(lambda: not made.busy)
        assert made.known("counts") == {"returned": 1}
    assert celery_errands.lines(path) == ["here"] * 2
    assert client.waiting == 0
    queues = [name.removeprefix("queue ") for name in rabbitmq_url.left() if "wbengine" in name]
    # Its own notes, and what has begun.
    assert [Client(rabbitmq_url, redis_url, name).waiting for name in queues] == [0, 0]
