"""Claims of Celery tasks: duplicate messages and an unreachable ledger."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import celery as celerys
import pytest

from tests.celery import peers
from tests.celery.conftest import Bed, Ours
from tests.celery.journal import lines
from tests.support import brokers, tcp_proxy
from tests.support.workers import until
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.interop.celery import _embedded_worker, _run_claims

NAME = f"{peers.NAME}."


@pytest.fixture
def ledger() -> Iterator[brokers.Redis]:
    """Start a separate Redis server as a ledger."""
    with brokers.redis() as server:
        yield server  # type: ignore[misc]


def send(own: Bed, task: str, *args: object, **options: Any) -> str:
    return str(own.call("start", f"{NAME}{task}", tuple(map(str, args)), **options))


def key_of(task_id: str, task: str, *args: object) -> str:
    """Return the ledger key of the first run of a task that `send` published."""
    embed = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    body = json.dumps([list(map(str, args)), {}, embed])
    return _run_claims.key_of(task_id, 0, 0, f"{NAME}{task}", body)


class RefusingLedger:
    """Ledger that is unavailable, and later refuses one result only."""

    def __init__(self) -> None:
        self.is_available = False
        self.released = threading.Event()

    def renew(self, holder: str) -> None: ...

    def close(self) -> None: ...

    def finish(self, key: str, epoch: int, holder: str, result: bytes) -> bool:
        raise exceptions.LedgerFailure("too large")

    def release(self, key: str, epoch: int, holder: str) -> bool:
        if not self.is_available:
            raise exceptions.LedgerFailure("unreachable")
        self.released.set()
        return True


def test_refused_result_does_not_prevent_the_release_of_another_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = RefusingLedger()
    monkeypatch.setattr(ledgers, "open_ledger", lambda *_: ledger)
    monkeypatch.setattr(_run_claims, "RENEW_SECONDS", 0.01)
    claims = _run_claims.Claims("place", None, shared=True, serializer="json")
    claims.open("worker")
    try:
        claims.finish(_run_claims.Run("refused"), {"kind": "value", "value": 1})
        claims.release(_run_claims.Run("requeued"))
        ledger.is_available = True
        assert ledger.released.wait(5)
    finally:
        claims.close()
    assert "the result or the release of a Celery task cannot be stored: too large" in caplog.text


@pytest.mark.parametrize("kind", ["rabbitmq"])
def test_task_runs_once_if_connection_is_lost_while_it_runs(
    own: Bed, ours: Ours, broker_servers: Any, tmp_path: Path
) -> None:
    """RabbitMQ redelivers the message at once, to the same worker.

    The redelivered message finds the stored result, possibly before all follow-up messages were
    sent: these are sent at least once.
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
        (result,) = own.call("wait", task_id)
        assert (result["state"], result["value"]) == ("SUCCESS", "wbengine")
        until(lambda: lines(after))
        assert running.stop() == 0
    with ours("--burst", "--ledger", own.backend) as running:
        assert running.wait() == 0  # the redelivered message is acknowledged
    assert own.call("depth", peers.QUEUE) == 0
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["rabbitmq"])
@pytest.mark.parametrize("task", ["hold", "hold_then_retry"])
def test_follow_up_messages_are_sent_after_broker_is_reachable_again(
    task: str, own: Bed, tmp_path: Path
) -> None:
    """Celery cannot send the chain, or the retry.  The redelivered message does."""
    path, after, gate = tmp_path / "path", tmp_path / "after", tmp_path / "gate"
    chain = [{"task": f"{NAME}note", "args": [str(after)], "options": {}, "immutable": True}]
    place = urlsplit(own.url)
    with tcp_proxy.threaded(place.port or 0) as proxy:
        url = own.url.replace(f":{place.port}/", f":{proxy.port}/")
        words = "--threads", "2", "--ledger", own.backend
        conf: dict[str, Any] = {"backend": own.backend, "task_publish_retry": False}
        with peers.wbengine_worker(tmp_path, url, *words, **conf) as running:
            task_id = send(own, task, path, gate, chain=chain)
            until(lambda: lines(path))
            proxy.refuse()
            proxy.cut()
            gate.touch()
            until(lambda: running.text.count("Cannot connect to") == 3)
            proxy.accept()
            until(after.exists, within=20.0)
            (result,) = own.call("wait", task_id)
    assert (result["state"], result["value"]) == ("SUCCESS", "wbengine")
    assert len(lines(path)) == (1 if task == "hold" else 2)


