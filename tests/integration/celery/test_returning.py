"""What a worker gives back to a RabbitMQ is there once, whatever becomes of its connection."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import celery_errands, celery_guests, tcp_proxy
from tests.support.brokers import Place, Rabbitmq
from tests.support.celery_errands import NOTE, REFUSE, Client
from tests.support.celery_guests import Serve, Serving
from tests.support.workers import until
from wbengine.interop.celery.protocol.message import TaskMessage

pytestmark = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)

LATER = dt.datetime.fromtimestamp(time.time() + 3600, dt.timezone.utc)

#: More than one transaction takes.
MANY = 230


def hold(client: Client, there: Serving, count: int) -> None:
    """Have a guest hold so many messages."""
    client.publish(
        *(
            TaskMessage(NOTE, str(n), ("/dev/null",), eta=LATER, priority=n % 7)
            for n in range(count)
        )
    )
    until(lambda: there.held == count)


def names(messages: list[Any]) -> list[str]:
    return sorted((each.headers["id"] for each in messages), key=int)


def test_all_that_is_held_is_new_again(client: Client, serve: Serve) -> None:
    with serve() as there:
        hold(client, there, MANY)
        there.worker.suspend()
        until(lambda: client.waiting == MANY)
        until(lambda: there.rests)
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
    client: Client, broker: Rabbitmq, url: Place, redis_url: Place
) -> None:
    """The broker gives it to others by itself."""
    with tcp_proxy.threaded(broker.port) as proxy:
        through = url.replace(f":{broker.port}/", f":{proxy.port}/")
        with celery_guests.serving(through, redis_url) as there:
            hold(client, there, 5)
            proxy.stall()
            there.worker.suspend()
            assert not there.rests
            proxy.cut()
            until(lambda: client.waiting == 5)
            proxy.resume()
            until(lambda: there.rests)
            assert names(client.left()) == list("01234")
            assert client.left() == []


def test_a_task_gives_its_message_back(
    client: Client, serve: Serve, url: Place, redis_url: Place, tmp_path: Path
) -> None:
    """It has begun, and is as new all the same."""
    path = tmp_path / "refused"
    with serve() as there:
        name = client.send(REFUSE, str(path))
        told = client.ended(name)
        assert (told["status"], told["result"]) == ("SUCCESS", "taken")
        until(lambda: there.rests)
        assert there.counts == {"returned": 1}
    assert celery_errands.lines(path) == ["here"] * 2
    assert client.waiting == 0
    queues = [name.removeprefix("queue ") for name in url.left() if "wbengine" in name]
    # Its own notes, and what has begun.
    assert [Client(url, redis_url, name).waiting for name in queues] == [0, 0]
