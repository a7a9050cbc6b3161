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
from tests.celery_errands import REST, REST_AGAIN, WAIT, Client, lines
from tests.workers import WorkerProcess, until
from wbengine.interop.celery.worker import notes

Start = Callable[[], AbstractContextManager[list[WorkerProcess]]]


@pytest.fixture
def client(rabbitmq_url: Place, redis_url: Place) -> Client:
    return Client(rabbitmq_url, redis_url)


@pytest.fixture
def begun(rabbitmq_url: Place, redis_url: Place) -> Client:
    """Of the queue of what has begun."""
    return Client(rabbitmq_url, redis_url, notes.begun_queue("celery"))


@pytest.fixture
def start(rabbitmq_url: Place, redis_url: Place, tmp_path: Path) -> Start:
    def worker_there() -> AbstractContextManager[list[WorkerProcess]]:
        given = ("--celery-broker", str(rabbitmq_url), "--celery-result-backend", str(redis_url))
        tasks = ("--celery-queue", "celery", "--tasks", celery_errands.__name__)
        return workers.workers(tmp_path, *tasks, *given, "--threads", "2")

    return worker_there


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_one_still_runs_it(
    restarted: bool,
    rabbitmq_server: Rabbitmq,
    rabbitmq_url: Place,
    client: Client,
    begun: Client,
    start: Start,
    tmp_path: Path,
) -> None:
    """Its connections break: the other one gets it, and neither runs it nor fails it."""
    path, gate = tmp_path / "wait", tmp_path / "gate"
    place = rabbitmq_url.rpartition("/")[2]
    with start() as (first,):
        name = client.send(WAIT, str(path), str(gate))
        until(lambda: lines(path))
        with start() as (second,):
            until(lambda: client.consumers == 2)
            if restarted:
                first.signal(signal.SIGSTOP)  # the other one is to be back before it
                rabbitmq_server.kill()
                rabbitmq_server.start()
                until(lambda: begun.consumers == 1 and begun.waiting == 0)
                first.signal(signal.SIGCONT)
            else:
                ours = _connections(first)
                for each in rabbitmq_server.connections(place):
                    if int(each.split(" -> ")[0].rpartition(":")[2]) in ours:
                        with contextlib.suppress(urllib.error.HTTPError):
                            rabbitmq_server.ask("DELETE", "connections", each)
            until(lambda: "is back" in first.text)
            assert client.meta(name) is None
            gate.touch()
            told = client.ended(name)
            assert (told["status"], told["result"]) == ("SUCCESS", "waited"), told
            if restarted:  # the other one asks until it knows, and has nothing left
                until(lambda: "ended in another worker" in second.text)
            assert second.stop() == 0
            assert client.ended(name)["status"] == "SUCCESS"
            assert "had begun in a worker" not in first.text + second.text
        assert first.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == begun.left() == []


def test_the_first_one_was_killed(client: Client, start: Start, tmp_path: Path) -> None:
    """Whatever ran on it fails, unless it may run again."""
    path, safe = tmp_path / "rest", tmp_path / "safe"
    with start() as (first,):
        name, again = client.send(REST, str(path), 60.0), client.send(REST_AGAIN, str(safe), 1.0)
        until(lambda: lines(path) and lines(safe))
        with start() as (second,):
            first.process.kill()
            began = time.monotonic()
            assert client.ended(again)["status"] == "SUCCESS" and client.meta(name) is None
            told = client.ended(name)
            assert 10 < time.monotonic() - began < 22
            assert (told["status"], told["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
            assert second.stop() == 0
    assert lines(path) == ["here"] and lines(safe) == ["here"] * 2


def test_told_to_end_in_doubt_it_puts_it_back_as_it_was(
    client: Client, begun: Client, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "rest"
    with start() as (first,):
        client.send(REST, str(path), 60.0, id="doubtful")
        until(lambda: lines(path))
        with start() as (second,):
            first.process.kill()
            first.wait()
            until(lambda: begun.consumers == 1 and begun.waiting == 0)
            assert second.stop() == 0
    (back,) = begun.left()
    assert notes.read(back).headers["id"] == "doubtful"
    assert lines(path) == ["here"]
    assert client.left() == []


def _connections(worker: WorkerProcess) -> set[int]:
    """The local ports of its TCP connections."""
    folder = Path(f"/proc/{worker.process.pid}")
    own = set()
    for each in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(each.readlink().name)
    rows = [row.split() for row in (folder / "net" / "tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own}
