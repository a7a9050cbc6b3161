"""Moments of a simulated run: what goes on after a worker or the engine was killed."""

from __future__ import annotations

import contextvars

import pytest

from wbengine import running, task
from wbengine._calls import invocation as calls
from wbengine.testing._crashing.killed import Killed, LostWorker
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
