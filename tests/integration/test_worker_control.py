"""Workers that are suspended, stopped, limited or cancelled."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import brokers, sample_tasks
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions
from wbengine.engines.worker_based import proxy, server
from wbengine.engines.worker_based import worker as workers
from wbengine.engines.worker_based._connections import consumer_loop
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.patterns import linear_flow, unordered_flow


@pytest.fixture(params=["memory", "filesystem", "no-ledger"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Options of a broker, with and without a ledger."""
    if request.param == "filesystem":
        return {"url": f"filesystem://{tmp_path / 'broker'}"}
    if request.param == "no-ledger":
        return {"url": request.getfixturevalue("rowless_url"), "ledger": "none"}
    return {"url": f"memory://{tmp_path.name}"}


def many(count: int, rest: float = 0.0) -> Any:
    flow = unordered_flow.Flow("f")
    return flow.add(*(tasks.Where(name=f"t{n}", provides=f"w{n}") for n in range(count)))


def load(flow: Any, place: dict[str, Any], **store: Any) -> Any:
    return engines.load(flow, store=store or {"rest": 0.0}, engine="worker-based", **place)


def worker(place: dict[str, Any], *offered: Any, **options: Any) -> Any:
    """Run a worker of the broker in a thread."""
    options = {"ledger": place.get("ledger"), **options}
    return worker_in_thread(place["url"], *(offered or (tasks,)), **options)


def tasks_per_worker(loaded: Any, count: int) -> Counter[str]:
    """Return the number of tasks that each worker ran."""
    return Counter(loaded.storage.get_attempt(f"t{n}").worker for n in range(count))


def publish(url: str, *envelopes: Any) -> None:
    """Publish messages."""
    speaker = proxy.Proxy("speaker", "default", url=url)
    thread = threading.Thread(target=speaker.start)
    thread.start()
    try:
        assert speaker.wait(30)
        for envelope in envelopes:
            speaker.send(OutgoingMessage(envelope))
        assert speaker.flush(30)
    finally:
        speaker.stop()
        thread.join(60)


