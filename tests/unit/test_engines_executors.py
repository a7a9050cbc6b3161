"""The contract of `TaskExecutor`, kept by every executor of this host."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from wbengine import exceptions, invocation, task
from wbengine._core import executors
from wbengine.types import failure as ft


class Echo(task.Task):
    def execute(self, value: Any = None) -> Any:
        self.update_progress(0.5)
        return value

    def revert(self, result: Any, flow_failures: Any) -> Any:
        return result, sorted(flow_failures)


class Raises(task.Task):
    def execute(self) -> None:
        raise LookupError("gone")


class Exits(task.Task):
    def execute(self) -> None:
        raise SystemExit(2)


class Odd(task.Task):
    def execute(self) -> Any:
        return lambda: None


def local_processes() -> invocation.TaskExecutor:
    return executors.ProcessTaskExecutor(1)


@pytest.fixture(scope="module")
def process_pool() -> Iterator[futures.ProcessPoolExecutor]:
    with futures.ProcessPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(params=["serial", "threads", "processes", "given processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[invocation.TaskExecutor]:
    made: invocation.TaskExecutor
    if request.param == "serial":
        made = executors.SerialTaskExecutor()
    elif request.param == "threads":
        made = executors.ThreadTaskExecutor(max_workers=2)
    elif request.param == "processes":
        made = executors.ProcessTaskExecutor(1)
    else:
        made = executors.FutureProcessTaskExecutor(request.getfixturevalue("process_pool"))
    made.start()
    yield made
    made.stop()
    made.stop()


class Ends(queue.SimpleQueue[Any]):
    """Collects what `done` is called with."""

    def __call__(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        self.put((call, outcome))


def call(made: task.Task, action: Any = "execute", **options: Any) -> invocation.Invocation:
    return invocation.Invocation(made, action, "uuid", **options)


def one(executor: invocation.TaskExecutor, wanted: invocation.Invocation) -> invocation.Outcome:
    ends = Ends()
    executor.submit(wanted, ends)
    found, outcome = ends.get(timeout=30)
    assert found is wanted
    assert ends.empty()
    assert isinstance(outcome, invocation.Outcome)
    return outcome


def test_execute_and_revert(executor: invocation.TaskExecutor) -> None:
    """The value, who made it, and when."""
    outcome = one(executor, call(Echo("e"), arguments={"value": [1]}))
    assert (outcome.value, outcome.worker) == ([1], "local")
    assert outcome.started is not None and outcome.ended is not None
    assert outcome.started <= outcome.ended
    failures = {"x": ft.Failure.from_exception(ValueError("v"))}
    outcome = one(executor, call(Echo("e"), "revert", result=5, failures=failures))
    assert outcome.value == (5, ["x"])


@pytest.mark.parametrize(("made", "name"), [(Raises, "LookupError"), (Exits, "SystemExit")])
def test_what_a_task_raises_is_its_outcome(
    executor: invocation.TaskExecutor, made: type[task.Task], name: str
) -> None:
    """`SystemExit` too; the executor goes on."""
    assert one(executor, call(made("r"))).value.check(name)
    assert one(executor, call(Echo("e"))).value is None


def test_every_call_ends_once(executor: invocation.TaskExecutor) -> None:
    """Many at a time."""
    ends = Ends()
    executor.submit_many((call(Echo("e"), arguments={"value": n}) for n in range(30)), ends)
    found = sorted(ends.get(timeout=30)[1].value for _ in range(30))
    assert found == list(range(30))
    assert ends.empty()
    assert not getattr(executor, "_pending", None)


def test_futures_of_execute_and_revert(executor: invocation.TaskExecutor) -> None:
    """They hold what happened and the value."""
    future = executor.execute_task(Echo("e"), "uuid", {"value": 1})
    assert future.result(30) == (invocation.EXECUTED, 1)
    future = executor.revert_task(Echo("e"), "uuid", {}, 2, {})
    assert future.result(30) == (invocation.REVERTED, (2, []))


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_what_is_withdrawn_never_ends(kind: str) -> None:
    """What runs ends as usual; the rest comes back, in order."""
    running, leave = threading.Event(), threading.Event()

    class Waits(task.Task):
        def execute(self) -> None:
            running.set()
            leave.wait()

    made: Any = executors.ThreadTaskExecutor(max_workers=1)
    first: task.Task = Waits("w")
    if kind == "processes":
        made, first = local_processes(), Echo("w")
        first.notifier.register("update_progress", lambda *_, **__: None)
    made.start()
    ends = Ends()

    def told(event_type: str, details: Any) -> None:
        # Processes: the slot's thread is held here, while its call counts as running.
        running.set()
        leave.wait()

    made.submit(call(first, events=told if kind == "processes" else None), ends)
    running.wait()
    rest = [call(Echo(f"e{n}")) for n in range(3)]
    made.submit_many(rest, ends)
    assert made.withdraw() == rest
    assert made.withdraw() == []
    leave.set()
    assert ends.get(timeout=30)[0].task is first
    made.stop()
    assert ends.empty()


def test_a_pool_that_drops_a_call_fails_it() -> None:
    """Somebody else may shut down a given pool."""
    running, leave = threading.Event(), threading.Event()
    pool = futures.ThreadPoolExecutor(1)
    pool.submit(running.set)
    pool.submit(leave.wait)
    running.wait()
    made = executors.ThreadTaskExecutor(pool)
    ends = Ends()
    made.submit(call(Echo("e")), ends)
    pool.shutdown(wait=False, cancel_futures=True)
    leave.set()
    failure = ends.get(timeout=30)[1].value
    assert isinstance(failure.exception, exceptions.ExecutionFailure)
    assert "'e'" in failure.exception_str
    made.submit(call(Echo("late")), ends)
    assert ends.get(timeout=30)[1].value.check(RuntimeError)


@pytest.mark.parametrize(
    "make", [lambda: executors.ThreadTaskExecutor(max_workers=1), local_processes]
)
def test_submitting_before_start_is_an_outcome(make: Any) -> None:
    """`submit` never raises."""
    assert one(make(), call(Echo("e"))).value.check(RuntimeError)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "wanted", [call(Odd("odd")), call(Echo("odd"), arguments={"value": lambda: None})]
)
def test_what_cannot_be_pickled_is_named(
    given: bool, wanted: invocation.Invocation, process_pool: futures.ProcessPoolExecutor
) -> None:
    """Result or argument: the failure names the task, and the pool goes on."""
    made: Any = executors.FutureProcessTaskExecutor(process_pool) if given else local_processes()
    made.start()
    failure = one(made, wanted).value
    assert isinstance(failure, ft.Failure)
    assert failure.check(exceptions.NotEncodable)
    assert "'odd'" in failure.exception_str
    assert one(made, call(Echo("e"), arguments={"value": 1})).value == 1
    made.stop()
