"""Options and failures of `CeleryTask` with Celery workers."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.celery.conftest import Bed, Beds
from tests.celery.flows import LINE, WIDE, asks, begun, id_of
from tests.celery.peers import NAME
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states
from wbengine.interop.celery.task import CeleryTask
from wbengine.types import failure as ft


@pytest.fixture
def prefork(beds: Beds) -> Bed:
    return beds.get("celery", "rabbitmq", "rpc", "processes")


def failed(*task: CeleryTask, **store: Any) -> Any:
    """Run a flow that fails and return its engine."""
    engine = engines.load(LINE("f").add(*task), store=store, engine="parallel")
    with pytest.raises(Exception):  # noqa: B017
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    return engine


def failure_of(task: CeleryTask, **store: Any) -> ft.Failure:
    """Run a task that fails and return its failure."""
    failure: ft.Failure = failed(task, **store).storage.get_execute_failures()[task.name]
    return failure


def revoked(side: Bed, engine: Any, name: str) -> bool:
    """Return True if the worker lists the task of an atom as revoked."""
    return id_of(engine, name) in str(side.call("inspect", "revoked"))


def value_of(task: CeleryTask, **store: Any) -> Any:
    engine = engines.load(LINE("f").add(task), store=store, engine="parallel")
    engine.run()
    return engine.storage.get(task.name)


# Failures. ----------------------------------------------------------------------------------------


def test_failure_has_type_text_and_traceback_of_worker(side: Bed) -> None:
    failure = failure_of(asks(side, "fail", inject={"text": "alas"}))
    assert next(iter(failure)) == "ValueError" and "alas" in failure.exception_str
    assert "in fail" in failure.traceback_str and "tests/celery/tasks.py" in failure.traceback_str


def test_failure_of_unimportable_class_is_matched_by_name(side: Bed) -> None:
    """The class is not imported.  A retry can also name it."""
    name = "nowhere.at.all.Hidden"
    failure = failure_of(asks(side, "fail_hidden"))
    assert failure.check(name) and failure.exception_str == "of nowhere"
    for retry_on, runs in ((name, 3), ("ValueError", 1)):
        hidden = asks(side, "fail_hidden", "hidden")
        flow = LINE("f", retry=retry.Times(3, "r", retry_on=retry_on)).add(hidden)
        engine = engines.load(flow, engine="parallel")
        with pytest.raises(exceptions.WrappedFailure):
            engine.run()
        assert engine.storage.record("hidden").attempt == 2 * runs  # each attempt is also reverted


def test_unregistered_task_fails_with_not_registered(side: Bed) -> None:
    failure = failure_of(asks(side, "no_such_thing"))
    assert failure.check("celery.exceptions.NotRegistered", exceptions.NotFound)


def test_unserializable_argument_fails_with_not_encodable(side: Bed) -> None:
    failure = failure_of(asks(side, "same", args="value"), value=object())
    assert failure.check(exceptions.NotEncodable)


# Time. --------------------------------------------------------------------------------------------


def test_task_that_times_out_is_revoked(side: Bed, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    engine = failed(asks(side, "note", args="path", countdown=3600, timeout=1.5), path=str(path))
    assert engine.storage.get_execute_failures()["note"].check(exceptions.RequestTimeout)
    until(lambda: revoked(side, engine, "note"))
    assert begun(path) == []


def test_timed_out_task_is_resent_with_new_id(side: Bed, tmp_path: Path) -> None:
    """Other failures do not cause another attempt."""
    queue = tmp_path.name  # no worker serves this queue
    failure = failure_of(asks(side, "add", inject={}, queue=queue, timeout=1.5, retries=1))
    assert failure.check(exceptions.RequestTimeout)
    ids = [correlation_id for _, correlation_id, _ in side.call("take", queue)]
    assert len(ids) == len(set(ids)) == 2
    task = asks(side, "fail", retries=2)
    assert failure_of(task).check("ValueError")


def test_countdown_and_eta_delay_task(side: Bed) -> None:
    began = time.monotonic()
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.5)
    for more in ({"countdown": 0.5}, {"eta": moment}):
        assert value_of(asks(side, "same", args="value", **more), value=1) == 1
    assert time.monotonic() - began >= 0.5


def test_expired_task_is_not_run(side: Bed, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    failure = failure_of(
        asks(side, "note", args="path", countdown=0.5, expires=0.1), path=str(path)
    )
    assert failure.check(exceptions.Expired) and begun(path) == []


def test_soft_and_hard_time_limits_are_enforced(prefork: Bed) -> None:
    """The worker raises the soft limit in the task and kills the task at the hard limit."""
    soft = asks(prefork, "gentle", timelimit=(0.5, 30), inject={"seconds": 20})
    assert value_of(soft) == "cleaned up after SoftTimeLimitExceeded"
    soft = asks(prefork, "rest", timelimit=(0.5, 30), inject={"seconds": 20})
    assert failure_of(soft).check(exceptions.SoftTimeLimitExceeded)
    hard = asks(prefork, "gentle", timelimit=(None, 1), inject={"seconds": 20})
    assert failure_of(hard).check(exceptions.TimeLimitExceeded)


# Sending. -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ["yaml", "msgpack"])
def test_arguments_and_result_use_chosen_serializer(
    serializer: str, celery: Any, beds: Beds
) -> None:
    accepted = ["json", serializer]
    side = beds.get("celery", "redis", "redis")
    worker = celery.worker(
        side.url, "threads", queue=serializer, name=serializer, backend=side.backend,
        accept_content=accepted, result_serializer=serializer,
    )  # fmt: skip
    with worker:
        value = value_of(
            asks(
                side, "swap", args="a", requires="b", queue=serializer,
                serializer=serializer, result_serializer=serializer,
            ),
            a=[1, "ä"], b={"x": None},
        )  # fmt: skip
    assert value == [[[1, "ä"]], {"b": {"x": None}}]


def test_task_with_ignore_result_returns_id_and_is_revoked_on_revert(
    side: Bed, tmp_path: Path
) -> None:
    path = tmp_path / "ran"
    sent = asks(side, "note", args="path", ignore_result=True, provides="id")
    engine = engines.load(LINE("f").add(sent), store={"path": str(path)})
    engine.run()
    assert engine.storage.fetch("id") == id_of(engine, "note")
    until(lambda: begun(path) == ["ran"])

    late = asks(side, "note", args="path", ignore_result=True, countdown=3600)
    engine = failed(late, asks(side, "fail"), path=str(path))
    assert engine.storage.get_execute_failures()["fail"].check("ValueError")
    until(lambda: revoked(side, engine, "note"))
    assert begun(path) == ["ran"]


def test_custom_header_and_flow_id_reach_task(side: Bed) -> None:
    engine = engines.load(LINE("f").add(asks(side, "about", headers={"color": "red"})))
    engine.run()
    context, flow = engine.storage.get("about"), engine.storage.flow_uuid
    assert context["extra"] == "red" and context["root_id"] == context["parent_id"] == flow
    assert context["id"] == context["correlation_id"] == id_of(engine, "about")


def test_unencodable_header_fails_only_its_task(prefork: Bed) -> None:
    bad = asks(prefork, "add", "bad", headers={"x": {1}}, inject={"x": 1, "y": 2})
    failure = failure_of(bad)
    assert failure.check(exceptions.NotEncodable) and "cannot be sent" in failure.exception_str
    assert value_of(asks(prefork, "same", args="value"), value=7) == 7


def test_unreachable_result_backend_fails_only_its_task(prefork: Bed) -> None:
    away = asks(
        prefork,
        "add",
        "away",
        inject={"x": 1, "y": 2},
        result_backend="redis://127.0.0.1:1",
        timeout=8,
    )
    task = asks(prefork, "same", args="value", timeout=6)
    engine = engines.load(WIDE("f").add(away, task), store={"value": 7}, engine="parallel")
    with pytest.raises(exceptions.RequestTimeout, match="away"):
        engine.run()
    assert set(engine.storage.get_execute_failures()) == {"away"}


def test_task_with_priority_runs(side: Bed) -> None:
    assert value_of(asks(side, "same", args="value", priority=3), value=7) == 7


def test_unroutable_task_fails(prefork: Bed) -> None:
    failure = failure_of(asks(prefork, "add", exchange="amq.direct", routing_key="nobody"))
    assert (
        failure.check(exceptions.TransportFailure) and "no queue receives" in failure.exception_str
    )


def test_existing_queue_with_other_arguments_is_used(prefork: Bed) -> None:
    """Celery may have declared the queue with unknown arguments."""
    name = "made-otherwise"
    with kombu.Connection(prefork.url) as connection:
        with_priorities = kombu.Queue(name, kombu.Exchange(name), name, max_priority=5)
        with_priorities(connection.channel()).declare()
        sent = value_of(asks(prefork, "add", queue=name, ignore_result=True))
        message = with_priorities(connection.channel()).get(no_ack=True)
        assert message is not None and message.properties["correlation_id"] == sent


def test_exclusive_queue_of_another_connection_fails_task(prefork: Bed) -> None:
    with kombu.Connection(prefork.url) as connection:
        held = kombu.Queue("held", kombu.Exchange("held"), "held", exclusive=True)
        held(connection.channel()).declare()
        failure = failure_of(asks(prefork, "add", queue="held"))
    assert failure.check(exceptions.TransportFailure)
    assert "the broker refused it: " in failure.exception_str


def test_publish_to_missing_exchange_fails_no_other_task(prefork: Bed) -> None:
    """Other tasks on the same connection complete."""
    bad = asks(prefork, "add", "bad", exchange="nobody's", routing_key="x", revoke_on_revert=False)
    task = asks(prefork, "rest", inject={"seconds": 0.3}, revoke_on_revert=False)
    engine = engines.load(WIDE("f").add(bad, task), engine="parallel")
    with pytest.raises(exceptions.TransportFailure, match="the broker refused it: "):
        engine.run()
    assert engine.storage.get_atom_state("rest") == states.REVERTED
    assert set(engine.storage.get_execute_failures()) == {"bad"}


def test_wrong_password_of_broker_fails_task(prefork: Bed) -> None:
    head, _, tail = prefork.url.rpartition("@")
    url = f"{head}x@{tail}"  # a wrong password
    failure = failure_of(CeleryTask(f"{NAME}.add", url))
    assert failure.check(exceptions.TransportFailure)


# Cancelling. --------------------------------------------------------------------------------------


def test_retry_of_subflow_revokes_pending_task(side: Bed, tmp_path: Path) -> None:
    """The retry controller receives only the failure of the failed task."""
    path, flag = tmp_path / "ran", tmp_path / "times"
    flaky = asks(side, "flaky", args=("path", "times", "most"), inject={"most": 0})
    waits = asks(side, "note", "waits", args="path", rebind={"path": "note"}, countdown=4.0)
    flow = WIDE("w", retry=retry.Times(2, "r", retry_on=f"{NAME}.Odd")).add(flaky, waits)
    store = {"path": str(flag), "times": 1, "note": str(path)}
    engine = engines.load(flow, store=store, engine="parallel")
    engine.run()
    assert begun(flag) == ["ran", "ran"]
    assert begun(path) == ["ran"]  # once: the first request was revoked
    assert engine.storage.record("waits").attempt == 3


def test_task_revoked_from_outside_is_cancelled(side: Bed, tmp_path: Path) -> None:
    waits = asks(side, "note", args="path", countdown=5.0)
    engine = engines.load(LINE("f").add(waits), store={"path": str(tmp_path / "p")})

    def run() -> None:
        with pytest.raises(exceptions.Cancelled):
            engine.run()

    running = threading.Thread(target=run)
    running.start()
    until(lambda: engine.storage.get_flow_state() == states.RUNNING)
    until(lambda: engine.storage.get_atom_state("note") == states.RUNNING)
    name = id_of(engine, "note")
    # the worker has received the task
    until(lambda: name in str(side.call("inspect", "scheduled")))
    side.call("revoke", name)
    running.join(60)
    assert not running.is_alive()
    assert engine.storage.get_execute_failures()["note"].check(exceptions.Cancelled)


def test_running_task_is_terminated_on_cancel(prefork: Bed, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    runs = asks(prefork, "stubborn", args=("seconds", "path"), terminate="SIGKILL")
    store = {"seconds": 90, "path": str(path)}
    engine = engines.load(LINE("f").add(runs), store=store, engine="parallel")
    cancels = threading.Thread(target=until, args=(lambda: begun(path) and engine.cancel(),))
    cancels.start()
    try:
        with pytest.raises(exceptions.Cancelled):
            engine.run()
    finally:
        cancels.join()
    name = id_of(engine, runs.name)
    until(lambda: name not in str(prefork.call("inspect", "active")))
    assert begun(path) == ["begins"]
