"""What a `CeleryTask` can be told, and how it fails, with real workers of Celery."""

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


def failed(*made: CeleryTask, **store: Any) -> Any:
    """The engine of a flow that failed."""
    engine = engines.load(LINE("f").add(*made), store=store, engine="parallel")
    with pytest.raises(Exception):  # noqa: B017
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    return engine


def failure_of(made: CeleryTask, **store: Any) -> ft.Failure:
    """What a task alone fails with."""
    found: ft.Failure = failed(made, **store).storage.get_execute_failures()[made.name]
    return found


def revoked(side: Bed, engine: Any, name: str) -> bool:
    """Whether the worker knows that what an atom sent is not to run."""
    return id_of(engine, name) in str(side.call("inspect", "revoked"))


def value_of(made: CeleryTask, **store: Any) -> Any:
    engine = engines.load(LINE("f").add(made), store=store, engine="parallel")
    engine.run()
    return engine.storage.get(made.name)


# How it fails. ------------------------------------------------------------------------------------


def test_the_worker_tells_what_failed(side: Bed) -> None:
    """Type, text and traceback are those of the worker."""
    found = failure_of(asks(side, "fail", inject={"text": "alas"}))
    assert next(iter(found)) == "ValueError" and "alas" in found.exception_str
    assert "in fail" in found.traceback_str and "tests/celery/tasks.py" in found.traceback_str


def test_a_class_that_is_nowhere(side: Bed) -> None:
    """Nothing that a message names is imported; it is known by its name, also to a retry."""
    name = "nowhere.at.all.Hidden"
    found = failure_of(asks(side, "fail_hidden"))
    assert found.check(name) and found.exception_str == "of nowhere"
    for retry_on, runs in ((name, 3), ("ValueError", 1)):
        hidden = asks(side, "fail_hidden", "hidden")
        flow = LINE("f", retry=retry.Times(3, "r", retry_on=retry_on)).add(hidden)
        engine = engines.load(flow, engine="parallel")
        with pytest.raises(exceptions.WrappedFailure):
            engine.run()
        assert engine.storage.record("hidden").attempt == 2 * runs  # each is reverted, too


def test_nobody_knows_the_task(side: Bed) -> None:
    found = failure_of(asks(side, "no_such_thing"))
    assert found.check("celery.exceptions.NotRegistered", exceptions.NotFound)


def test_arguments_that_nothing_can_write(side: Bed) -> None:
    found = failure_of(asks(side, "same", args="value"), value=object())
    assert found.check(exceptions.NotEncodable)


# Time. --------------------------------------------------------------------------------------------


def test_time_is_up(side: Bed, tmp_path: Path) -> None:
    """It is revoked then: what did not begin does not."""
    path = tmp_path / "ran"
    engine = failed(asks(side, "note", args="path", countdown=3600, timeout=1.5), path=str(path))
    assert engine.storage.get_execute_failures()["note"].check(exceptions.RequestTimeout)
    until(lambda: revoked(side, engine, "note"))
    assert begun(path) == []


def test_it_is_sent_again(side: Bed, tmp_path: Path) -> None:
    """Under other ids, and only for want of an answer."""
    queue = tmp_path.name  # nobody serves it
    found = failure_of(asks(side, "add", inject={}, queue=queue, timeout=1.5, retries=1))
    assert found.check(exceptions.RequestTimeout)
    ids = [correlation_id for _, correlation_id, _ in side.call("take", queue)]
    assert len(ids) == len(set(ids)) == 2
    made = asks(side, "fail", retries=2)
    assert failure_of(made).check("ValueError")


def test_countdown_and_eta(side: Bed) -> None:
    began = time.monotonic()
    moment = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=0.5)
    for more in ({"countdown": 0.5}, {"eta": moment}):
        assert value_of(asks(side, "same", args="value", **more), value=1) == 1
    assert time.monotonic() - began >= 0.5


def test_it_expires(side: Bed, tmp_path: Path) -> None:
    """A worker that comes to it too late does not run it."""
    path = tmp_path / "ran"
    found = failure_of(asks(side, "note", args="path", countdown=0.5, expires=0.1), path=str(path))
    assert found.check(exceptions.Expired) and begun(path) == []


def test_soft_and_hard_limits(prefork: Bed) -> None:
    """The worker keeps them: the soft one is raised in the task, the hard one ends it."""
    soft = asks(prefork, "gentle", timelimit=(0.5, 30), inject={"seconds": 20})
    assert value_of(soft) == "cleaned up after SoftTimeLimitExceeded"
    soft = asks(prefork, "rest", timelimit=(0.5, 30), inject={"seconds": 20})
    assert failure_of(soft).check(exceptions.SoftTimeLimitExceeded)
    hard = asks(prefork, "gentle", timelimit=(None, 1), inject={"seconds": 20})
    assert failure_of(hard).check(exceptions.TimeLimitExceeded)


# How it is sent. ----------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ["yaml", "msgpack"])
def test_serializers(serializer: str, celery: Any, beds: Beds) -> None:
    accepted = ["json", serializer]
    side = beds.get("celery", "redis", "redis")
    made = celery.worker(
        side.url, "threads", queue=serializer, name=serializer, backend=side.backend,
        accept_content=accepted, result_serializer=serializer,
    )  # fmt: skip
    with made:
        found = value_of(
            asks(
                side, "swap", args="a", requires="b", queue=serializer,
                serializer=serializer, result_serializer=serializer,
            ),
            a=[1, "ä"], b={"x": None},
        )  # fmt: skip
    assert found == [[[1, "ä"]], {"b": {"x": None}}]


