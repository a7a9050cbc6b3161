"""`run_submitted`: submitted flows in the thread of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules._service import ScheduleService
from wbengine.steps import Steps
from wbengine.testing import ManualClock, run_submitted

MODULE = "tests.testing.test_submitted"


@task.task(provides="thread")
def note(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return threading.get_ident()


@task.task(provides="thread")
def submit_another(url: str, number: int) -> None:
    engines.submit(f"{MODULE}:one", backend=url, inputs={"number": number}, queue="others")


def one() -> linear_flow.Flow:
    return linear_flow.Flow("one").add(note("note"))


def two() -> linear_flow.Flow:
    return linear_flow.Flow("two").add(submit_another("submit"))


def waiting() -> linear_flow.Flow:
    return linear_flow.Flow("waiting").add(task.WaitFor("paid", provides="paid"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def store(url: str) -> Iterator[base.Backend]:
    with backends.backend(url) as opened:
        yield opened


def test_flows_run_in_this_thread_in_the_order_of_their_submission(store: base.Backend) -> None:
    submitted = engines.submit_many(
        f"{MODULE}:one", [{"number": n} for n in (1, -1)], backend=store
    )
    run = run_submitted(store)
    assert [handle.id for handle in run] == [handle.id for handle in submitted]
    assert [handle.state for handle in run] == ["SUCCESS", "REVERTED"]
    assert run[0].result()["thread"] == threading.get_ident()
    with pytest.raises(ValueError, match="negative"):
        run[1].result()
    assert run_submitted(store) == []


def test_flows_that_a_flow_submits_run_too(url: str, store: base.Backend) -> None:
    engines.submit(f"{MODULE}:two", backend=store, inputs={"url": url, "number": 3})
    first, second = run_submitted(url)
    assert first.result()["number"] == second.result()["number"] == 3


def test_flows_that_are_not_due_remain(store: base.Backend) -> None:
    later = engines.submit(f"{MODULE}:one", backend=store, inputs={"number": 1}, eta=3600)
    paid = engines.submit(f"{MODULE}:waiting", backend=store)
    assert [handle.state for handle in run_submitted(store)] == ["WAITING"]
    paid.signal("paid", 5)
    assert [handle.id for handle in run_submitted(store)] == [paid.id]
    assert paid.result() == {"paid": 5} and later.state == "PENDING"


# With a manual clock. -----------------------------------------------------------------------------

DAY = 86400


@task.workflow(provides="times")
def reminds(steps: Steps) -> list[float]:
    times = [steps.now().timestamp()]
    steps.sleep(30 * DAY)
    times.append(steps.now().timestamp())
    steps.wait_for("paid", timeout=DAY, default=None)
    return [*times, steps.now().timestamp()]


def test_parked_flow_continues_when_the_clock_shows_its_time(
    store: base.Backend, wbe_clock: ManualClock
) -> None:
    began = wbe_clock.time()
    flow = engines.submit(f"{MODULE}:reminds", backend=store)
    assert [handle.state for handle in run_submitted(store, clock=wbe_clock)] == ["WAITING"]
    assert wbe_clock.time() == began
    wbe_clock.advance(30 * DAY - 1)
    run_submitted(store, clock=wbe_clock)
    assert flow.state == "WAITING" and wbe_clock.time() - began == 30 * DAY
    assert run_submitted(store, clock=wbe_clock) == []
    wbe_clock.advance(DAY)
    assert [handle.state for handle in run_submitted(store, clock=wbe_clock)] == ["SUCCESS"]
    times = flow.result()["times"]
    assert [at - began for at in times] == [0, 30 * DAY, 31 * DAY]


def test_parked_flow_does_not_continue_earlier(store: base.Backend, wbe_clock: ManualClock) -> None:
    flow = engines.submit(f"{MODULE}:reminds", backend=store)
    run_submitted(store, clock=wbe_clock)
    wbe_clock.advance(DAY - 60)
    assert run_submitted(store, clock=wbe_clock) == []
    wbe_clock.advance(28 * DAY)
    now = wbe_clock.time()
    run_submitted(store, clock=wbe_clock)  # A flow is parked for a day at most, again and again.
    assert flow.state == "WAITING" and wbe_clock.time() == now


def test_signal_continues_a_parked_flow_before_its_timeout(
    store: base.Backend, wbe_clock: ManualClock
) -> None:
    began = wbe_clock.time()
    flow = engines.submit(f"{MODULE}:reminds", backend=store)
    run_submitted(store, clock=wbe_clock)
    wbe_clock.advance(30 * DAY)
    run_submitted(store, clock=wbe_clock)
    wbe_clock.advance(3600)
    flow.signal("paid", 5)
    run_submitted(store, clock=wbe_clock)
    assert flow.result()["times"][-1] - began == 30 * DAY + 3600


def test_delayed_flow_starts_when_the_clock_shows_its_time(
    store: base.Backend, wbe_clock: ManualClock
) -> None:
    later = engines.submit(f"{MODULE}:one", backend=store, inputs={"number": 1}, eta=3600)
    wbe_clock.advance(3500)
    assert run_submitted(store, clock=wbe_clock) == []
    wbe_clock.advance(100)
    assert [handle.id for handle in run_submitted(store, clock=wbe_clock)] == [later.id]
    assert later.state == "SUCCESS"


def test_schedule_fires_when_the_clock_shows_its_time(
    store: base.Backend, wbe_clock: ManualClock
) -> None:
    schedules = Schedules(store, clock=wbe_clock.time)
    schedules.add(
        Schedule(
            name="daily",
            factory=f"{MODULE}:one",
            cron="0 2 * * *",
            catch_up="all",
            inputs={"number": 1},
        )
    )
    assert run_submitted(store, clock=wbe_clock) == []
    wbe_clock.advance(3 * DAY)
    fired = run_submitted(store, clock=wbe_clock)
    assert [handle.state for handle in fired] == ["SUCCESS"] * 3
    ticks = [handle.result()["scheduled_at"] for handle in fired]
    assert ticks == [f"1970-01-{day}T02:00:00Z" for day in (13, 14, 15)]
    assert run_submitted(store, clock=wbe_clock) == []


def slowly_made() -> linear_flow.Flow:
    time.sleep(0.3)
    return one()


def test_flow_of_a_slow_factory_runs_in_the_same_call(
    store: base.Backend, wbe_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduleService, "SLOW_SECONDS", 0.05)
    schedule = Schedule(name="s", factory=f"{MODULE}:slowly_made", every=3600, inputs={"number": 1})
    Schedules(store, clock=wbe_clock.time).add(schedule)
    wbe_clock.advance(3600)
    assert [handle.state for handle in run_submitted(store, clock=wbe_clock)] == ["SUCCESS"]


def test_store_without_jobs_is_refused() -> None:
    with pytest.raises(ValueError, match="backend must be a database"):
        run_submitted("memory")
