"""What a RabbitMQ gives to another worker while the first one still runs it, or after that died."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.error
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import celery_errands, workers
from tests.brokers import Place, Rabbitmq
from tests.celery_errands import REST, Client, lines
from tests.workers import WorkerProcess, until

Start = Callable[[], AbstractContextManager[list[WorkerProcess]]]


@pytest.fixture
def client(rabbitmq_url: Place, redis_url: Place) -> Client:
    return Client(rabbitmq_url, redis_url)


@pytest.fixture
def start(rabbitmq_url: Place, redis_url: Place, tmp_path: Path) -> Start:
    def worker_there() -> AbstractContextManager[list[WorkerProcess]]:
        given = ("--celery-broker", str(rabbitmq_url), "--celery-result-backend", str(redis_url))
        tasks = ("--celery-queue", "celery", "--tasks", celery_errands.__name__)
        return workers.workers(tmp_path, *tasks, *given, "--threads", "1")

    return worker_there


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_one_still_runs_it(
    restarted: bool,
    rabbitmq_server: Rabbitmq,
    rabbitmq_url: Place,
    client: Client,
    start: Start,
    tmp_path: Path,
) -> None:
    """Its connections break: the other one gets it, and neither runs it nor fails it."""
    path = tmp_path / "rest"
    place = rabbitmq_url.rpartition("/")[2]
    with start() as (first,):
        name = client.send(REST, str(path), 10.0)
        until(lambda: lines(path))
        with start() as (second,):
            until(lambda: _consumers(client) == 2)
            if restarted:
                first.signal(signal.SIGSTOP)  # the other one is to be back before it
                rabbitmq_server.kill()
                rabbitmq_server.start()
                until(lambda: client.waiting == 0)
                first.signal(signal.SIGCONT)
            else:
                ours = _connections(first)
                for each in rabbitmq_server.connections(place):
                    if int(each.split(" -> ")[0].rpartition(":")[2]) in ours:
                        with contextlib.suppress(urllib.error.HTTPError):
                            rabbitmq_server.ask("DELETE", "connections", each)
            until(lambda: "is back" in first.text)
            assert client.meta(name) is None
            told = client.ended(name)
            assert (told["status"], told["result"]) == ("SUCCESS", 10.0), told
            # The other one asks until it knows, and has nothing left.
            until(lambda: "ended in another worker" in second.text)
            until(lambda: client.left() == [])
            assert second.stop() == 0
            assert client.ended(name)["status"] == "SUCCESS"
            assert "was given to a worker before" not in first.text + second.text
        assert first.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == []


def test_the_first_one_was_killed(client: Client, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "rest"
    with start() as (first,):
        name = client.send(REST, str(path), 60.0)
        until(lambda: lines(path))
        with start() as (second,):
            first.process.kill()
            began = time.monotonic()
            told = client.ended(name)
            assert 10 < time.monotonic() - began < 22
            assert (told["status"], told["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
            assert second.stop() == 0
    assert lines(path) == ["here"]


def test_told_to_end_in_doubt_it_puts_it_back_as_it_was(
    client: Client, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "rest"
    with start() as (first,):
        client.send(REST, str(path), 60.0, id="doubtful")
        until(lambda: lines(path))
        with start() as (second,):
            first.process.kill()
            first.wait()
            until(lambda: _consumers(client) == 1 and client.waiting == 0)
            assert second.stop() == 0
    (back,) = client.left()
    assert back.headers["id"] == "doubtful" and back.delivery_info["redelivered"]
    assert lines(path) == ["here"]


def _consumers(client: Client) -> int:
    with client._taking() as queue:
        return int(queue.queue_declare().consumer_count)


def _connections(worker: WorkerProcess) -> set[int]:
    """The local ports of its TCP connections."""
    folder = Path(f"/proc/{worker.process.pid}")
    own = set()
    for each in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(each.readlink().name)
    rows = [row.split() for row in (folder / "net" / "tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own}
