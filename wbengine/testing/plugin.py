"""The plugin for pytest: `wbe_broker`, `wbe_worker`, `wbe_engine`, `wbe_store` and `wbe_clock`.

pytest loads it in every run of everybody who has wbengine installed: it imports nothing before one
of the fixtures is used, and changes nothing for tests that do not use them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from wbengine._clock import ManualClock
    from wbengine.engines import base
    from wbengine.engines.worker_based import worker as workers
    from wbengine.testing.brokers import Broker
    from wbengine.testing.stores import FaultyBackend

#: Options of a worker that say where its tasks run, and how many at once.
_POOLS: Final = frozenset({"concurrency", "executor", "pool", "processes_count", "threads_count"})


@pytest.fixture
def wbe_broker() -> Iterator[Broker]:
    """A broker of this test alone, in this process; messages and workers can be hurt there."""
    from wbengine.testing.brokers import Broker

    broker = Broker()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def wbe_worker(wbe_broker: Broker) -> Iterator[Callable[..., workers.Worker]]:
    """Starts workers: `wbe_worker(MyTask, other_module, topic='video', concurrency=1)`.

    Each is a real one, in a thread, and serves the tasks it is given on the broker of the test;
    other options are those of `Worker`.  Where none says where tasks run, they do in 4 threads.
    All are stopped at the end of the test.
    """
    from wbengine.testing.workers import worker_in_thread

    with contextlib.ExitStack() as started:

        def start(*tasks: Any, topic: Any = "tests", **options: Any) -> workers.Worker:
            own = options.pop("observers", ())
            options = {"observers": (wbe_broker.saboteur, *own), **options}
            if options.keys().isdisjoint(_POOLS):
                options["concurrency"] = 4
            made = worker_in_thread(wbe_broker.url, *tasks, topic=topic,
                                    exchange=wbe_broker.exchange, **options)  # fmt: skip
            return started.enter_context(made)

        try:
            yield start
        finally:
            wbe_broker.saboteur.release()  # who was killed has to come to an end, too


@pytest.fixture
def wbe_engine(wbe_broker: Broker) -> Callable[..., base.Engine]:
    """Makes engines: `wbe_engine(flow, store={...}, **options)`, to be run by the test.

    By default their tasks run on the workers of the test, and a worker is lost after 4 seconds of
    silence.  With `engine='serial'` or another kind they run here, and the broker is not used.
    With a `clock` (see `wbe_clock`), waits between retries take no time.  What happens is kept for
    `assert_flow_trace`.
    """
    from wbengine import engines
    from wbengine.testing.traces import Trace

    def make(flow: Any, *, clock: ManualClock | None = None, **options: Any) -> base.Engine:
        options.setdefault("engine", "worker-based")
        if options["engine"] in ("worker-based", "workers") and "executor" not in options:
            # Less would lose workers on a machine that stands still for a second or two.
            options = {**wbe_broker.options, "worker_expiry": 4.0, **options}
        made: Any = engines.load(flow, **options)
        if clock is not None:
            made._clock = clock
        Trace.of(made)
        engine: base.Engine = made
        return engine

    return make


@pytest.fixture
def wbe_store() -> Iterator[FaultyBackend]:
    """A store in memory for flows of this test, to be given to engines as `backend`, in which
    writes fail when they are told to.
    """
    from wbengine.testing.stores import FaultyBackend

    with FaultyBackend() as store:
        yield store


@pytest.fixture
def wbe_clock() -> ManualClock:
    """A clock that stands still until it is told to advance, or somebody waits on it."""
    from wbengine._clock import ManualClock

    return ManualClock(1_000_000.0)
