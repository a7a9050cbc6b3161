"""Plugin for pytest: the fixtures `crash_everywhere` and `wbe_*`, and the options of the first.

pytest loads it in every run if wbengine is installed. It imports nothing until a fixture is used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from wbengine import testing

if TYPE_CHECKING:
    from wbengine.engines import base
    from wbengine.engines.worker_based import worker as workers

#: Options of a worker that define its pool.
_POOLS: Final = frozenset({"concurrency", "executor", "pool", "processes_count", "threads_count"})

#: Module of the reports of `crash_everywhere`: without it, there are none.
_REPORTS: Final = "wbengine.testing._crashing.report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture `crash_everywhere`."""
    group = parser.getgroup("wbengine", "crash_everywhere of wbengine")
    group.addoption(
        "--crash-budget",
        type=float,
        metavar="SECONDS",
        help="maximum number of seconds of each crash_everywhere, unless the test defines it",
    )
    group.addoption(
        "--crash-only",
        metavar="SCHEDULE",
        help="inject only these faults, for example '12:kill', as a report shows them",
    )
    group.addoption(
        "--crash-real-runs",
        type=int,
        metavar="N",
        help="runs of each crash_everywhere with real processes, unless the test defines it",
    )
    group.addoption(
        "--crash-html",
        metavar="FOLDER",
        help="save the report of each crash_everywhere as an HTML page in this folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture `crash_everywhere`."""
    config.addinivalue_line(
        "markers",
        "crash_budget(seconds): maximum number of seconds of each crash_everywhere in the test",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the text of a report of `crash_everywhere` to the report of a failed test."""
    result = yield
    if result.failed and call.excinfo is not None and _REPORTS in sys.modules:
        from wbengine.testing._crashing import fixture

        for text in fixture.texts(call.excinfo.value):
            result.sections.append(("crash_everywhere", text))
    return result


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest) -> Callable[..., testing.Report]:
    """Return `wbengine.testing.crash_everywhere` with the options of this run of pytest.

    `report = crash_everywhere(order, {"order": 17}, world=bank)`, then `assert report.ok, report`.
    The budget is the argument `budget`, or that of the marker `crash_budget`, or `--crash-budget`.
    The text of the report contains a command that repeats a finding.
    """
    from wbengine.testing._crashing.fixture import configured

    return configured(request.node)


@pytest.fixture
def wbe_broker() -> Iterator[testing.Broker]:
    """Return an in-process broker for this test, which can inject faults."""
    broker = testing.Broker()
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def wbe_worker(wbe_broker: testing.Broker) -> Iterator[Callable[..., workers.Worker]]:
    """Return a function that starts workers on the broker of the test.

    `wbe_worker(MyTask, other_module, topic='video', concurrency=1)` starts a complete worker in a
    thread. Options are those of `Worker`; by default, tasks run in 4 threads. All workers are
    stopped at the end of the test.
    """
    with contextlib.ExitStack() as started:

        def start(*tasks: Any, topic: Any = "tests", **options: Any) -> workers.Worker:
            observers = options.pop("observers", ())
            options = {"observers": (wbe_broker.saboteur, *observers), **options}
            if options.keys().isdisjoint(_POOLS):
                options["concurrency"] = 4
            running = testing.worker_in_thread(
                wbe_broker.url, *tasks, topic=topic, exchange=wbe_broker.exchange, **options
            )
            return started.enter_context(running)

        try:
            yield start
        finally:
            wbe_broker.saboteur.release()  # Threads of killed workers have to end, too.


@pytest.fixture
def wbe_engine(wbe_broker: testing.Broker) -> Callable[..., base.Engine]:
    """Return a function that creates engines: `wbe_engine(flow, inputs={...}, **options)`.

    The test runs the engine. By default, tasks run on the workers of the test, and a worker is lost
    after 4 seconds without a message. With `engine='serial'` or another kind, tasks run in this
    process. With a `clock` (see `wbe_clock`), waits take no time. Events are
    recorded for `assert_flow_trace`.
    """
    from wbengine import engines

    def make(flow: Any, **options: Any) -> base.Engine:
        options.setdefault("engine", "worker-based")
        if options["engine"] in ("worker-based", "workers") and "executor" not in options:
            # A shorter time would lose workers on a machine that pauses for a second or two.
            options = {**wbe_broker.options, "worker_expiry": 4.0, **options}
        engine = engines.load(flow, **options)
        testing.Trace.of(engine)
        return engine

    return make


@pytest.fixture
def wbe_store() -> Iterator[testing.FaultyBackend]:
    """Return an in-memory store for this test, whose writes can fail on request.

    Pass it to engines as `backend`.
    """
    with testing.FaultyBackend() as store:
        yield store


@pytest.fixture
def wbe_clock() -> testing.ManualClock:
    """Return a clock for engines (option `clock`), with which their waits take no time."""
    return testing.ManualClock(1_000_000.0)
