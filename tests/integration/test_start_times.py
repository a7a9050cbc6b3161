"""`eta` and `expires` of tasks on all kinds of engines."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.seams.scheduling import load_at
from tests.support.held_tasks import HeldTasks
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import clocks
from wbengine.patterns import linear_flow, unordered_flow

KINDS = ["serial", "threads", "one thread", "processes", "memory", "local_tasks"]


class Tells(task.Task):
    """Task that returns the time of its execution in Unix seconds."""

    def execute(self) -> float:
        return time.time()


class Later(Tells):
    eta = 0.3


class MuchLater(Tells):
    eta = 600


class OutOfUse(Tells):
    expires = 0


class TooLate(Tells):
    eta, expires = 600, 0.2


class Odd(Tells):
    eta = "soon"  # type: ignore[assignment]


class Naive(Tells):
    expires = dt.datetime(2000, 1, 1)


class Takes(task.Task):
    priority = 1

    def execute(self) -> float:
        time.sleep(0.4)
        return time.time()


class Impatient(Tells):
    expires = 0.2


class Item(task.Task):
    eta = 0.3

    def execute(self, item: int) -> float:
        return time.time()


class Spoils(task.Task):
    def execute(self) -> None:
        raise LookupError("spoilt")


class Quits(MuchLater):
    cancel_on_revert = True


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of `engines.load` for each kind of engine."""
    kind = {"one thread": "threads", "local_tasks": "memory"}.get(request.param, request.param)
    slots = 3 if request.param == "threads" else 1
    with engine_options(kind, tmp_path, sys.modules[__name__], slots=slots) as found:
        yield {**found, "local_tasks": ["t"]} if request.param == "local_tasks" else found


def test_task_is_not_started_before_its_eta(options: dict[str, Any]) -> None:
    flow = unordered_flow.Flow("f").add(Later("t", provides="later"), Tells("o", provides="now"))
    began = time.time()
    found = engines.run(flow, **options)
    assert found["later"] >= began + 0.3
    assert found["now"] < found["later"]


def test_eta_can_be_a_datetime(options: dict[str, Any]) -> None:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.3)
    tells = Tells("t", provides="now")
    tells.eta = moment
    assert engines.run(linear_flow.Flow("f").add(tells), **options)["now"] >= moment.timestamp()


@pytest.mark.parametrize("late", [OutOfUse, TooLate])
def test_task_that_expired_before_start_fails(
    options: dict[str, Any], late: type[task.Task]
) -> None:
    began = time.monotonic()
    with pytest.raises(exceptions.Expired, match="'t' expired before it started"):
        engines.run(linear_flow.Flow("f").add(late("t")), **options)
    assert time.monotonic() < began + 60


@pytest.mark.parametrize("options", ["serial", "one thread", "processes", "memory"], indirect=True)
def test_task_expires_while_another_occupies_the_slot(options: dict[str, Any]) -> None:
    flow = unordered_flow.Flow("f").add(Takes("first"), Impatient("t"))
    with pytest.raises(exceptions.Expired, match="'t' "):
        engines.run(flow, **options)


@pytest.mark.parametrize(("odd", "error"), [(Odd, TypeError), (Naive, ValueError)])
def test_invalid_eta_or_expires_fails_its_task(
    options: dict[str, Any], odd: type[task.Task], error: type[Exception]
) -> None:
    with pytest.raises(error, match="of task 't' must be"):
        engines.run(linear_flow.Flow("f").add(odd("t")), **options)


def test_items_of_a_map_have_an_eta(options: dict[str, Any]) -> None:
    began = time.time()
    mapped = task.Map(Item("t"), over="items", provides="times")
    found = engines.run(linear_flow.Flow("f").add(mapped), store={"items": [1, 2]}, **options)
    assert min(found["times"]) >= began + 0.3


