"""A worker of Celery's messages dies, or its broker: what has begun is told from what has not."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import Broker
from tests.support.celery_errands import NOTE, WAIT, Client, lines
from tests.support.celery_guests import PATIENT, Serve, Start
from tests.support.waiting import RECONNECTED
from tests.support.workers import until
from wbengine.interop.celery.protocol.message import TaskMessage


def notes(path: Path, count: int, **fields: Any) -> list[TaskMessage]:
    """So many messages, each of which leaves its number in a file."""
    return [
        TaskMessage(NOTE, f"n{number}", (str(path), str(number)), **fields)
        for number in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["own rabbitmq"], indirect=True)
def test_a_broker_is_killed_that_has_a_backlog(
    broker: Broker, client: Client, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It marks all of it as delivered before; what runs goes on."""
    path, gate, waits = tmp_path / "notes", tmp_path / "gate", tmp_path / "waits"
    with serve(patience=PATIENT) as first, serve(patience=PATIENT) as second:
        runs = [client.send(WAIT, str(waits), str(gate)) for _ in range(4)]
        until(lambda: len(lines(waits)) == 4)
        client.publish(*notes(path, 200))
        assert client.waiting == 200
        broker.kill()
        broker.start()
        until(lambda: caplog.text.count("is back") == 2, within=RECONNECTED)
        gate.touch()
        told = [client.ended(f"n{number}") for number in range(200)]
        told += [client.ended(name) for name in runs]
        assert {each["status"] for each in told} == {"SUCCESS"}
        until(lambda: first.rests and second.rests)
    assert sorted(lines(path), key=int) == [str(number) for number in range(200)]
    assert lines(waits) == ["here"] * 4
    assert client.left() == []


def test_what_a_dead_worker_held_runs_elsewhere(
    client: Client, start: Start, serve: Serve, soon: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    with start(options=soon) as (first,):
        until(lambda: "serving Celery's queues" in first.text)
        due = dt.datetime.fromtimestamp(time.time() + 5.0, dt.timezone.utc)
        client.publish(*notes(path, 40, eta=due))
        until(lambda: client.waiting == 0)
        assert not path.exists()  # all of it is held
        first.process.kill()
        with serve(soon, patience=PATIENT) as second:
            told = [client.ended(f"n{number}") for number in range(40)]
            assert {each["status"] for each in told} == {"SUCCESS"}
            until(lambda: second.rests)
    assert sorted(map(int, lines(path))) == list(range(40))
    assert client.left() == []


def test_workers_are_replaced_one_by_one(client: Client, serve: Serve, tmp_path: Path) -> None:
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

    with contextlib.ExitStack() as last:
        old = contextlib.ExitStack()
        old.enter_context(serve())
        for _ in range(3):
            send(50)
            new = contextlib.ExitStack()
            new.enter_context(serve())
            send(50)
            old.close()  # it is told to end, and has ended
            send(50)
            old = new
        last.push(old)
        told = [client.ended(name) for name in sent]
        assert {each["status"] for each in told} == {"SUCCESS"}
    assert sorted(map(int, lines(path))) == list(range(len(sent)))
    assert client.left() == []
