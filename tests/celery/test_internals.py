"""Undocumented interfaces of Celery that the worker uses."""

from __future__ import annotations

import configparser
import importlib.metadata
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery
import kombu
import pytest
from billiard.einfo import ExceptionInfo
from celery.concurrency import base
from celery.exceptions import WorkerLostError
from celery.worker import request, state
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from packaging.requirements import Requirement

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.support import brokers
from tests.support.workers import REPOSITORY, until
from wbengine import time_limits
from wbengine.interop.celery import _internals


def test_installed_celery_is_supported() -> None:
    """The extra excludes releases that were not reviewed."""
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    requirements = setup["options.extras_require"]["celery"].split()
    for needed in map(Requirement, requirements):
        assert needed.specifier.contains(importlib.metadata.version(needed.name)), needed
        if needed.name == "celery":
            assert not needed.specifier.contains("5.8") and not needed.specifier.contains("5.6")


class Recorder:
    """A pool that only records requests."""

    def __init__(self) -> None:
        self.deliveries: list[_internals.HostedRequest] = []

    def submit(self, delivery: _internals.HostedRequest) -> Recorder:
        self.deliveries.append(delivery)
        return self

    def stop_jobs(self) -> None:
        """Do nothing: no job runs."""


def same(x: Any) -> Any:
    return x


@pytest.fixture
def pool() -> Any:
    class Pool(_internals.HostedPool):
        host = Recorder()

    return Pool(2, semaphore=LaxBoundedSemaphore(1))


def received(app: celery.Celery, task: Any, pool: Any, **options: Any) -> Any:
    """Receive the message and pass its request to the pool."""
    with app.connection_for_read() as connection:
        queue = kombu.Queue("celery", kombu.Exchange("celery"), "celery")
        message = queue(connection.default_channel).get()
    cls = request.create_request_cls(_internals.HostedRequest, task, pool, "w@h", None, app=app)
    delivery = cls(message, app=app, task=task, body=message.body, decoded=False, **options)
    delivery.execute_using_pool(pool)
    return delivery


def test_pool_receives_request_with_limits_and_fields(pool: Any) -> None:
    app = celery.Celery(broker="memory://", set_as_current=False)
    task = app.task(same, name="t", time_limit=9)
    task.apply_async((3,), task_id="i", retries=2, soft_time_limit=5, headers={"color": "red"})
    submitted = received(app, task, pool)
    (delivery,) = pool.host.deliveries
    assert delivery is submitted
    assert (delivery.id, delivery.limit) == ("i", time_limits.TimeLimit(5, 9))
    assert [delivery.fields[name] for name in ("task", "retries", "color")] == ["t", 2, "red"]
    assert delivery.fields["delivery_info"]["routing_key"] == "celery"
    app.set_current()
    assert delivery.trace()[:2] == (0, "3")


@pytest.mark.parametrize("how", ["ends", "fails"])
def test_message_is_acknowledged_in_thread_of_event_loop(pool: Any, how: str) -> None:
    """Callbacks after the acknowledgement may use the connection, such as for prefetch counts."""
    app = celery.Celery(broker="memory://", set_as_current=False)
    task = app.task(same, name="t", acks_late=True, ignore_result=True)
    hub, threads = Hub(), []

    def acknowledge(*_: Any) -> None:
        threads.append(threading.get_ident())

    pool.register_with_event_loop(hub)
    task.apply_async((3,))
    delivery = received(app, task, pool, on_ack=acknowledge, on_reject=acknowledge)
    delivery.accept()

    def settle() -> None:
        if how == "ends":
            delivery.end((0, "3", 0.1))
        else:
            delivery.fail(ValueError("why"))

    pool_thread = threading.Thread(target=settle)
    pool_thread.start()
    pool_thread.join()
    assert threads == []
    loop = hub.create_loop()
    until(lambda: next(loop) or threads)
    assert threads == [threading.get_ident()]
    hub.close()


@pytest.mark.parametrize("error", [WorkerLostError("why"), ValueError("why")])
def test_message_is_acknowledged_after_failure_is_stored(pool: Any, error: Exception) -> None:
    """If the worker is killed in between, the message is redelivered and the next worker reports
    it.
    """
    app = celery.Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    task = app.task(same, name="t", acks_late=True)
    states = []
    pool.register_with_event_loop(Hub())
    sent = task.apply_async((3,))
    delivery = received(
        app, task, pool, on_ack=lambda *_: states.append(task.backend.get_state(sent.id))
    )
    delivery.accept()
    delivery.fail(error)
    assert states == ["FAILURE"]


def test_message_stays_unacknowledged_if_failure_cannot_be_stored(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = celery.Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    task = app.task(same, name="t", acks_late=True)
    settled = []
    pool.register_with_event_loop(Hub())
    task.apply_async((3,))
    delivery = received(app, task, pool, on_ack=lambda *_: settled.append("acknowledged"))
    delivery.accept()
    with monkeypatch.context() as away:
        away.setattr(task.backend, "set", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delivery.fail(WorkerLostError("why"))
    assert settled == []
    delivery.fail(WorkerLostError("why"))
    assert settled == ["acknowledged"]


def test_failure_handler_receives_exception() -> None:
    class Told(_internals.HostedRequest):
        def __init__(self) -> None:
            self.told: list[Any] = []

        def on_failure(self, found: Any, **options: Any) -> None:
            self.told.append(found)

    made = Told()
    made.fail(ValueError("why"))
    (found,) = made.told
    assert isinstance(found, ExceptionInfo) and str(found.exception.exc) == "why"


def test_waiting_callback_receives_released_slot_in_event_loop(pool: Any) -> None:
    """Waiting callbacks get a released slot in order."""
    hub, called = Hub(), []
    pool.register_with_event_loop(hub)
    event_loop, semaphore = _internals.HostedRequest.loop, pool.options["semaphore"]
    assert pool.uses_semaphore and not base.BasePool.uses_semaphore

    def turn(while_: Callable[[], bool]) -> None:
        loop = hub.create_loop()
        until(lambda: next(loop) or not while_())

    semaphore.acquire(called.append, "first")
    event_loop.take_slot_later(0.05, called.append, "second")
    before = time.monotonic()
    turn(lambda: time.monotonic() < before + 0.1)
    assert called == ["first"]
    event_loop.release_slot()
    turn(lambda: len(called) < 2)
    assert called == ["first", "second"] and semaphore.value == 0
    hub.close()


def test_shut_down_stops_celery_worker() -> None:
    _internals.shut_down()
    try:
        with pytest.raises(SystemExit):
            state.maybe_shutdown()
    finally:
        state.should_stop = None
    assert not _internals.is_busy()


@pytest.mark.parametrize("kind", ["redis"])
def test_worker_stops_while_its_broker_is_unreachable(own: Bed, tmp_path: Path) -> None:
    with (
        brokers.redis() as server,
        peers.wbengine_worker(tmp_path, server.url(), backend=own.backend) as worker,
    ):
        # during this search the worker would otherwise end together with its broker
        until(lambda: "all alone" in worker.text)
        server.kill()
        until(lambda: "Connection" in worker.text)
        assert worker.stop() == 0