def test_worker_stops_after_an_error_on_receipt_of_a_request(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = threading.Semaphore(0)

    def fail(*args: Any, **kwargs: Any) -> Any:
        failures.release()
        raise RuntimeError("planted")

    with worker(place) as made:
        monkeypatch.setattr(server.Server, "on_request", fail)
        loaded = load(many(1), place)

        def run() -> None:
            with contextlib.suppress(exceptions.Cancelled):
                loaded.run()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert failures.acquire(timeout=30)
        monkeypatch.undo()
        until(lambda: not made._runner.busy)
        loaded.cancel()
        thread.join(60)
        assert not thread.is_alive()


def test_suspended_worker_leaves_all_tasks_to_others(place: dict[str, Any], tmp_path: Path) -> None:
    with (
        worker(place, tasks, sample_tasks, threads_count=1) as one,
        worker(place, tasks, sample_tasks, threads_count=1) as other,
    ):
        publish(place["url"], worker_commands.control("suspend", one.identity))
        until(lambda: one.life.state == "suspended")
        loaded = load(many(30), place)
        loaded.run()
        assert tasks_per_worker(loaded, 30) == {other.identity: 30}
        other.suspend()
        publish(place["url"], worker_commands.control("resume"))
        until(lambda: one.life.state == other.life.state == "idle")
        loaded = load(unordered_flow.Flow("f").add(*sample_tasks.meeting(tmp_path)), place)
        loaded.run()
        assert {loaded.storage.get_attempt(name).worker for name in ("one", "other")} == {
            one.identity, other.identity,
        }  # fmt: skip
        assert (one.life.successes, other.life.successes) == (1, 31)


def test_stopping_worker_requeues_unstarted_tasks(place: dict[str, Any]) -> None:
    """No task fails or runs twice."""
    loaded = load(many(40), place, rest=0.01)
    with worker(place, threads_count=2) as other:
        with worker(place, threads_count=2) as one:
            thread = threading.Thread(target=loaded.run)
            thread.start()
            until(lambda: one.life.successes)
            publish(place["url"], worker_commands.control("drain", one.identity))
            until(lambda: one.life.state == "dead")
        thread.join(60)
        assert loaded.storage.get_flow_state() == "SUCCESS"
        done = tasks_per_worker(loaded, 40)
        assert sum(done.values()) == 40
        assert done[one.identity] == one.life.successes > 0
        assert done[other.identity] == other.life.successes


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "filesystem",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("redis", "postgresql", "rabbitmq")
        ),
    ],
)
@pytest.mark.parametrize(("action", "state"), [("suspend", "suspended"), ("drain", "draining")])
def test_new_worker_runs_waiting_tasks_of_worker_that_runs_its_last_task(
    kind: str,
    action: worker_commands.ControlAction,
    state: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """The new worker offers other tasks, so it has another queue."""
    place: dict[str, Any] = {"url": brokers.broker_url(kind, request, tmp_path)}
    if kind == "rabbitmq":
        place["ledger"] = f"sqlite:///{tmp_path / 'ledger.db'}"
    started, release = tmp_path / "started", tmp_path / "release"
    last = linear_flow.Flow("last").add(sample_tasks.WaitFor("last"))
    busy = load(last, place, started=str(started), release=str(release))
    loaded = load(many(20), {**place, "worker_expiry": 4})
    threads = [threading.Thread(target=each.run, daemon=True) for each in (busy, loaded)]
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(worker(place, tasks, sample_tasks, threads_count=1))
        stack.callback(release.touch)
        threads[0].start()
        until(started.exists)
        threads[1].start()
        until(lambda: len(loaded.executor.requests("queued")) == 20)
        publish(place["url"], worker_commands.control(action, old.identity))
        new = stack.enter_context(worker(place, tasks, threads_count=1))
        until(lambda: new.life.successes == 20)
        assert (old.life.successes, old.life.state) == (0, state)
        old.resume()  # A worker that drains ignores it.
        release.touch()
        for thread in threads:
            thread.join(60)
        assert tasks_per_worker(loaded, 20) == {new.identity: 20}
        assert old.counts["SUCCESS"] == 1


@pytest.mark.parametrize("most", [1, 5])
def test_worker_stops_after_max_tasks(place: dict[str, Any], most: int) -> None:
    loaded = load(many(12), place)
    with worker(place, threads_count=3, max_tasks=most) as one:
        thread = threading.Thread(target=loaded.run)
        thread.start()
        until(lambda: one.life.state == "dead")
        assert one.counts["SUCCESS"] == most
        with worker(place, threads_count=3):
            thread.join(60)
    assert tasks_per_worker(loaded, 12)[one.identity] == most
    assert loaded.storage.get_flow_state() == "SUCCESS"


def test_solo_pool_runs_tasks_in_thread_of_worker(place: dict[str, Any]) -> None:
    with worker(place, pool="solo") as made:
        names = {thread.name for thread in threading.enumerate()}
        loaded = load(many(5), place)
        loaded.run()
        where = {loaded.storage.fetch(f"w{n}") for n in range(5)}
        assert len(where) == 1
        pid, name = where.pop()
        assert pid == os.getpid() and name in names and "wbengine" not in name
        assert made.life.successes == 5


def test_solo_worker_raises_if_broker_is_unreachable(tmp_path: Path) -> None:
    made = workers.Worker("x", "t", [tasks], url="filesystem:///proc/nowhere", pool="solo")
    with pytest.raises(exceptions.TransportFailure):
        made.run(display_banner=False)


def test_task_that_exceeds_drain_timeout_is_abandoned(
    place: dict[str, Any], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    patience = tmp_path / "started.cancelled"
    loaded = load(linear_flow.Flow("f").add(tasks.Patient(name="p")), place, started=str(started))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            loaded.run()
        except BaseException as error:
            errors.append(error)

    with worker(place, threads_count=1, drain_timeout=0.1) as made:
        thread = threading.Thread(target=run)
        thread.start()
        until(started.exists)
        made.stop()
        thread.join(60)
        until(made.ended.is_set)
        assert made.gave_up.is_set()
        until(patience.exists)  # a thread can only be notified
    (error,) = errors
    assert isinstance(error, exceptions.WorkerLost)


def test_running_task_is_notified_of_cancellation(place: dict[str, Any], tmp_path: Path) -> None:
    started = tmp_path / "started"
    loaded = load(linear_flow.Flow("f").add(tasks.Patient(name="p")), place, started=str(started))
    with worker(place, threads_count=1) as made:
        thread = threading.Thread(target=loaded.run)
        thread.start()
        until(started.exists)
        ((request_id, _),) = made.life.current
        publish(place["url"], *worker_commands.cancellations([(request_id, 10_000)], made.identity))
        thread.join(60)
    assert loaded.storage.fetch("patience") == "cancelled"


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_exception_handlers_of_a_worker_are_called(
    tmp_path: Path, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv(tasks.CALLS, str(calls))
    place = {"url": f"memory://{tmp_path.name}"}
    handlers = ["tests.support.worker_tasks:first", tasks.last, tasks.never]
    with worker(place, pool=pool, concurrency=1, exception_handlers=handlers) as made:
        with pytest.raises(ValueError, match="bad as ever"):
            load(linear_flow.Flow("f").add(tasks.Bad(name="b")), place).run()
        until(lambda: calls.exists() and "last" in calls.read_text())
    assert calls.read_text().splitlines() == [
        f"first b {os.getpid()} ValueError bad as ever bad as ever",
        "last execute",
    ]
    assert (made.life.successes, made.life.failures) == (0, 1)


@pytest.mark.parametrize("place", ["memory", "filesystem"], indirect=True)
def test_late_task_checks_ledger_before_it_starts(place: dict[str, Any]) -> None:
    with worker(place, threads_count=1) as made:
        ledger: Any = made._runner.ledger
        looked = []
        _make_late(made)
        state = ledger.state
        ledger.state = lambda request_id: looked.append(request_id) or state(request_id)
        loaded = load(many(3), place)
        loaded.run()
        assert len(looked) == 3
    assert made.counts == {"SUCCESS": 3}


def test_request_reopened_for_another_worker_is_not_started(tmp_path: Path) -> None:
    """The engine reopened the request for another worker while this worker was frozen."""
    place: dict[str, Any] = {"url": f"memory://{tmp_path.name}"}
    with worker(place, threads_count=1) as made:
        ledger: Any = made._runner.ledger
        state = ledger.state

        def thaw(request_id: str) -> Any:
            ledger.reopen(request_id, state(request_id).epoch + 1)
            return state(request_id)

        _make_late(made)
        ledger.state = thaw
        loaded = load(many(1), place)
        thread = threading.Thread(target=lambda: _quietly(loaded.run), daemon=True)
        thread.start()
        until(lambda: made.counts.get("thawed"))
        assert made.life.successes == 0
        del ledger.state
        # An unstarted request waits for the next worker, which does not exist.
        until(lambda: loaded.executor.requests("started"))
        loaded.suspend()
    thread.join(60)
    assert not thread.is_alive()


def _make_late(made: workers.Worker) -> None:
    """Let each claim appear to have happened long ago."""
    core: Any = made._server
    on_claim = core.on_claim

    def on_late_claim(job: Any, claim: Any) -> Any:
        job.fresh = -math.inf
        return on_claim(job, claim)

    core.on_claim = on_late_claim


def _quietly(call: Any) -> None:
    try:
        call()
    except exceptions.WbengineException:
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tasks": 0}, "max_tasks"),
        ({"max_tasks": 1.5}, "max_tasks"),
        ({"max_idle_time": -1}, "max_idle_time"),
        ({"drain_timeout": "soon"}, "drain_timeout"),
        ({"drain_timeout": math.nan}, "drain_timeout"),
        ({"pool": "fibres"}, "fibres"),
        ({"exception_handlers": [7]}, "exception handler 7"),
    ],
)
def test_invalid_worker_options_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        workers.Worker("x", "t", [tasks], url="memory://x", **options)


RUNNING, SUCCESS = "RUNNING", "SUCCESS"


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (True, [SUCCESS]),
        (False, [RUNNING, RUNNING, SUCCESS]),
    ],
)
def test_running_reply_is_omitted_if_unsent_when_task_ends(
    tmp_path: Path, ours: bool, told: list[str]
) -> None:
    """RUNNING is not published yet. TaskFlow's engines require both replies."""
    url = f"memory://{tmp_path.name}"
    made = workers.Worker("x", "t", [sample_tasks], url=url, threads_count=1)
    body = {
        "action": "execute",
        "arguments": {},
        "task_cls": "tests.support.sample_tasks.Nothing",
        "task_name": "w",
        "task_version": [1, 0],
    }
    headers = {hd.WBE_VERSION: hd.VERSION} if ours else {}
    properties = {"type": "REQUEST", "correlation_id": "id-1", "reply_to": "e"}
    channel = types.SimpleNamespace(answer=lambda *args: False)
    message = types.SimpleNamespace(
        properties=properties, headers=headers, delivery_info={}, channel=channel
    )
    made._runner.take(body, message)
    queued = made._proxy._sender._queue
    until(lambda: queued and queued[-1].envelope.body["state"] == SUCCESS)
    assert [message.envelope.body["state"] for message in queued] == told
    made._pool.stop()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"url": "redis://127.0.0.1:1/0"}, exceptions.TransportFailure),
        ({"url": "amqp://127.0.0.1:1//"}, exceptions.TransportFailure),
        ({"url": "amqp://host", "ledger": "redis://127.0.0.1:1/0"}, exceptions.LedgerFailure),
    ],
    ids=["redis", "amqp", "ledger"],
)
def test_wait_raises_the_error_of_a_run_that_failed(
    options: dict[str, Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_loop, "CONNECT_TIMEOUT_SECONDS", 1.0)
    made = workers.Worker("default", "t", [sample_tasks], **options)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            made.run(display_banner=False)
        except exceptions.WbengineException as failure:
            raised.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    with pytest.raises(error) as caught:
        made.wait(60)
    thread.join(60)
    assert raised == [caught.value]
