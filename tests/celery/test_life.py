"""Workers that end, on purpose or not, and workers of both kinds that share a queue."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.celery import peers, tasks
from tests.celery.conftest import Bed, Ours
from tests.celery.test_calls import lines
from tests.support import celery_guests
from tests.support.celery_guests import HASTY
from tests.support.workers import until


@pytest.mark.parametrize(("kind", "pool"), [("redis", "threads"), ("rabbitmq", "processes")])
def test_a_worker_is_killed(kind: str, pool: str, own: Bed, ours: Ours, tmp_path: Path) -> None:
    """What it ran is run again if that does no harm, else its client is told; what it only held is
    run as if nothing had been."""
    again, once, held = tmp_path / "again", tmp_path / "once", tmp_path / "held"
    gate = tmp_path / "gate"
    words = "--pool", pool, "--concurrency", "2"
    soon: dict[str, int] = {}
    if kind == "redis":  # nobody there sees that a worker is gone, but only that time passes
        names = ("visibility_timeout", "unacked_restore_interval", "unacked_restore_throttle")
        soon = dict.fromkeys(names, 1)
    options = [word for what in soon for word in ("--celery-broker-option", f"{what}=1")]
    name = f"{peers.NAME}."
    with ours(*words, *options) as worker:
        ids = [
            own.call("start", f"{name}hold_again", (str(again), str(gate))),
            own.call("start", f"{name}hold", (str(once), str(gate))),
        ]
        until(lambda: lines(again) and lines(once))
        ids += [own.call("start", f"{name}note", (str(held), str(n))) for n in range(5)]
        ids += [own.call("start", f"{name}note", (str(held), "later"), countdown=1.0)]
        worker.signal(signal.SIGKILL)
        worker.wait()
    gate.touch()
    with celery_guests.serving(own.url, own.backend, soon, tasks=tasks, patience=HASTY):
        told = own.call("wait", *ids)
    assert [each["state"] for each in told] == ["SUCCESS", "FAILURE", *["SUCCESS"] * 6]
    error = told[1]["error"]
    assert (error["module"], error["type"]) == ("billiard.exceptions", "WorkerLostError")
    assert len(lines(again)) == 2 and len(lines(once)) == 1
    assert lines(held) == ["0", "1", "2", "3", "4", "later"]


def test_a_child_is_killed(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """A process of the pool dies with its task."""
    path = tmp_path / "path"
    words = "--pool", "processes", "--concurrency", "1"
    with ours(*words):
        task_id = own.call("start", f"{peers.NAME}.rest", (30, str(path)))
        until(lambda: lines(path))
        peers.Peer(int(lines(path)[0].rpartition(" ")[2]), path).signal(signal.SIGKILL)
        (told,) = own.call("wait", task_id)
        assert own.run("add", 1, 2)["value"] == 3
    assert told["error"]["type"] == "WorkerLostError"
    assert len(lines(path)) == 1


def test_warm_shutdown(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """What runs is finished; what waits, for room or for its time, is another worker's."""
    path, held, gate = tmp_path / "path", tmp_path / "held", tmp_path / "gate"
    name = f"{peers.NAME}."
    with ours("--threads", "1") as first:
        ids = [own.call("start", f"{name}hold", (str(path), str(gate)))]
        until(lambda: lines(path))
        ids += [own.call("start", f"{name}note", (str(held), str(n))) for n in range(3)]
        ids += [own.call("start", f"{name}note", (str(held), "later"), countdown=1.0)]
        first.signal(signal.SIGTERM)
        until(lambda: "taking nothing new" in first.text)
        gate.touch()
        assert first.wait() == 0
        assert own.call("state", ids[0]) == "SUCCESS"
        assert not held.exists()
        assert own.call("depth", peers.QUEUE) == 4
    with ours("--threads", "1"):
        told = own.call("wait", *ids)
    assert {each["state"] for each in told} == {"SUCCESS"}
    assert len(lines(path)) == 1
    assert lines(held) == ["0", "1", "2", "later"]


def test_a_queue_served_by_both(own: Bed, ours: Ours, celery: peers.Celery, tmp_path: Path) -> None:
    """Chords whose parts are run by both are counted by both, and their bodies called once."""
    with (
        celery.worker(own.url, "threads", backend=own.backend),
        ours("--threads", "2"),
    ):
        own.call("inspect", "ping", limit=2)
        assert own.call("chain", 20) == [20, 19]
        for number in range(5):
            folder = tmp_path / str(number)
            folder.mkdir()
            body, parts = own.call("spread", 20, str(folder))
            assert len(parts) == 20 and body in parts
            assert set(parts) == {"celery", "wbengine"}
            told = own.call("chords")
            assert (told["chord"], told["in order"]) == (870, list("abcdefghijklmno"))
            assert (told["in the midst"], told["two"]) == (32, 6)
            assert (told["chains as parts"], told["a chain as body"]) == ([20, 4, 9], 21)
        told = own.call("failing_chord", str(tmp_path), True)
        assert told["body"]["type"] == "ChordError"


@pytest.mark.parametrize("kind", ["redis"])
def test_celerys_worker_takes_over(
    own: Bed, ours: Ours, celery: peers.Celery, tmp_path: Path
) -> None:
    """What a worker of ours took and did not end is where Celery's look for it."""
    soon = {"visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    path, gate = tmp_path / "path", tmp_path / "gate"
    with ours() as worker:
        held = own.call("start", f"{peers.NAME}.hold", (str(path), str(gate)))
        until(lambda: lines(path))
        worker.signal(signal.SIGKILL)
        worker.wait()
    gate.touch()
    assert own.call("depth", peers.QUEUE) == 1
    with celery.worker(own.url, "threads", backend=own.backend, broker_transport_options=soon):
        (told,) = own.call("wait", held)
    assert told["value"] == "celery"
    assert own.call("depth", peers.QUEUE) == 0
