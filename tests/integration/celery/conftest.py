"""Brokers, clients and workers of tests that serve Celery's clients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import celery_errands, celery_guests, workers
from tests.support.brokers import Broker, Brokers, Place
from tests.support.celery_errands import Client
from tests.support.celery_guests import Serve, Start
from tests.support.workers import WorkerProcess
from wbengine.interop.celery.worker import notes


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, broker_servers: Brokers) -> Broker:
    return broker_servers[request.param]


@pytest.fixture
def url(broker: Broker) -> Iterator[Place]:
    with broker.place() as place:
        yield place


@pytest.fixture
def client(url: Place, redis_url: Place) -> Client:
    return Client(url, redis_url)


@pytest.fixture
def begun(url: Place, redis_url: Place) -> Client:
    """Of the queue of a RabbitMQ that has what has begun."""
    return Client(url, redis_url, notes.begun_queue("celery"))


@pytest.fixture
def soon(broker: Broker) -> dict[str, int]:
    """Options: a Redis tells nobody that a worker is gone, but only that time passes."""
    names = ("visibility_timeout", "unacked_restore_interval", "unacked_restore_throttle")
    return dict.fromkeys(names, 1) if broker.kind == "redis" else {}


@pytest.fixture
def start(url: Place, redis_url: Place, tmp_path: Path) -> Start:
    """Start workers in processes of their own, of two threads each."""

    def workers_there(
        *more: str, count: int = 1, options: dict[str, Any] | None = None
    ) -> contextlib.AbstractContextManager[list[WorkerProcess]]:
        given = ["--celery-broker", str(url), "--celery-result-backend", str(redis_url)]
        for name, value in (options or {}).items():
            given += ["--celery-broker-option", f"{name}={value}"]
        tasks = ("--celery-queue", "celery", "--tasks", celery_errands.__name__)
        return workers.workers(tmp_path, *tasks, *given, "--threads", "2", *more, count=count)

    return workers_there


@pytest.fixture
def serve(url: Place, redis_url: Place) -> Serve:
    """Start a worker in a thread, which is there at once, and dies with nobody."""
    return functools.partial(celery_guests.serving, url, redis_url)
