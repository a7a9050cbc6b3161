"""The contract of `TaskExecutor`, kept by every executor of this host."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from tests.support.workers import interrupted
from tests.unit.executor_tasks import (
    Echo,
    Fetch,
    Gives,
    GivesLater,
    Hides,
    Odd,
    Raises,
    coroutine_of,
    gift,
)
from wbengine import _codec, exceptions, invocation, task
from wbengine.runtime import executors
from wbengine.types import failure as ft

WAIT = 60.0


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
    found, outcome = ends.get(timeout=WAIT)
    assert found is wanted
    assert ends.empty()
    assert isinstance(outcome, invocation.Outcome)
    return outcome


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
    assert ends.get(timeout=WAIT)[0].task is first
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
    failure = ends.get(timeout=WAIT)[1].value
    assert isinstance(failure.exception, exceptions.ExecutionFailure)
    assert "'e'" in failure.exception_str
    made.submit(call(Echo("late")), ends)
    assert ends.get(timeout=WAIT)[1].value.check(RuntimeError)


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


# -- async bodies --------------------------------------------------------------------------------


def test_a_plain_body_that_returns_a_coroutine(executor: invocation.TaskExecutor) -> None:
    """Better late than never awaited."""
    assert one(executor, call(Hides("h"))).value == 5
    assert one(executor, call(Hides("h"), "revert", result=6)).value == 6
    made = task.FunctorTask(functools.partial(coroutine_of), name="p")
    assert one(executor, call(made, arguments={"value": 1})).value == 1


def test_withdraw_takes_coroutines_that_have_not_begun() -> None:
    made = executors.ThreadTaskExecutor(max_workers=1)
    made.start()
    begun, leave, ends = threading.Event(), threading.Event(), Ends()

    async def holds() -> None:
        begun.set()
        leave.wait()

    first = call(task.FunctorTask(holds, name="h"))
    made.submit(first, ends)
    begun.wait()
    rest = [call(Fetch(f"f{n}")) for n in range(3)]
    made.submit_many(rest, ends)
    assert made.withdraw() == rest
    assert made.withdraw() == []
    leave.set()
    assert ends.get(timeout=WAIT)[0] is first
    made.stop()
    assert ends.empty()


def test_withdrawing_while_calls_end_loses_none() -> None:
    """Each call is either handed back, or ends once, however the two fall together."""
    made = executors.ThreadTaskExecutor(max_workers=2)
    made.start()
    ends, taken = Ends(), []
    wanted = [call(Echo(f"e{n}")) for n in range(3000)]
    over = threading.Event()

    def withdraws() -> None:
        while not over.is_set():
            taken.extend(made.withdraw())

    thread = threading.Thread(target=withdraws)
    thread.start()
    made.submit_many(wanted, ends)
    over.set()
    thread.join()
    made.stop()
    ended = [ends.get_nowait()[0] for _ in range(ends.qsize())]
    assert len(ended) + len(taken) == len(wanted)
    assert set(ended) | set(taken) == set(wanted)
    assert made.withdraw() == []


# -- strict --------------------------------------------------------------------------------------


@pytest.fixture(params=["serial", "threads", "processes", "given processes"])
def strict(request: pytest.FixtureRequest) -> Iterator[invocation.TaskExecutor]:
    made: invocation.TaskExecutor
    if request.param == "serial":
        made = executors.SerialTaskExecutor(strict=True)
    elif request.param == "threads":
        made = executors.ThreadTaskExecutor(max_workers=1, strict=True)
    elif request.param == "processes":
        made = executors.ProcessTaskExecutor(1, strict=True)
    else:
        pool = request.getfixturevalue("process_pool")
        made = executors.FutureProcessTaskExecutor(pool, strict=True)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("kind", [Gives, GivesLater])
def test_results_that_cannot_travel_are_refused(
    strict: invocation.TaskExecutor, kind: type[task.Task]
) -> None:
    """With the codec's own words, as a worker refuses them; the revert hears of it."""
    for what in ("object()", "lambda: None", "signal.SIGINT", "type('L', (list,), {})()"):
        _is_refused(strict, kind, what)


def _is_refused(strict: invocation.TaskExecutor, kind: type[task.Task], what: str) -> None:
    with pytest.raises(exceptions.NotEncodable) as expected:
        _codec.pack(gift(what))
    failure = one(strict, call(kind("g"), arguments={"what": what})).value
    assert failure.check(exceptions.NotEncodable)
    assert failure.exception_str == str(expected.value)
    assert "result['a'][1]" in failure.exception_str
    outcome = one(strict, call(kind("g"), "revert", arguments={"what": what}, result=failure))
    assert outcome.value == "undone"
    refused = one(strict, call(kind("g"), "revert", arguments={"what": what}, result=1)).value
    assert refused.check(exceptions.NotEncodable)


def test_arguments_that_cannot_travel_are_refused(strict: invocation.TaskExecutor) -> None:
    """The task never begins, so there is nothing to undo either."""
    arguments = {"what": "1", "value": {"deep": [object()]}}
    failure = one(strict, call(Gives("g"), arguments=arguments)).value
    assert failure.check(exceptions.NotEncodable)
    path = "arguments['value']['deep'][0]: object"
    assert failure.exception_str.startswith(path)
    outcome = one(strict, call(Gives("g"), "revert", arguments=arguments, result=failure))
    assert outcome.value is None
    refused = one(strict, call(Gives("g"), "revert", arguments={"what": "1"}, result=object()))
    assert refused.value.exception_str.startswith("result: object")


@pytest.mark.parametrize("method", ["revert", "pre_revert", "post_revert"])
def test_what_reverts_in_any_way_is_asked_to(method: str) -> None:
    """Only a task with neither body nor hooks is left alone."""
    plain = type("Plain", (task.Task,), {"execute": lambda self: None})
    reverts = type("Reverts", (plain,), {method: lambda self: None})
    assert invocation.reverts_nothing(plain)
    assert not invocation.reverts_nothing(reverts)


def test_a_failure_is_never_refused(strict: invocation.TaskExecutor) -> None:
    """Neither one that is raised, nor one that a revert is told of."""
    raised = one(strict, call(Raises("r"))).value
    assert raised.check(LookupError)
    assert one(strict, call(Echo("e"), "revert", result=raised)).value[1] == []


class Pauses(task.Task):
    async def execute(self) -> str:
        await asyncio.sleep(0.02)
        return "rested"


@pytest.mark.parametrize("kind", [executors.SerialTaskExecutor, executors.ThreadTaskExecutor])
def test_after_an_interrupted_stop_it_starts_anew(kind: type[invocation.TaskExecutor]) -> None:
    """What the loop of the last run has still to do does not matter to the next one."""
    made = kind()
    ends = Ends()
    for step in range(1, 200):
        made.start()
        made.submit(call(Pauses("p")), ends)
        struck = interrupted(step, made.stop)
        made.start()
        made.submit(call(Pauses("p")), ends)
        assert [ends.get(timeout=WAIT)[1].value for _ in range(2)] == ["rested", "rested"], step
        made.stop()
        if not struck:
            break
    assert step > 3
