"""The simulated workers of a process, in which several engines run."""

from __future__ import annotations

from unittest import mock

import pytest

from wbengine import task
from wbengine._calls import invocation as calls
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing.fleet import Fleet, RemoteExecutor


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
