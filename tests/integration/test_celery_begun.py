"""A worker of Celery's messages dies, or its broker: what has begun is told from what has not."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import celery_errands, workers
from tests.brokers import Broker, Brokers, Place
from tests.celery_errands import NOTE, WAIT, Client, lines
from tests.workers import WorkerProcess, until
from wbengine.interop.celery.protocol.message import TaskMessage

Start = Callable[..., AbstractContextManager[list[WorkerProcess]]]

#: A Redis tells nobody that a worker is gone, but only that time passes.
_SOON = ("visibility_timeout=2", "unacked_restore_interval=1")


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
def start(broker: Broker, url: Place, redis_url: Place, tmp_path: Path) -> Start:
    def workers_there(*more: str, count: int = 1) -> Any:
        given = ["--celery-broker", str(url), "--celery-result-backend", str(redis_url)]
        for option in _SOON if broker.kind == "redis" else ():
            given += ["--celery-broker-option", option]
        tasks = ("--celery-queue", "celery", "--tasks", celery_errands.__name__)
        return workers.workers(tmp_path, *tasks, *given, "--threads", "2", *more, count=count)

    return workers_there


def notes(path: Path, count: int, **fields: Any) -> list[TaskMessage]:
    """So many messages, each of which leaves its number in a file."""
    return [
        TaskMessage(NOTE, f"n{number}", (str(path), str(number)), **fields)
        for number in range(count)
    ]


def served(*those: WorkerProcess) -> None:
    until(lambda: all("serving Celery's queues" in each.text for each in those))


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_broker_is_killed_that_has_a_backlog(
    broker: Broker, client: Client, start: Start, tmp_path: Path
) -> None:
    """It marks all of it as delivered before; what runs goes on."""
    path, gate, waits = tmp_path / "notes", tmp_path / "gate", tmp_path / "waits"
    with start(count=2) as both:
        served(*both)
        runs = [client.send(WAIT, str(waits), str(gate)) for _ in range(4)]
        until(lambda: len(lines(waits)) == 4)
        client.publish(*notes(path, 200))
        assert client.waiting == 200
        broker.kill()
        broker.start()
        until(lambda: all("is back" in each.text for each in both))
        gate.touch()
        began = time.monotonic()
        told = [client.ended(f"n{number}") for number in range(200)]
        assert time.monotonic() - began < 12
        told += [client.ended(name) for name in runs]
        assert {each["status"] for each in told} == {"SUCCESS"}
        for each in both:
            assert each.stop() == 0
    assert sorted(lines(path), key=int) == [str(number) for number in range(200)]
    assert lines(waits) == ["here"] * 4
    assert client.left() == []


def test_what_a_dead_worker_held_runs_elsewhere(
    client: Client, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    with start(count=2) as (first, second):
        served(first, second)
        due = dt.datetime.fromtimestamp(time.time() + 3.0, dt.timezone.utc)
        client.publish(*notes(path, 40, eta=due))
        until(lambda: client.waiting == 0)
        first.process.kill()
        told = [client.ended(f"n{number}") for number in range(40)]
        assert time.time() - due.timestamp() < 8  # and nobody asked for long
        assert {each["status"] for each in told} == {"SUCCESS"}
        assert second.stop() == 0
    assert sorted(map(int, lines(path))) == list(range(40))
    assert client.left() == []


def test_workers_are_replaced_one_by_one(client: Client, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    numbers = itertools.count()
    sent: list[str] = []

    def send(count: int) -> None:
        made = [
            TaskMessage(NOTE, f"t{n}", (str(path), str(n)))
            for n in itertools.islice(numbers, count)
        ]
        client.publish(*made)
        sent.extend(message.id for message in made)

    with contextlib.ExitStack() as all_of_them:
        (old,) = all_of_them.enter_context(start())
        for _ in range(3):
            served(old)
            send(100)
            (new,) = all_of_them.enter_context(start())
            send(100)
            served(new)
            old.signal(signal.SIGTERM)
            send(100)
            assert old.wait() == 0
            old = new
        told = [client.ended(name) for name in sent]
        assert {each["status"] for each in told} == {"SUCCESS"}
        assert old.stop() == 0
    assert sorted(map(int, lines(path))) == list(range(len(sent)))
    assert client.left() == []
