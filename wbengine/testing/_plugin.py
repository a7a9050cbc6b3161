"""Plugin for pytest: `wbe_broker`, `wbe_worker`, `wbe_engine`, `wbe_store` and `wbe_clock`.

pytest loads it in every run if wbengine is installed. It imports nothing until a fixture is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from wbengine._concurrency.manual_clock import ManualClock
    from wbengine.engines import base
    from wbengine.engines.worker_based import worker as workers
    from wbengine.testing._brokers import Broker
    from wbengine.testing._stores import FaultyBackend

#: Options of a worker that define its pool.
_POOLS: Final = frozenset({"concurrency", "executor", "pool", "processes_count", "threads_count"})


@pytest.fixture
def wbe_broker() -> Iterator[Broker]:
    """Return an in-process broker for this test, which can inject faults."""
    from wbengine.testing._brokers import Broker

    broker = Broker()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def wbe_worker(wbe_broker: Broker) -> Iterator[Callable[..., workers.Worker]]:
    """Return a function that starts workers on the broker of the test.

    `wbe_worker(MyTask, other_module, topic='video', concurrency=1)` starts a complete worker in a
    thread. Options are those of `Worker`; by default, tasks run in 4 threads. All workers are
    stopped at the end of the test.
    """
    from wbengine.testing._workers import worker_in_thread

    with contextlib.ExitStack() as started:

        def start(*tasks: Any, topic: Any = "tests", **options: Any) -> workers.Worker:
            observers = options.pop("observers", ())
            options = {"observers": (wbe_broker.saboteur, *observers), **options}
            if options.keys().isdisjoint(_POOLS):
                options["concurrency"] = 4
            running = worker_in_thread(
                wbe_broker.url, *tasks, topic=topic, exchange=wbe_broker.exchange, **options
            )
            return started.enter_context(running)

        try:
            yield start
        finally:
            wbe_broker.saboteur.release()  # Threads of killed workers have to end, too.


@pytest.fixture
def wbe_engine(wbe_broker: Broker) -> Callable[..., base.Engine]:
    """Return a function that creates engines: `wbe_engine(flow, inputs={...}, **options)`.

    The test runs the engine. By default, tasks run on the workers of the test, and a worker is lost
    after 4 seconds without a message. With `engine='serial'` or another kind, tasks run in this
    process. With a `clock` (see `wbe_clock`), waits take no time. Events are
    recorded for `assert_flow_trace`.
    """
    from wbengine import engines
    from wbengine.testing._traces import Trace

    def make(flow: Any, **options: Any) -> base.Engine:
        options.setdefault("engine", "worker-based")
        if options["engine"] in ("worker-based", "workers") and "executor" not in options:
            # A shorter time would lose workers on a machine that pauses for a second or two.
            options = {**wbe_broker.options, "worker_expiry": 4.0, **options}
        engine = engines.load(flow, **options)
        Trace.of(engine)
        return engine

    return make


@pytest.fixture
def wbe_store() -> Iterator[FaultyBackend]:
    """Return an in-memory store for this test, whose writes can fail on request.

    Pass it to engines as `backend`.
    """
    from wbengine.testing._stores import FaultyBackend

    with FaultyBackend() as store:
        yield store


@pytest.fixture
def wbe_clock() -> ManualClock:
    """Return a clock for engines (option `clock`), with which their waits take no time."""
    from wbengine._concurrency.manual_clock import ManualClock

    return ManualClock(1_000_000.0)
