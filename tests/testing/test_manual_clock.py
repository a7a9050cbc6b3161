"""Waits of engines with a manual clock take no time."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wbengine import engines, exceptions, operations, retry, states, task
from wbengine._concurrency import clocks, conditions
from wbengine._runtime import run as runs
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import FaultyBackend, ManualClock

HOUR = 3600.0
DAY = 24 * HOUR

Load = Callable[..., Any]


class Step(task.Task):
    def execute(self) -> str:
        return self.name


class Late(task.Task):
    """Fails until the clock shows a time."""

    clock: ManualClock
    until: float

    def execute(self) -> None:
        if self.clock.time() < self.until:
            raise ValueError("too early")


@pytest.fixture(params=["serial", "parallel", "worker-based"])
def load(request: pytest.FixtureRequest, wbe_clock: ManualClock) -> Load:
    """Return a function that loads a flow into an engine of this kind, with the clock."""
    if request.param != "worker-based":
        return lambda flow, **options: engines.load(
            flow, engine=request.param, clock=wbe_clock, **options
        )
    request.getfixturevalue("wbe_worker")(Step)
    make = request.getfixturevalue("wbe_engine")
    return lambda flow, **options: make(flow, clock=wbe_clock, **options)


@pytest.fixture(autouse=True)
def real_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Check that engines with the clock wait for no real time."""
    waits: list[str] = []
    waiting = threading.local()
    wait_of_run = runs.Run._wait

    def wait(*args: Any) -> str:
        waiting.now = True
        try:
            return wait_of_run(*args)
        finally:
            waiting.now = False

    def count(owner: Any, name: str, timeout_of: Callable[..., float | None]) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            timeout = timeout_of(*args, **kwargs)
            if getattr(waiting, "now", False) and timeout is not None:
                waits.append(f"{name} {timeout:g}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    monkeypatch.setattr(runs.Run, "_wait", wait)
    count(time, "sleep", lambda timeout: timeout)
    count(conditions.Condition, "wait", lambda _, timeout=None: timeout)
    count(conditions.Condition, "wait_for", lambda _, predicate, timeout=None: timeout)
    monkeypatch.setattr(clocks.StoreClock, "queue", lambda _: pytest.fail("a real queue"))
    yield waits
    assert waits == []


def test_sleep_task_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(linear_flow.Flow("f").add(task.Sleep(30 * DAY), Step("a", provides="a")))
    engine.run()
    assert wbe_clock.time() - began == 30 * DAY
    record = engine.storage.get_attempt("a")
    assert record.submitted == wbe_clock.time()


@task.workflow(provides="times")
def two_sleeps(steps: Steps) -> list[float]:
    times = [steps.now().timestamp()]
    for seconds in (30 * DAY, HOUR):
        steps.sleep(seconds)
        times.append(steps.now().timestamp())
    return times


def test_sleep_of_workflow_and_its_now_follow_the_clock(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(two_sleeps)
    engine.run()
    times = engine.storage.fetch("times")
    assert [each - began for each in times] == [0.0, 30 * DAY, 30 * DAY + HOUR]


@task.workflow(provides="first")
async def sleeps_at_once(steps: AsyncSteps) -> list[str]:
    ended: list[str] = []

    async def sleep(name: str, seconds: float) -> None:
        await steps.sleep(seconds)
        ended.append(name)

    await asyncio.gather(sleep("long", DAY), sleep("short", HOUR), sleep("longer", 2 * DAY))
    return ended


def test_concurrent_sleeps_of_async_workflow_end_in_order(
    load: Load, wbe_clock: ManualClock
) -> None:
    began = wbe_clock.time()
    engine = load(sleeps_at_once)
    engine.run()
    assert engine.storage.fetch("first") == ["short", "long", "longer"]
    assert wbe_clock.time() - began == 2 * DAY


def test_timeout_of_wait_for_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(linear_flow.Flow("f").add(task.WaitFor("paid", timeout=3 * DAY)))
    with pytest.raises(exceptions.SignalTimeout):
        engine.run()
    assert wbe_clock.time() - began == 3 * DAY


@task.workflow(provides="answer")
def asks(steps: Steps) -> str:
    answer: str = steps.wait_for("answer", timeout=3 * DAY, default="none")
    return answer


def test_timeout_of_wait_in_workflow_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(asks)
    engine.run()
    assert engine.storage.fetch("answer") == "none"
    assert wbe_clock.time() - began == 3 * DAY


def test_signal_before_the_timeout_is_received(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(asks)
    engine.signal("answer", "yes")
    engine.run()
    assert engine.storage.fetch("answer") == "yes"
    assert wbe_clock.time() == began


def test_wait_of_retry_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    flow = linear_flow.Flow("f", retry=retry.Times(5, "r", backoff=HOUR))
    late = Late("a")
    late.clock, late.until, late.local = wbe_clock, wbe_clock.time() + 2 * HOUR, True
    load(flow.add(late)).run()
    assert wbe_clock.time() == late.until


def test_retries_of_task_take_no_time(load: Load, wbe_clock: ManualClock) -> None:
    late = Late("a")
    late.retries, late.backoff = 5, HOUR
    late.clock, late.until, late.local = wbe_clock, wbe_clock.time() + 2 * HOUR, True
    load(linear_flow.Flow("f").add(late)).run()
    assert wbe_clock.time() == late.until


@pytest.mark.parametrize("is_absolute", [False, True])
def test_delayed_start_takes_no_time(
    load: Load, wbe_clock: ManualClock, *, is_absolute: bool
) -> None:
    began = wbe_clock.time()
    step = Step("a", provides="a")
    step.eta = dt.datetime.fromtimestamp(began + DAY, dt.UTC) if is_absolute else DAY
    engine = load(linear_flow.Flow("f").add(step))
    engine.run()
    assert wbe_clock.time() - began == DAY
    assert engine.storage.fetch("a") == "a"


@pytest.mark.parametrize(("eta", "expires"), [(DAY, HOUR), (None, 0)])
def test_task_expires_on_the_clock(
    load: Load, wbe_clock: ManualClock, eta: float | None, expires: float
) -> None:
    began = wbe_clock.time()
    step = Step("a")
    step.eta, step.expires = eta, expires
    with pytest.raises(exceptions.Expired):
        load(linear_flow.Flow("f").add(step)).run()
    assert wbe_clock.time() - began == expires


def test_task_does_not_expire_before_its_time_on_the_clock(
    load: Load, wbe_clock: ManualClock
) -> None:
    step = Step("a", provides="a")
    step.eta, step.expires = DAY, 2 * DAY
    engine = load(linear_flow.Flow("f").add(step))
    engine.run()
    assert engine.storage.fetch("a") == "a"


def test_pause_of_task_type_ends_on_the_clock(load: Load, wbe_clock: ManualClock) -> None:
    wbe_clock.advance(time.time() - wbe_clock.time())  # Operations have the real time.
    began = wbe_clock.time()
    with backends.backend("memory") as store:
        operations.pause_tasks(store, f"{__name__}.Step", seconds=HOUR)
        engine = load(linear_flow.Flow("f").add(Step("a")), backend=store)
        engine.run()
    assert wbe_clock.time() - began == pytest.approx(HOUR, abs=60)


def test_deadline_passes_on_the_clock(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engine = load(linear_flow.Flow("f").add(task.WaitFor("paid")))
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=HOUR)
    assert wbe_clock.time() - began == HOUR
    assert engine.storage.get_flow_state() == states.REVERTED


def test_stored_flow_sleeps_longer_than_its_lease(load: Load, wbe_clock: ManualClock) -> None:
    with FaultyBackend() as store:
        engine = load(two_sleeps, backend=store)
        engine.run()
        assert engine.storage.get_flow_state() == states.SUCCESS
        history = engine.storage.flow_detail.history
    assert history[-1].at - history[0].at == 30 * DAY + HOUR


class Answers(task.Task):
    """Sends a signal to its flow after real work."""

    local = True
    engine: Any
    is_started: threading.Event

    def execute(self) -> None:
        assert self.is_started.wait(10)
        self.engine.signal("answer", "yes")


@pytest.mark.parametrize("kind", ["parallel", "worker-based"])
def test_clock_stands_still_while_a_task_runs(
    kind: str, wbe_engine: Any, wbe_clock: ManualClock
) -> None:
    began = wbe_clock.time()
    answers = Answers("answers")
    flow = unordered_flow.Flow("f").add(task.WaitFor("answer", timeout=HOUR, provides="a"), answers)
    engine = wbe_engine(flow, engine=kind, clock=wbe_clock)
    answers.engine, answers.is_started = engine, threading.Event()
    timer = threading.Timer(0.05, answers.is_started.set)
    timer.start()
    engine.run()
    timer.join()
    assert engine.storage.fetch("a") == "yes"
    assert wbe_clock.time() == began


class Advances(task.Task):
    cancel_on_revert = True
    clock: ManualClock

    def execute(self) -> None:
        self.clock.advance(2 * HOUR)
        while not self.cancelled:
            time.sleep(0.001)


def test_task_that_advances_the_clock_exceeds_the_deadline(wbe_clock: ManualClock) -> None:
    advances = Advances("a")
    advances.clock = wbe_clock
    engine = engines.load(advances, engine="parallel", clock=wbe_clock)
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=HOUR)


def test_engines_with_one_clock_wait_for_each_other(wbe_clock: ManualClock) -> None:
    began, both = wbe_clock.time(), threading.Barrier(2)

    class Meets(task.Task):
        def execute(self) -> float:
            both.wait(10)
            return wbe_clock.time() - began

    class Shows(task.Task):
        def execute(self) -> float:
            return wbe_clock.time() - began

    def flow(seconds: float) -> Any:
        return linear_flow.Flow("f").add(
            Meets("meet"), task.Sleep(seconds), Shows("end", provides="end")
        )

    loaded = [engines.load(flow(seconds), clock=wbe_clock) for seconds in (DAY, HOUR, 3 * HOUR)]
    other = threading.Thread(target=loaded[1].run)
    other.start()
    loaded[0].run()
    other.join()
    assert [engine.storage.fetch("end") for engine in loaded[:2]] == [DAY, HOUR]


def test_run_in_an_event_loop_follows_the_clock(wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()

    async def run() -> dict[str, Any]:
        return await engines.arun(two_sleeps, clock=wbe_clock)

    assert asyncio.run(run())["times"][-1] - began == 30 * DAY + HOUR


def test_run_and_loading_from_records_accept_the_clock(wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    engines.run(two_sleeps, clock=wbe_clock)
    engine = engines.load_from_factory(make_sleep, clock=wbe_clock)
    engine.run()
    detail = engine.storage.flow_detail
    engine = engines.load_from_detail(detail, clock=wbe_clock, engine="parallel")
    engine.compile()
    engine.prepare()
    engine.reset()
    engine.run()
    assert wbe_clock.time() - began == 30 * DAY + 3 * HOUR


def make_sleep() -> Any:
    return linear_flow.Flow("f").add(task.Sleep(HOUR))


@pytest.mark.parametrize("value", ["manual", 5, ManualClock])
def test_other_values_than_clocks_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"clock must be a testing\.ManualClock or None, got"):
        engines.load(make_sleep(), clock=value)


def test_wait_for_the_lease_of_another_engine_does_not_advance_the_clock(
    wbe_clock: ManualClock,
) -> None:
    """The lease belongs to an engine with the real time."""
    began, is_running, may_end = wbe_clock.time(), threading.Event(), threading.Event()

    class Holds(task.Task):
        def execute(self) -> None:
            is_running.set()
            may_end.wait(10)

    def flow() -> Any:
        return linear_flow.Flow("f").add(Holds("a"))

    with backends.backend("memory") as store:
        first = engines.load(flow(), backend=store, clock=ManualClock())
        other = threading.Thread(target=first.run)
        other.start()
        assert is_running.wait(10)
        second = engines.load(
            flow(), None, first.storage.flow_detail, backend=store, clock=wbe_clock, on_busy="wait"
        )
        with pytest.raises(exceptions.DeadlineExceeded):
            second.run(deadline=0.05)
        may_end.set()
        other.join()
        second.run(deadline=HOUR)
    assert wbe_clock.time() == began


def test_clock_does_not_advance_without_end() -> None:
    clock = ManualClock(5)
    waiting = clock.queue()
    thread = threading.Thread(target=waiting.get, args=(True, None))
    thread.start()
    with pytest.raises(ValueError, match="nan"):
        clock.advance(math.nan)
    waiting.put(None)
    thread.join()
    assert clock.time() == 5


# Limits. -----------------------------------------------------------------------------------------


@task.task(rate_limit="1/h", provides="sent")
def send() -> None:
    return None


def test_rate_of_tasks_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    flow = unordered_flow.Flow("f")
    for number in range(4):
        step = send(name=f"send-{number}", provides=None)
        step.local = True
        flow.add(step)
    load(flow).run()
    assert wbe_clock.time() - began == pytest.approx(3 * HOUR, abs=1)


def test_rate_applies_to_all_engines_with_the_clock(wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    for number in range(3):
        with backends.backend("memory") as store:
            engines.run(send(), backend=store, clock=wbe_clock)
        assert wbe_clock.time() - began == pytest.approx(number * HOUR, abs=1)


def test_rate_of_steps_takes_no_time(load: Load, wbe_clock: ManualClock) -> None:
    began = wbe_clock.time()
    load(sends_two).run()
    assert wbe_clock.time() - began == pytest.approx(HOUR, abs=1)


@task.task(rate_limit="1/h", local=True)
def send_here() -> None:
    return None


@task.workflow
def sends_two(steps: Steps) -> None:
    steps.run(send_here)
    steps.run(send_here)


def test_flow_keeps_its_permit_during_a_long_sleep(wbe_clock: ManualClock) -> None:
    ended: list[str] = []

    class Ends(task.Task):
        def execute(self) -> None:
            ended.append(self.name)

    class Starts(task.Task):
        def execute(self) -> None:
            other.start()
            while later.storage.get_flow_state() != states.RUNNING:
                time.sleep(0.001)

    def flow(name: str, *tasks: task.Task) -> Any:
        flow = linear_flow.Flow(name).add(*tasks, Ends(name))
        flow.concurrency, flow.limit = 1, "one"
        return flow

    began = wbe_clock.time()
    later = engines.load(flow("b", task.Sleep(HOUR)), clock=wbe_clock)
    other = threading.Thread(target=later.run)
    sleeps = [task.Sleep(DAY), Starts("start"), task.Sleep(30 * DAY)]
    engines.load(flow("a", *sleeps), clock=wbe_clock).run()
    other.join()
    assert ended == ["a", "b"]
    assert wbe_clock.time() - began == 31 * DAY + HOUR
