"""Simulated runs of crash tests: moments after a kill, workers, and the clock."""

from __future__ import annotations

import contextlib
import contextvars
import queue
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from wbengine import running, task
from wbengine._calls import invocation as calls
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing import clock as idle_clock
from wbengine.testing._crashing.fleet import Fleet, RemoteExecutor
from wbengine.testing._crashing.killed import Killed, LostWorker, Stuck
from wbengine.testing._crashing.moments import Moments
from wbengine.testing._crashing.outcome import Outcome
from wbengine.testing._crashing.schedules import Action, Fault, Schedule

LOSE = Fault(Action.LOSE)


@pytest.fixture
def moments() -> Moments:
    return Moments(Outcome(Schedule(), is_remote=True), 100)


def call(name: str) -> calls.Invocation:
    return calls.Invocation(task.FunctorTask(print, name=name), calls.EXECUTE, name)


def test_loss_of_a_worker_ends_its_step_only(moments: Moments) -> None:
    """The engine and the steps of other flows, which other threads run, go on."""
    lost, other = call("lost"), call("other")
    loss = moments.lose(lost, LOSE, "its effect")
    moments.check_alive()
    moments.check_alive(other)
    with pytest.raises(LostWorker) as raised:
        moments.check_alive(lost)
    assert raised.value is loss

    def go_on() -> None:
        running.CURRENT.set(lost)
        moments.check_alive()

    with pytest.raises(LostWorker):
        contextvars.copy_context().run(go_on)
    moments.replace_worker(lost)
    moments.check_alive(lost)


def test_two_workers_may_be_lost(moments: Moments) -> None:
    first, second = call("first"), call("second")
    moments.lose(first, LOSE, "its effect")
    moments.lose(second, LOSE, "its effect")
    moments.replace_worker(second)
    moments.check_alive(second)
    with pytest.raises(LostWorker):
        moments.check_alive(first)


def test_kill_ends_all(moments: Moments) -> None:
    lost = call("lost")
    moments.lose(lost, LOSE, "its effect")
    moments.kill("the engine was killed")
    for each in (None, lost, call("other")):
        with pytest.raises(Killed):
            moments.check_alive(each)
    moments.begin_process()
    moments.check_alive(lost)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(RequestOptions())


class Engine:
    """An engine that sends requests, such as that of a parent or of a child flow."""

    def __init__(self, executor: RemoteExecutor) -> None:
        self.executor = executor
        self.results: list[str] = []

    def send(self, name: str) -> None:
        step = task.FunctorTask(lambda: name, name=name)
        call = calls.Invocation(step, calls.EXECUTE, name)
        self.executor.submit(call, lambda _, outcome: self.results.append(outcome.value))


@pytest.fixture
def engines(fleet: Fleet) -> tuple[Engine, Engine]:
    hooks = mock.Mock()
    hooks.starting.return_value, hooks.ending.return_value = None, False
    parent = RemoteExecutor(hooks, fleet)
    return Engine(parent), Engine(parent.for_engine())


def test_requests_of_all_engines_run_in_one_order(
    fleet: Fleet, engines: tuple[Engine, Engine]
) -> None:
    parent, child = engines
    parent.send("first")
    child.send("second")
    parent.send("third")
    assert fleet.run_next()
    assert (parent.results, child.results) == (["first"], [])
    while fleet.run_next():
        pass
    assert (parent.results, child.results) == (["first", "third"], ["second"])


def test_engine_withdraws_finishes_and_forgets_its_own_requests_only(
    fleet: Fleet, engines: tuple[Engine, Engine]
) -> None:
    parent, child = engines
    for name in ("a", "b"):
        parent.send(f"parent {name}")
        child.send(f"child {name}")
    parent.executor.finish()
    assert (parent.results, child.results) == (["parent a", "parent b"], [])
    assert parent.executor.withdraw() == []
    parent.executor.disown()
    assert fleet.run_next()
    assert [call.task.name for call in child.executor.withdraw()] == ["child b"]
    assert child.results == ["child a"] and not fleet.run_next()


def test_end_of_the_process_ends_the_requests_of_all_engines(
    fleet: Fleet, engines: tuple[Engine, Engine]
) -> None:
    for each in engines:
        each.send("step")
    fleet.end_process()
    assert not fleet.run_next()


def _wait_forever(seconds: float | None) -> bool:
    raise Stuck


class _SlowChild(idle_clock.IdleClock):
    """Another run goes on for some rounds, and then adds an item."""

    rounds = 0

    @contextlib.contextmanager
    def stuck(self, events: queue.SimpleQueue[Any]) -> Iterator[Callable[[], bool]]:
        with super().stuck(events) as others_go_on:

            def go_on() -> bool:
                self.rounds += 1
                if self.rounds == 3:
                    events.put("end")
                return others_go_on()

            yield go_on


def test_stuck_run_waits_while_another_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_clock, "_GRACE_SECONDS", 0)
    clock = _SlowChild(0.0, _wait_forever)
    events, of_child = clock.queue(), clock.queue()
    clock.attach(events, bool)
    clock.attach(of_child, bool)

    assert events.get() == "end"
    assert clock.rounds == 3


def test_runs_that_are_all_stuck_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_clock, "_GRACE_SECONDS", 0)
    clock = idle_clock.IdleClock(0.0, _wait_forever)
    events, of_child = clock.queue(), clock.queue()
    clock.attach(events, bool)
    clock.attach(of_child, bool)

    with clock.stuck(of_child), pytest.raises(Stuck):
        events.get()
    clock.detach(of_child)
    with pytest.raises(Stuck):
        events.get()
