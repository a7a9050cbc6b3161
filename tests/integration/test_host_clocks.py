"""Stored times on hosts whose clocks differ from that of the database."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.support import servers
from wbengine import engines, operations, retry, states, task
from wbengine._concurrency import clocks
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base

#: Sets the clock of this host to a number of seconds ahead of its real time.
SetHost = Callable[[float], None]


@pytest.fixture(params=["postgresql", "mysql"])
def store(
    request: pytest.FixtureRequest, database_servers: servers.Databases
) -> Iterator[base.Backend]:
    with database_servers[request.param].database() as url, backends.backend(url) as backend:
        yield backend


@pytest.fixture
def set_host(monkeypatch: pytest.MonkeyPatch) -> SetHost:
    real = time.time

    def set_host(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)
        monkeypatch.setattr(clocks.Clock, "time", staticmethod(lambda: real() + seconds))

    return set_host


class Fails(task.Task):
    def execute(self) -> None:
        raise LookupError("fails")


class Step(task.Task):
    def execute(self) -> str:
        return "done"


@task.workflow
def naps(steps: Any) -> None:
    steps.sleep(600)


def parked_seconds(flow: Any, store: base.Backend, uuid: str | None = None) -> tuple[float, str]:
    """Run or continue a flow until it is parked. Return the time until its end, and its uuid."""
    if uuid is None:
        engine = engines.load(flow, backend=store)
    else:
        with contextlib.closing(store.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
        engine = engines.load(flow, flow_detail=detail, backend=store)
    engine.park_after = 1
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    return engine.parked.seconds, engine.storage.flow_uuid


@pytest.mark.parametrize(
    "waits",
    [
        lambda: linear_flow.Flow("f").add(task.Sleep(600)),
        lambda: linear_flow.Flow("f").add(task.WaitFor("go", timeout=600)),
        lambda: linear_flow.Flow("f", retry.Times(2, backoff=600)).add(Fails()),
        lambda: linear_flow.Flow("f").add(naps()),
    ],
    ids=["sleep", "timeout", "retry", "workflow"],
)
@pytest.mark.parametrize("ahead", [3600, -3600])
def test_wait_ends_at_its_time_on_a_host_with_another_clock(
    store: base.Backend, set_host: SetHost, waits: Callable[[], Any], ahead: float
) -> None:
    seconds, uuid = parked_seconds(waits(), store)
    assert seconds == pytest.approx(600, abs=60)
    set_host(ahead)
    seconds, _ = parked_seconds(waits(), store, uuid)
    assert seconds == pytest.approx(600, abs=60)


def test_clock_that_is_set_during_a_run_moves_no_stored_time(
    store: base.Backend, set_host: SetHost
) -> None:
    class SetsClock(task.Task):
        def execute(self) -> None:
            set_host(3600)

    flow = linear_flow.Flow("f").add(SetsClock(), task.Sleep(600))
    _, uuid = parked_seconds(flow, store)
    set_host(0)
    seconds, _ = parked_seconds(flow, store, uuid)
    assert seconds == pytest.approx(600, abs=60)


@pytest.mark.parametrize("kind", ["serial", "memory"])
def test_eta_is_compared_with_the_clock_of_the_store(
    store: base.Backend, set_host: SetHost, kind: str, tmp_path: Path
) -> None:
    start = dt.datetime.now(dt.UTC)
    set_host(-3600)
    step = Step(provides="out")
    step.eta = start
    with engine_options(kind, tmp_path, sys.modules[__name__], slots=1) as options:
        engine = engines.load(linear_flow.Flow("f").add(step), backend=store, **options)
        engine.run(deadline=120)
    assert engine.storage.fetch("out") == "done"


def test_pause_ends_at_its_time_on_a_host_with_another_clock(
    store: base.Backend, set_host: SetHost
) -> None:
    set_host(-3600)
    operations.pause_tasks(store, "x.*", seconds=600)
    set_host(0)
    assert [pause.pattern for pause in operations.paused_tasks(store)] == ["x.*"]
    with contextlib.closing(store.get_connection()) as connection:
        (pause,) = connection.pauses()
        assert pause.until == pytest.approx(connection.now() + 600, abs=60)