@pytest.mark.parametrize("how", ["suspend", "cancel", "deadline"])
def test_task_waiting_for_eta_is_withdrawn_when_run_ends(options: dict[str, Any], how: str) -> None:
    engine = engines.load(linear_flow.Flow("f").add(MuchLater("t")), **options)
    steer = {"suspend": engine.suspend, "cancel": engine.cancel, "deadline": bool}[how]
    threading.Timer(0.3, steer).start()
    if how == "suspend":
        engine.run()
        assert engine.storage.get_flow_state() == states.SUSPENDED
        assert engine.storage.get_atom_state("t") == states.PENDING
        return
    error = exceptions.Cancelled if how == "cancel" else exceptions.DeadlineExceeded
    with pytest.raises(error):
        engine.run(deadline=0.3 if how == "deadline" else None)
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_execute_failures().keys() <= {"t"}


def test_task_waiting_for_eta_ends_early_with_cancel_on_revert(options: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(LookupError, match="spoilt"):
        engines.run(unordered_flow.Flow("f").add(Quits("t"), Spoils("s")), **options)
    assert time.monotonic() < began + 60


# -- several delayed tasks, with a manual clock


class Starts(task.Task):
    """Task that records the time of each execution."""

    def __init__(self, name: str, clock: clocks.Clock, eta: float | None = None) -> None:
        super().__init__(name)
        self.clock, self.eta = clock, eta
        self.times: list[float] = []

    def execute(self) -> None:
        self.times.append(self.clock.monotonic())


class FailsOnce(Starts):
    """Task that takes 20 seconds and fails in its first execution."""

    def execute(self) -> None:
        super().execute()
        if len(self.times) == 1:
            assert isinstance(self.clock, clocks.ManualClock)
            self.clock.advance(20)
            raise LookupError("once")


def run_at(clock: clocks.Clock, flow: Any, **options: Any) -> None:
    """Run the flow. A task that is never released ends the run at its deadline."""
    load_at(clock, flow, **options).run(deadline=10_000)


def test_delayed_tasks_start_at_their_own_eta() -> None:
    clock = clocks.ManualClock()
    etas = [100, 10, 50, 10]
    tasks = [Starts(f"t{number}", clock, eta) for number, eta in enumerate(etas)]
    run_at(clock, unordered_flow.Flow("f").add(*tasks))
    assert [each.times for each in tasks] == [[100], [10], [50], [10]]


def test_retried_task_does_not_start_at_eta_of_earlier_attempt() -> None:
    """The executor does not check whether a call was cancelled."""
    clock = clocks.ManualClock()
    delayed = Starts("delayed", clock, eta=50)
    delayed.cancel_on_revert = True
    tried = unordered_flow.Flow("tried", retry.Times(2)).add(delayed, FailsOnce("fails", clock))
    run_at(clock, tried, engine="parallel", executor=HeldTasks())
    assert delayed.times == [70]


def test_failure_in_one_flow_does_not_end_delayed_task_of_another() -> None:
    clock = clocks.ManualClock()
    delayed, other = Starts("delayed", clock, eta=50), Starts("other", clock, eta=60)
    delayed.cancel_on_revert = other.cancel_on_revert = True
    tried = unordered_flow.Flow("tried", retry.Times(2)).add(delayed, FailsOnce("fails", clock))
    run_at(clock, unordered_flow.Flow("f").add(tried, other))
    assert (delayed.times, other.times) == ([70], [60])


def test_task_suspended_before_its_eta_starts_once_when_resumed() -> None:
    clock = clocks.ManualClock()
    delayed = Starts("delayed", clock, eta=50)
    engine = load_at(clock, linear_flow.Flow("f").add(delayed))
    for state in engine.run_iter(timeout=30):
        if state == states.WAITING and clock.monotonic() == 30:
            engine.suspend()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run(deadline=10_000)
    assert delayed.times == [80]


def test_reversion_waits_for_delayed_task_without_cancel_on_revert() -> None:
    clock = clocks.ManualClock()
    delayed = Starts("delayed", clock, eta=50)
    flow = unordered_flow.Flow("f").add(delayed, Spoils("spoils"))
    with pytest.raises(LookupError, match="spoilt"):
        run_at(clock, flow)
    assert delayed.times == [50]