def test_nobody_waits_for_it(side: Bed, tmp_path: Path) -> None:
    """It ends with its id as soon as it is sent, and is revoked when that is undone."""
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


def test_headers_of_ones_own(side: Bed) -> None:
    engine = engines.load(LINE("f").add(asks(side, "about", headers={"color": "red"})))
    engine.run()
    found, flow = engine.storage.get("about"), engine.storage.flow_uuid
    assert found["extra"] == "red" and found["root_id"] == found["parent_id"] == flow
    assert found["id"] == found["correlation_id"] == id_of(engine, "about")


def test_header_that_amqp_cannot_write_fails_its_task_alone(prefork: Bed) -> None:
    bad = asks(prefork, "add", "bad", headers={"x": {1}}, inject={"x": 1, "y": 2})
    found = failure_of(bad)
    assert found.check(exceptions.NotEncodable) and "cannot be sent" in found.exception_str
    assert value_of(asks(prefork, "same", args="value"), value=7) == 7


def test_task_whose_results_are_away_holds_up_no_other(prefork: Bed) -> None:
    away = asks(
        prefork,
        "add",
        "away",
        inject={"x": 1, "y": 2},
        result_backend="redis://127.0.0.1:1",
        timeout=8,
    )
    rest = asks(prefork, "same", args="value", timeout=6)
    engine = engines.load(WIDE("f").add(away, rest), store={"value": 7}, engine="parallel")
    with pytest.raises(exceptions.RequestTimeout, match="away"):
        engine.run()
    assert set(engine.storage.get_execute_failures()) == {"away"}


def test_a_priority(side: Bed) -> None:
    assert value_of(asks(side, "same", args="value", priority=3), value=7) == 7


def test_no_queue_takes_it(prefork: Bed) -> None:
    found = failure_of(asks(prefork, "add", exchange="amq.direct", routing_key="nobody"))
    assert found.check(exceptions.TransportFailure) and "no queue takes" in found.exception_str


def test_a_queue_that_was_made_otherwise_serves(prefork: Bed) -> None:
    """Celery's side may have declared it with arguments that we do not know."""
    name = "made-otherwise"
    with kombu.Connection(prefork.url) as connection:
        with_priorities = kombu.Queue(name, kombu.Exchange(name), name, max_priority=5)
        with_priorities(connection.channel()).declare()
        sent = value_of(asks(prefork, "add", queue=name, ignore_result=True))
        message = with_priorities(connection.channel()).get(no_ack=True)
        assert message is not None and message.properties["correlation_id"] == sent


def test_a_queue_of_another_connection_is_refused(prefork: Bed) -> None:
    """The broker refuses to declare it."""
    with kombu.Connection(prefork.url) as connection:
        held = kombu.Queue("held", kombu.Exchange("held"), "held", exclusive=True)
        held(connection.channel()).declare()
        found = failure_of(asks(prefork, "add", queue="held"))
    assert found.check(exceptions.TransportFailure)
    assert "the broker refused it: " in found.exception_str


def test_there_is_no_such_exchange(prefork: Bed) -> None:
    """Whatever else is under way over the same connection comes to its end."""
    bad = asks(prefork, "add", "bad", exchange="nobody's", routing_key="x", revoke_on_revert=False)
    rest = asks(prefork, "rest", inject={"seconds": 0.3}, revoke_on_revert=False)
    engine = engines.load(WIDE("f").add(bad, rest), engine="parallel")
    with pytest.raises(exceptions.TransportFailure, match="the broker refused it: "):
        engine.run()
    assert engine.storage.get_atom_state("rest") == states.REVERTED
    assert set(engine.storage.get_execute_failures()) == {"bad"}


def test_the_broker_refuses_us(prefork: Bed) -> None:
    head, _, tail = prefork.url.rpartition("@")
    url = f"{head}x@{tail}"  # a wrong password
    found = failure_of(CeleryTask(f"{NAME}.add", url))
    assert found.check(exceptions.TransportFailure)


# What is cancelled. -------------------------------------------------------------------------------


def test_a_subflow_is_tried_again(side: Bed, tmp_path: Path) -> None:
    """What it waits for is revoked, and its retry is asked about the failure alone."""
    path, flag = tmp_path / "ran", tmp_path / "times"
    flaky = asks(side, "flaky", args=("path", "times", "most"), inject={"most": 0})
    waits = asks(side, "note", "waits", args="path", rebind={"path": "note"}, countdown=4.0)
    flow = WIDE("w", retry=retry.Times(2, "r", retry_on=f"{NAME}.Odd")).add(flaky, waits)
    store = {"path": str(flag), "times": 1, "note": str(path)}
    engine = engines.load(flow, store=store, engine="parallel")
    engine.run()
    assert begun(flag) == ["ran", "ran"]
    assert begun(path) == ["ran"]  # once: the first one was revoked
    assert engine.storage.record("waits").attempt == 3


def test_somebody_else_revokes_it(side: Bed, tmp_path: Path) -> None:
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
    until(lambda: name in str(side.call("inspect", "scheduled")))  # the worker holds it
    side.call("revoke", name)
    running.join(60)
    assert not running.is_alive()
    assert engine.storage.get_execute_failures()["note"].check(exceptions.Cancelled)


def test_the_one_that_runs_is_ended(prefork: Bed, tmp_path: Path) -> None:
    """By a signal, if that is wanted."""
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
