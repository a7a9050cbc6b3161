"""`task.Sleep`: tasks that only wait for a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.scheduling import load_at
from tests.support.reading import read_flow
from wbengine import exceptions, states, task
from wbengine._concurrency import manual_clock
from wbengine._runtime.gates import signals_and_sleeps
from wbengine.patterns import linear_flow
from wbengine.persistence import _listing, backends, base, models
from wbengine.views import _waiting, flow_status


class Step(task.Task):
    def execute(self) -> str:
        return self.name


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


def line(seconds: float = 3600) -> linear_flow.Flow:
    return linear_flow.Flow("f").add(
        Step("first"), task.Sleep(seconds, name="nap"), Step("last", provides="last")
    )


def test_sleep_counts_from_its_first_start_across_suspension(store: base.Backend) -> None:
    clock = manual_clock.ManualClock(1000.0)
    flow = line()
    engine = load_at(clock, flow, backend=store)
    for state in engine.run_iter(timeout=1):
        if state == states.WAITING and clock.time() >= 1100:
            engine.suspend()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    clock.advance(3000 - (clock.time() - 1000))
    detail = read_flow(store, engine.storage.flow_uuid)
    later = load_at(clock, flow, flow_detail=detail, backend=store)
    later.run()
    assert clock.time() == pytest.approx(4600.0)
    assert later.storage.get_flow_state() == states.SUCCESS


def test_sleeping_flow_is_parked_until_its_end(store: base.Backend) -> None:
    clock = manual_clock.ManualClock()
    engine = load_at(clock, line(50), backend=store)
    engine.park_after = 10
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.parked.seconds == pytest.approx(50)


def test_sleep_accepts_no_signals(store: base.Backend) -> None:
    engine = load_at(manual_clock.ManualClock(), line(), backend=store)
    engine.prepare()
    for name in ("nap", ""):
        with pytest.raises((exceptions.NotFound, ValueError)):
            engine.signal(name)


def test_views_show_the_sleep_with_its_end(store: base.Backend) -> None:
    clock = manual_clock.ManualClock(1000.0)
    engine = load_at(clock, line(), backend=store)
    for state in engine.run_iter(timeout=1):
        if state == states.WAITING and clock.time() >= 1100:
            wait = _waiting.wait_of(engine.storage.record("nap"))
            with contextlib.closing(store.get_connection()) as connection:
                view = flow_status.read(connection, engine.storage.flow_uuid, now=1000.0)
            break
    assert wait == _waiting.Waiting("sleep", "nap", 1000.0, 4600.0)
    assert _waiting.describe_wait(wait, 1000.0).startswith("since ")
    assert "in 1 h" in _waiting.describe_wait(wait, 1000.0)
    (nap,) = [atom for atom in view.atoms if atom.name == "nap"]
    assert nap.waiting.startswith("Sleeping since ")
    assert [wait.signal for wait in view.waits_for] == [""]


def resume_changed(store: base.Backend, waiting_task: task.Task, changed: task.Task) -> Any:
    """Park a flow at 1000 s, and resume it at 1100 s with another definition of its task."""
    clock = manual_clock.ManualClock(1000.0)
    engine = load_at(clock, linear_flow.Flow("f").add(waiting_task), backend=store)
    engine.park_after = 1
    engine.run()
    assert engine.parked is not None
    clock.advance(100)
    detail = read_flow(store, engine.storage.flow_uuid)
    flow = linear_flow.Flow("f").add(changed)
    later = load_at(clock, flow, flow_detail=detail, backend=store)
    later.park_after = 1
    later.run()
    return later


@pytest.mark.parametrize("timeout", [None, 500])
@pytest.mark.parametrize(
    "before", [task.Sleep(50, name="nap"), task.WaitFor("go", timeout=50, name="nap")]
)
def test_resumed_wait_uses_the_time_limit_of_the_new_definition(
    before: task.Task, timeout: float | None, store: base.Backend
) -> None:
    later = resume_changed(store, before, task.WaitFor("go", timeout=timeout, name="nap"))
    assert later.parked.seconds == (None if timeout is None else 400)
    (wait,) = later.storage.flow_detail.waits_for
    end = None if timeout is None else 1500.0
    assert wait == _listing.Wait("nap", "go", 1000.0, end)


@pytest.mark.parametrize("before", [task.Sleep(500, name="nap"), task.WaitFor("go", name="nap")])
def test_resumed_wait_ends_if_the_new_sleep_is_over(before: task.Task, store: base.Backend) -> None:
    later = resume_changed(store, before, task.Sleep(60, name="nap"))
    assert later.storage.get_flow_state() == states.SUCCESS


def test_task_that_replaces_a_sleep_does_not_wait(store: base.Backend) -> None:
    later = resume_changed(store, task.Sleep(500, name="nap"), Step("nap"))
    assert later.storage.get_flow_state() == states.SUCCESS
    assert _waiting.wait_of(later.storage.record("nap")) is None


@pytest.mark.parametrize(
    "damaged",
    [7, [], {}, {"signal": "", "since": "x", "until": 1.0}, {"since": 1.0, "until": 2.0}],
    ids=["number", "list", "empty", "text", "incomplete"],
)
def test_damaged_wait_is_not_shown_and_begins_again(damaged: Any) -> None:
    record = models.TaskDetail("nap", "uuid")
    record.meta[models.WAITS_FOR] = damaged
    assert _waiting.wait_of(record) is None
    signals_and_sleeps.begin_wait(record, task.Sleep(5), 100.0)
    assert record.waits_for == _listing.Wait("nap", "", 100.0, 105.0)


@pytest.mark.parametrize(
    "seconds", [-1, float("inf"), float("nan"), pytest.param(10**400, id="10^400")]
)
def test_sleep_of_invalid_duration_is_rejected(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be 0 or more seconds"):
        task.Sleep(seconds)


@pytest.mark.parametrize("seconds", ["3", None, True])
def test_sleep_of_other_types_is_rejected(seconds: Any) -> None:
    with pytest.raises(TypeError, match="seconds must be a number of seconds"):
        task.Sleep(seconds)


def test_time_limit_over_the_range_of_floats_is_rejected() -> None:
    with pytest.raises(ValueError, match="timeout must be 0 or more seconds"):
        task.WaitFor("go", timeout=10**400)


def test_map_of_sleeps_is_rejected() -> None:
    with pytest.raises(TypeError, match="sleeping once is enough"):
        task.Map(task.Sleep(1), over="items", item="item")
