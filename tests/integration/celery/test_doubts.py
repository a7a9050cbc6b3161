"""What a RabbitMQ gives to another worker while the first one still runs it, or after that died."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.error
from pathlib import Path

import pytest

from tests.support.brokers import Place, Rabbitmq
from tests.support.celery_errands import REST, WAIT, WAIT_AGAIN, Client, lines
from tests.support.celery_guests import PATIENT, Serve, Start
from tests.support.workers import WorkerProcess, until
from wbengine.interop.celery.worker import doubting, notes

on_rabbitmq = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)


@pytest.mark.parametrize(
    ("broker", "restarted"),
    [("rabbitmq", False), pytest.param("own rabbitmq", True, marks=pytest.mark.slow)],
    indirect=["broker"],
)
def test_the_first_one_still_runs_it(
    restarted: bool,
    broker: Rabbitmq,
    url: Place,
    client: Client,
    begun: Client,
    redis_url: Place,
    start: Start,
    serve: Serve,
    tmp_path: Path,
) -> None:
    """Its connections break: the other one gets it, and neither runs it nor fails it."""
    path, gate = tmp_path / "wait", tmp_path / "gate"

    def noted() -> int:
        """How many notes nobody has taken."""
        names = [name.removeprefix("queue ") for name in url.left() if "wbengine" in name]
        return sum(Client(url, redis_url, name).waiting for name in names)

    place = url.rpartition("/")[2]
    with start() as (first,):
        name = client.send(WAIT, str(path), str(gate))
        until(lambda: lines(path))
        with serve(patience=PATIENT) as second:
            assert client.consumers == 2
            if restarted:
                first.signal(signal.SIGSTOP)  # the other one is to be back before it
                broker.kill()
                broker.start()
                until(lambda: begun.consumers == 1 and begun.waiting == 0)
                first.signal(signal.SIGCONT)
            else:
                ours = _connections(first)
                for each in broker.connections(place):
                    if int(each.split(" -> ")[0].rpartition(":")[2]) in ours:
                        with contextlib.suppress(urllib.error.HTTPError):
                            broker.ask("DELETE", "connections", each)
            until(lambda: "is back" in first.text and noted() == 0)
            assert client.meta(name) is None
            gate.touch()
            told = client.ended(name)
            assert (told["status"], told["result"]) == ("SUCCESS", "waited"), told
            if restarted:  # the other one asks until it knows, and has nothing left
                until(lambda: second.counts.get("elsewhere") == 1)
            until(lambda: second.rests)
            assert client.ended(name)["status"] == "SUCCESS"
            assert "had begun in a worker" not in first.text
            assert "lost" not in second.counts
        assert first.stop() == 0
    assert lines(path) == ["here"]
    assert client.left() == begun.left() == []


@on_rabbitmq
def test_the_first_one_was_killed(
    client: Client, start: Start, serve: Serve, tmp_path: Path
) -> None:
    """Whatever ran on it fails, unless it may run again."""
    path, safe, gate = tmp_path / "rest", tmp_path / "safe", tmp_path / "gate"
    patience = doubting.Patience(pause=0.2, lost_after=3.0, back=0.5)
    with start() as (first,):
        name = client.send(REST, str(path), 600.0)
        again = client.send(WAIT_AGAIN, str(safe), str(gate))
        until(lambda: lines(path) and lines(safe))
        with serve(patience=patience) as second:
            began = time.monotonic()
            first.process.kill()
            gate.touch()
            told, ran = client.ended(name), client.ended(again)
            assert time.monotonic() - began > patience.lost_after
            assert ran["status"] == "SUCCESS" and ran["date_done"] < told["date_done"]
            assert (told["status"], told["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")
            until(lambda: second.rests)
    assert lines(path) == ["here"] and lines(safe) == ["here"] * 2


@on_rabbitmq
def test_told_to_end_in_doubt_it_puts_it_back_as_it_was(
    client: Client, begun: Client, start: Start, serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "rest"
    with start() as (first,):
        client.send(REST, str(path), 60.0, id="doubtful")
        until(lambda: lines(path))
        with serve(patience=PATIENT) as second:
            first.process.kill()
            first.wait()
            until(lambda: second.counts.get("doubtful") == 1)
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