@pytest.mark.parametrize("kind", ["redis"])
def test_duplicate_of_running_task_stays_unacknowledged(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    with ours("--threads", "2"), ours("--threads", "2"):
        own.call("inspect", "ping", limit=2)
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: lines(path))
        for _ in range(3):
            send(own, "hold", path, gate, task_id=task_id)
        until(lambda: own.call("unacknowledged") == 4)
        assert own.run("add", 1, 2)["value"] == 3  # duplicates occupy no slot
        until(lambda: own.call("unacknowledged") == 4)
        gate.touch()
        until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
        assert own.call("wait", task_id)[0]["value"] == "wbengine"
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
@pytest.mark.parametrize("how", ["expires", "revoked"])
def test_expired_or_revoked_copy_does_not_revoke_running_task(
    how: str, own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """Celery checks the expiry and revocations of a copy before the claim."""
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
def test_retries_and_replacements_of_a_task_are_separate_runs(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """They have the id of their task.  A second copy of the same message is a duplicate."""
    path, task_id = tmp_path / "path", str(uuid.uuid4())
    with ours("--threads", "1"):
        for options in ({}, {"replaced_task_nesting": 1}, {"retries": 1}, {}, {"retries": 1}):
            send(own, "note", path, options, task_id=task_id, **options)
        until(lambda: own.call("depth", peers.QUEUE) == 0)
        assert own.call("wait", task_id)[0]["state"] == "SUCCESS"
    assert sorted(lines(path)) == ["{'replaced_task_nesting': 1}", "{'retries': 1}", "{}"]


def test_reused_id_with_other_task_or_arguments_runs(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """A duplicate with the same task and arguments uses the stored result and is logged."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    gate.touch()
    warning = f"WARNING wbengine.celery: task {NAME}note[{task_id}] does not run"
    with ours("--threads", "1", "--ledger", own.backend) as running:
        for args in ((path, gate), (path, "other"), (path, gate)):
            send(own, "note", *args, task_id=task_id)
        until(lambda: warning in running.text)
        assert lines(path) == [str(gate), "other"]
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: len(lines(path)) == 3)
        assert running.stop() == 0
    assert own.call("depth", peers.QUEUE) == 0
    assert len(lines(path)) == 3
    assert running.text.count(warning) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_task_reopened_but_not_claimed_by_dead_worker_is_lost(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    """The worker that reopened the row of a dead worker died before it claimed the row."""
    path, task_id = tmp_path / "path", str(uuid.uuid4())
    key = key_of(task_id, "note", path)
    rows = ledgers.open_ledger(own.backend, "worker", None)
    rows.open(key, 1)
    assert rows.claim(key, 1, "dead").granted
    assert rows.reopen(key, 2) is None
    rows.close()
    with ours("--threads", "1", "--ledger", own.backend):
        send(own, "note", path, task_id=task_id)
        (result,) = own.call("wait", task_id)
    assert result["error"]["type"] == "WorkerLostError"
    assert not path.exists()


@pytest.mark.parametrize("kind", ["redis"])
def test_unreachable_ledger_delays_claim_of_task(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    path = tmp_path / "path"
    with ours("--threads", "1", "--ledger", ledger.url()) as running:
        assert own.run("add", 1, 2)["value"] == 3
        ledger.kill()
        task_id = send(own, "note", path)
        until(lambda: "cannot be claimed, and remains" in running.text)
        assert not path.exists()
        ledger.start()
        assert own.call("wait", task_id)[0]["state"] == "SUCCESS"
        assert running.stop() == 0
    assert lines(path) == ["ran"]


@pytest.mark.parametrize("kind", ["redis"])
def test_result_is_stored_when_ledger_is_reachable_again(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    """The client receives the result at once.  A later duplicate does not wait."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    with ours("--threads", "2", "--ledger", ledger.url()) as running:
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: lines(path))
        ledger.kill()
        gate.touch()
        assert own.call("wait", task_id)[0]["value"] == "wbengine"
        until(lambda: "cannot be stored, retrying" in running.text)
        ledger.start()
        send(own, "hold", path, gate, task_id=task_id)
        until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
        assert running.stop() == 0
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_owner_is_not_lost_after_ledger_was_unreachable(
    own: Bed, ours: Ours, ledger: brokers.Redis, tmp_path: Path
) -> None:
    """No heartbeat could be read: the expired lease does not prove that the worker is dead."""
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    words = "--threads", "2", "--ledger", ledger.url()
    with ours(*words) as first:
        send(own, "hold_again", path, gate, task_id=task_id)
        until(lambda: lines(path))
        with ours(*words) as second:
            own.call("inspect", "ping", limit=2)
            # the stopped worker neither receives the duplicate nor renews its lease
            first.signal(signal.SIGSTOP)
            ledger.kill()
            # After two log lines, two seconds apart, earlier fetch calls of the stopped worker have
            # ended.
            until(lambda: second.text.count("heartbeat of this worker cannot be written") > 1)
            send(own, "hold_again", path, gate, task_id=task_id)
            until(lambda: second.text.count("cannot be claimed, and remains") > 5, within=3.0)
            ledger.start()
            # The second worker has fetched the duplicate again by then.
            assert own.run("add", 1, 2, countdown=3)["value"] == 3
            assert len(lines(path)) == 1
            first.signal(signal.SIGCONT)
            gate.touch()
            assert own.call("wait", task_id)[0]["value"] == "wbengine"
            until(lambda: own.call("depth", peers.QUEUE) == 0, within=10.0)
    assert len(lines(path)) == 1


@pytest.mark.parametrize("kind", ["redis"])
def test_task_that_raises_worker_lost_is_not_requeued(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """The worker of the task is alive: another run would fail in the same way."""
    path = tmp_path / "path"
    with ours("--burst") as running:
        task_id = send(own, "lose", path)
        (result,) = own.call("wait", task_id)
        assert running.wait() == 0
    assert result["error"]["type"] == "WorkerLostError"
    assert own.call("depth", peers.QUEUE) == 0
    assert lines(path) == ["ran"]


class Attack:
    """A value whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("kind", ["redis"])
def test_pickle_in_row_of_ledger_is_not_loaded(own: Bed, ours: Ours, tmp_path: Path) -> None:
    """By default, the ledger is the broker: each of its clients can write rows."""
    path, attacked, task_id = tmp_path / "path", tmp_path / "attacked", str(uuid.uuid4())
    key = key_of(task_id, "note", path)
    rows = ledgers.open_ledger(own.backend, "worker", None)
    rows.open(key, 1)
    assert rows.claim(key, 1, "attacker").granted
    outcome = {"kind": "value", "value": Attack(attacked)}
    assert rows.finish(key, 1, "attacker", _run_claims._dumps(outcome, "pickle"))
    rows.close()
    with ours("--threads", "1", "--ledger", own.backend) as running:
        send(own, "note", path, task_id=task_id)
        until(lambda: "it already ended with this id" in running.text)
        assert running.stop() == 0
    assert not attacked.exists() and "cannot be read" in running.text
    assert own.call("depth", peers.QUEUE) == 0


@pytest.mark.parametrize("kind", ["redis"])
def test_task_that_expires_while_waiting_for_its_claim_is_not_run(
    own: Bed, ours: Ours, tmp_path: Path
) -> None:
    path, gate, task_id = tmp_path / "path", tmp_path / "gate", str(uuid.uuid4())
    gate.touch()
    key = key_of(task_id, "hold_again", path, gate)
    rows = ledgers.open_ledger(own.backend, "worker", None)
    rows.open(key, 1)
    rows.renew("silent")
    assert rows.claim(key, 1, "silent").granted
    rows.close()
    with ours("--threads", "1", "--ledger", own.backend):
        send(own, "hold_again", path, gate, task_id=task_id, expires=5)
        assert own.call("wait", task_id)[0]["state"] == "REVOKED"
    assert not path.exists()


def test_claim_released_while_ledger_is_down_is_released_later(ledger: brokers.Redis) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (
            _run_claims.Claims(ledger.url(), None, shared=True, serializer="json") for _ in "ab"
        )
        for one, name in ((first, "a"), (second, "b")):
            one.open(name)
            stack.callback(one.close)
        run = _run_claims.Run("run")
        assert first.claim(run, may_repeat=False).run
        ledger.kill()
        first.release(run)
        ledger.start()
        until(lambda: second.claim(_run_claims.Run("run"), may_repeat=False).run)


def test_row_retention_covers_redelivery_of_messages() -> None:
    app = celerys.Celery(set_as_current=False)
    assert _embedded_worker.retention(app) == 86400  # result_expires
    app.conf.result_expires = 60
    assert _embedded_worker.retention(app) == 2 * 3600  # twice the visibility_timeout
    app.conf.broker_transport_options = {"visibility_timeout": 10}
    assert _embedded_worker.retention(app) == 1800  # the consumer_timeout
    app.conf.broker_transport_options = {"visibility_timeout": 10, "consumer_timeout": 5}
    app.conf.result_expires = None
    assert _embedded_worker.retention(app) == 20


@pytest.mark.parametrize("shared", [False, True])
def test_sweep_deletes_old_rows_except_those_of_live_owners(shared: bool, redis_url: Any) -> None:
    """A ledger that also stores rows of flows deletes rows of completed sends by its own rule."""
    claims = _run_claims.Claims(redis_url, 5.0, shared=shared, serializer="json")
    claims.open("mine")
    try:
        ended, runs = _run_claims.Run("ended"), _run_claims.Run("runs")
        for run in (ended, runs):
            assert claims.claim(run, may_repeat=False).run
        assert claims.finish(ended, {"kind": "value", "value": 1})
        claims.sent(ended)
        assert claims.claim(_run_claims.Run("ended"), may_repeat=False) == _run_claims.Verdict()

        def kept() -> set[str]:
            claims.sweep()
            return set(claims.ledger.ids())

        if shared:
            assert kept() == {"ended", "ended-sent", "runs"}  # retained for at least one hour
        else:
            claims.ledger.renew("mine")
            until(lambda: kept() == {"runs"})
    finally:
        claims.close()
