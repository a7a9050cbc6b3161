"""Not twice: what is delivered twice, and what becomes of it when its ledger is away."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery as celerys
import pytest

from tests.celery import peers
from tests.celery.conftest import Bed, Ours
from tests.celery.journal import lines
from tests.support import brokers
from tests.support.workers import until
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.interop.celery import claims, worker

NAME = f"{peers.NAME}."


@pytest.fixture
def ledger() -> Iterator[brokers.Redis]:
    """A Redis of the test's own."""
    with brokers.redis() as server:
        yield server  # type: ignore[misc]


def send(own: Bed, task: str, *args: object, **options: Any) -> str:
    return str(own.call("start", f"{NAME}{task}", tuple(map(str, args)), **options))


def key_of(task_id: str, task: str, *args: object) -> str:
    """The key of the first run of what `send` sends."""
    embed = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    body = json.dumps([list(map(str, args)), {}, embed])
    return claims.key_of(task_id, 0, 0, f"{NAME}{task}", body)


@pytest.mark.parametrize("kind", ["rabbitmq"])
def test_connection_lost_as_a_task_runs_runs_it_once(
    own: Bed, ours: Ours, broker_servers: Any, tmp_path: Path
) -> None:
    """RabbitMQ delivers the message again at once, to the same worker.

    It finds the result, perhaps before all that follows was sent: that is sent at least once.
    """
    path, after, gate = tmp_path / "path", tmp_path / "after", tmp_path / "gate"
    vhost = own.url.rpartition("/")[2]
    with ours("--threads", "2", "--ledger", own.backend) as running:
        link = {"task": f"{NAME}note", "args": [str(after)], "options": {}, "immutable": True}
        task_id = send(own, "hold", path, gate, link=link)
        until(lambda: lines(path))
        broker_servers["rabbitmq"].cut(vhost)
        until(lambda: running.text.count("all alone") == 2)
        gate.touch()
        (told,) = own.call("wait", task_id)
        assert (told["state"], told["value"]) == ("SUCCESS", "wbengine")
        until(lambda: lines(after))
        assert running.stop() == 0
    with ours("--burst", "--ledger", own.backend) as running:
        assert running.wait() == 0  # what came again is acknowledged
    assert own.call("depth", peers.QUEUE) == 0
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_live_holder_keeps_duplicate_unacknowledged(own: Bed, ours: Ours, tmp_path: Path) -> None:
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    with ours("--threads", "2"), ours("--threads", "2"):
        own.call("inspect", "ping", limit=2)
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: lines(path))
        for _ in range(3):
            send(own, "hold", path, gate, task_id=task_id)
        until(lambda: own.call("unacknowledged") == 4)
        assert own.run("add", 1, 2)["value"] == 3  # none of them has a slot
        until(lambda: own.call("unacknowledged") == 4)
        gate.touch()
        until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
        assert own.call("wait", task_id)[0]["value"] == "wbengine"
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
@pytest.mark.parametrize("how", ["expires", "revoked"])
def test_copy_of_a_running_task_does_not_revoke_it(
    how: str, own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """Celery's receipt looks at the time and at revocations in the copy, before any claim."""
    path, gate = tmp_path / "path", tmp_path / "gate"
    soon = {
        "visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,
    }  # fmt: skip
    with ours("--threads", "2", broker_transport_options=soon):
        own.call("inspect", "ping")
        task_id = send(own, "hold", path, gate, **({"expires": 3} if how == "expires" else {}))
        until(lambda: lines(path))
        begun = time.monotonic()

        def copies() -> int:
            return str(own.call("inspect", "reserved")).count("'redelivered': True")

        if how == "revoked":
            own.call("revoke", task_id)
        else:
            until(lambda: time.monotonic() - begun > 3)
        before = copies()
        until(lambda: copies() > before or own.call("state", task_id) == "REVOKED")
        assert own.call("state", task_id) == "PENDING"
        gate.touch()
        assert own.call("wait", task_id)[0]["value"] == "wbengine"
        until(lambda: own.call("unacknowledged") == 0 and own.call("depth", peers.QUEUE) == 0)
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_retries_and_replacements_are_runs_of_their_own(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """They keep the id of their task; the same message again is a duplicate."""
    path, task_id = tmp_path / "path", str(uuid.uuid4())
    with ours("--threads", "1"):
        for options in ({}, {"replaced_task_nesting": 1}, {"retries": 1}, {}, {"retries": 1}):
            send(own, "note", path, options, task_id=task_id, **options)
        until(lambda: own.call("depth", peers.QUEUE) == 0)
        assert own.call("wait", task_id)[0]["state"] == "SUCCESS"
    assert sorted(lines(path)) == ["{'replaced_task_nesting': 1}", "{'retries': 1}", "{}"]


def test_other_task_or_arguments_under_a_used_id_run(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """What is the same in all is answered from before, and that is told."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    gate.touch()
    told = f"WARNING wbengine.celery: task {NAME}note[{task_id}] is not run"
    with ours("--threads", "1", "--ledger", own.backend) as running:
        for args in ((path, gate), (path, "other"), (path, gate)):
            send(own, "note", *args, task_id=task_id)
        until(lambda: told in running.text)
        assert lines(path) == [str(gate), "other"]
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: len(lines(path)) == 3)
        assert running.stop() == 0
    assert own.call("depth", peers.QUEUE) == 0
    assert len(lines(path)) == 3
    assert running.text.count(told) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_task_whose_claimer_died_before_it_said_so_is_lost(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """The worker that took it over from a dead one died too, before it could claim it."""
    path, task_id = tmp_path / "path", str(uuid.uuid4())
    key = key_of(task_id, "note", path)
    kept = ledgers.open_ledger(own.backend, "worker", None)
    kept.open(key, 1)
    assert kept.claim(key, 1, "dead").granted
    assert kept.reopen(key, 2) is None
    kept.close()
    with ours("--threads", "1", "--ledger", own.backend):
        send(own, "note", path, task_id=task_id)
        (told,) = own.call("wait", task_id)
    assert told["error"]["type"] == "WorkerLostError"
    assert not path.exists()


@pytest.mark.parametrize("kind", ["redis"])
def test_ledger_that_is_away_at_the_claim_delays_the_task(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    path = tmp_path / "path"
    with ours("--threads", "1", "--ledger", ledger.url()) as running:
        assert own.run("add", 1, 2)["value"] == 3
        ledger.kill()
        task_id = send(own, "note", path)
        until(lambda: "cannot be claimed, and waits" in running.text)
        assert not path.exists()
        ledger.start()
        assert own.call("wait", task_id)[0]["state"] == "SUCCESS"
        assert running.stop() == 0
    assert lines(path) == ["ran"]


@pytest.mark.parametrize("kind", ["redis"])
def test_ledger_that_is_away_at_the_end_of_a_task_is_told_later(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    """Its client is told at once; a duplicate that comes later is one, and does not wait."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    with ours("--threads", "2", "--ledger", ledger.url()) as running:
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: lines(path))
        ledger.kill()
        gate.touch()
        assert own.call("wait", task_id)[0]["value"] == "wbengine"
        until(lambda: "cannot be stored now" in running.text)
        ledger.start()
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
        assert running.stop() == 0
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_holder_is_not_lost_because_the_ledger_was_away(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    """Nobody could be heard: a lease that ended meanwhile says nothing of its worker."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    words = "--threads", "2", "--ledger", ledger.url()
    with ours(*words) as first:
        send(own, "hold_again", path, gate, task_id=task_id)
        until(lambda: lines(path))
        with ours(*words) as second:
            own.call("inspect", "ping", limit=2)
            first.signal(signal.SIGSTOP)  # it neither takes the duplicate, nor renews its lease
            ledger.kill()
            # Twice, two seconds apart: by then no message is given to what the first one asked for.
            until(lambda: second.text.count("cannot be told that this worker lives") > 1)
            send(own, "hold_again", path, gate, task_id=task_id)
            until(lambda: second.text.count("cannot be claimed, and waits") > 5, within=3.0)
            ledger.start()
            # By then the second one has asked for the duplicate again.
            assert own.run("add", 1, 2, countdown=3)["value"] == 3
            assert len(lines(path)) == 1
            first.signal(signal.SIGCONT)
            gate.touch()
            assert own.call("wait", task_id)[0]["value"] == "wbengine"
            until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_task_that_raises_worker_lost_is_not_sent_back(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """Its own worker is there: running it again would end no other way."""
    path = tmp_path / "path"
    with ours("--burst") as running:
        task_id = send(own, "lose", path)
        (told,) = own.call("wait", task_id)
        assert running.wait() == 0
    assert told["error"]["type"] == "WorkerLostError"
    assert own.call("depth", peers.QUEUE) == 0
    assert lines(path) == ["ran"]


@pytest.mark.parametrize("kind", ["redis"])
def test_task_that_expires_as_it_waits_for_a_lease_is_not_run(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    gate.touch()
    key = key_of(task_id, "hold_again", path, gate)
    kept = ledgers.open_ledger(own.backend, "worker", None)
    kept.open(key, 1)
    kept.renew("silent")
    assert kept.claim(key, 1, "silent").granted
    kept.close()
    with ours("--threads", "1", "--ledger", own.backend):
        send(own, "hold_again", path, gate, task_id=task_id, expires=5)
        assert own.call("wait", task_id)[0]["state"] == "REVOKED"
    assert not path.exists()


def test_release_while_the_ledger_is_away_is_made_up_for(ledger: brokers.Redis) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (
            claims.Claims(ledger.url(), None, shared=True, serializer="json") for _ in "ab"
        )
        for one, name in ((first, "a"), (second, "b")):
            one.open(name)
            stack.callback(one.close)
        run = claims.Run("run")
        assert first.take(run, again=False).run
        ledger.kill()
        first.release(run)
        ledger.start()
        until(lambda: second.take(claims.Run("run"), again=False).run)


def test_rows_stay_as_long_as_a_copy_of_their_message_may_come() -> None:
    app = celerys.Celery(set_as_current=False)
    assert worker.retention(app) == 86400  # result_expires
    app.conf.result_expires = 60
    assert worker.retention(app) == 2 * 3600  # twice the visibility_timeout
    app.conf.broker_transport_options = {"visibility_timeout": 10}
    assert worker.retention(app) == 1800  # the consumer_timeout
    app.conf.broker_transport_options = {"visibility_timeout": 10, "consumer_timeout": 5}
    app.conf.result_expires = None
    assert worker.retention(app) == 20


@pytest.mark.parametrize("shared", [False, True])
def test_old_rows_go_but_none_under_a_live_lease(shared: bool, redis_url: Any) -> None:
    """With rows of flows beside them, those that say that all was sent go by the ledger's rule."""
    made = claims.Claims(redis_url, 5.0, shared=shared, serializer="json")
    made.open("mine")
    try:
        ended, runs = claims.Run("ended"), claims.Run("runs")
        for run in (ended, runs):
            assert made.take(run, again=False).run
        assert made.finish(ended, {"kind": "value", "value": 1})
        made.sent(ended)
        assert made.take(claims.Run("ended"), again=False) == claims.Verdict()

        def kept() -> set[str]:
            made.sweep()
            return set(made.ledger.ids())

        if shared:
            assert kept() == {"ended", "ended-sent", "runs"}  # an hour at least
        else:
            made.ledger.renew("mine")
            until(lambda: kept() == {"runs"})
    finally:
        made.close()
