"""The contract of `TaskExecutor`, kept by every executor of this host."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from tests.support.workers import interrupted
from tests.unit.executor_tasks import (
    Echo,
    Exits,
    Fetch,
    Gives,
    GivesLater,
    Hides,
    Hooked,
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
    """`SystemExit` too, where another thread runs it; the executor goes on."""
    if executor.immediate and name == "SystemExit":
        with pytest.raises(SystemExit):
            one(executor, call(made("r")))
    else:
        assert one(executor, call(made("r"))).value.check(name)
    assert one(executor, call(Echo("e"))).value is None


def test_every_call_ends_once(executor: invocation.TaskExecutor) -> None:
    """Many at a time."""
    ends = Ends()
    executor.submit_many((call(Echo("e"), arguments={"value": n}) for n in range(30)), ends)
    found = sorted(ends.get(timeout=WAIT)[1].value for _ in range(30))
    assert found == list(range(30))
    assert ends.empty()
    pool = getattr(executor, "_pool", None)
    assert pool is None or not pool.unfinished


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


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wbengine-loop"]


def test_async_bodies_are_awaited(executor: invocation.TaskExecutor) -> None:
    """With their hooks, in one asyncio task, in the process where tasks run."""
    outcome = one(executor, call(Fetch("f"), arguments={"value": 7}))
    assert not outcome.failed, outcome.value
    pid, thread, value = outcome.value
    assert (thread, value) == ("wbengine-loop", 7)
    assert (pid == os.getpid()) is getattr(executor, "in_process")  # noqa: B009
    assert outcome.started is not None and outcome.ended is not None
    failures = {"x": ft.Failure.from_exception(ValueError("v"))}
    outcome = one(executor, call(Fetch("f"), "revert", result=5, failures=failures))
    assert outcome.value == (5, ["x"])


@pytest.mark.parametrize(
    "error",
    [LookupError("l"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("c")],
    ids=lambda error: type(error).__name__,
)
def test_what_a_coroutine_raises_is_its_outcome(
    executor: invocation.TaskExecutor, error: BaseException
) -> None:
    """Like everything else, but for interruptions where the submitting thread runs it; the executor
    goes on.
    """
    wanted = call(Fetch("f"), arguments={"value": error})
    if executor.immediate and isinstance(error, KeyboardInterrupt | SystemExit):
        with pytest.raises(type(error)):
            one(executor, wanted)
    else:
        assert one(executor, wanted).value.check(type(error))
    assert one(executor, call(Fetch("f"), arguments={"value": 1})).value[2] == 1


def test_async_hooks_of_a_plain_body(executor: invocation.TaskExecutor) -> None:
    """They are awaited where tasks wait; the body stays where plain bodies run."""
    story = one(executor, call(Hooked("h"))).value
    assert story[0] == "pre_execute" and story[1] != "wbengine-loop"
    for name in ("pre_execute", "post_execute"):
        failure = one(executor, call(Hooked("h", fails=name))).value
        assert failure.check(OSError) and name in failure.exception_str


def test_a_plain_body_that_returns_a_coroutine(executor: invocation.TaskExecutor) -> None:
    """Better late than never awaited."""
    assert one(executor, call(Hides("h"))).value == 5
    assert one(executor, call(Hides("h"), "revert", result=6)).value == 6
    made = task.FunctorTask(functools.partial(coroutine_of), name="p")
    assert one(executor, call(made, arguments={"value": 1})).value == 1


def test_one_loop_per_executor(executor: invocation.TaskExecutor) -> None:
    """Made for the first async body, kept for all others, ended by `stop`."""
    one(executor, call(Echo("e")))
    assert loop_threads() == []
    one(executor, call(Fetch("f")))
    threads = loop_threads()
    assert len(threads) == getattr(executor, "in_process")  # noqa: B009
    one(executor, call(Fetch("f")))
    assert loop_threads() == threads
    executor.stop()
    assert loop_threads() == []


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


def test_ctrl_c_while_a_coroutine_is_waited_for_is_no_outcome() -> None:
    """It leaves the serial executor, as from a plain body, once the coroutine has ended."""
    made = executors.SerialTaskExecutor()

    ended: list[str] = []

    async def body() -> None:
        try:
            while True:  # one that comes just before the main thread waits does not end the waiting
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(1)
        finally:
            ended.append("b")

    with pytest.raises(KeyboardInterrupt):
        one(made, call(task.FunctorTask(body, name="b")))
    assert ended == ["b"]
    made.stop()


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


VALUES: list[Any] = [
    (1, (2,)), {1, 2}, frozenset("a"), b"x", {1: 2, (1, 2): 3}, 1.5, None, "ü", [[]], 2 + 3j,
    dt.timedelta(1), float("inf"),
]  # fmt: skip


def test_what_can_travel_passes(strict: invocation.TaskExecutor) -> None:
    """As it is."""
    for value in VALUES:
        found = one(strict, call(Echo("e"), arguments={"value": value})).value
        assert (found, type(found)) == (value, type(value))


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


def test_nobody_looks_who_is_not_strict(executor: invocation.TaskExecutor) -> None:
    """`object` pickles, so even processes bring it back."""
    found = one(executor, call(Echo("e"), arguments={"value": complex})).value
    assert found is complex


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
