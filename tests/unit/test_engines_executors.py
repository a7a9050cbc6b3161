"""Contract of `TaskExecutor` for all executors on this host."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from tests.support.workers import interrupted
from tests.unit.executor_tasks import (
    Describe,
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
from wbengine import exceptions, task
from wbengine._calls import invocation
from wbengine._concurrency import event_loop
from wbengine._runtime import executors
from wbengine.types import codec
from wbengine.types import failure as ft

WAIT = 60.0


def local_processes() -> invocation.TaskExecutor:
    return executors.ProcessTaskExecutor(1)


@pytest.fixture(scope="module")
def process_pool() -> Iterator[futures.ProcessPoolExecutor]:
    with futures.ProcessPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(params=["serial", "threads", "processes", "given processes"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Return the class of an executor, with all its arguments but `strict`."""
    if request.param == "given processes":
        pool = request.getfixturevalue("process_pool")
        return functools.partial(executors.FutureProcessTaskExecutor, pool)
    return {
        "serial": executors.SerialTaskExecutor,
        "threads": functools.partial(executors.ThreadTaskExecutor, max_workers=2),
        "processes": functools.partial(executors.ProcessTaskExecutor, 1),
    }[request.param]


@contextlib.contextmanager
def started(made: invocation.TaskExecutor) -> Iterator[invocation.TaskExecutor]:
    made.start()
    yield made
    made.stop()
    made.stop()


@pytest.fixture
def executor(kind: Any) -> Iterator[invocation.TaskExecutor]:
    with started(kind()) as made:
        yield made


@pytest.fixture
def strict(kind: Any) -> Iterator[invocation.TaskExecutor]:
    with started(kind(strict=True)) as made:
        yield made


class Ends(queue.SimpleQueue[Any]):
    """Callback that collects the arguments of `done`."""

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


#: Attributes of a call that only the process of the engine needs, and those that are checked by
#: other tests.
NOT_DESCRIBED = {
    *("cancellation", "context", "events", "local", "log", "lost", "node", "not_after"),
    *("not_before", "origin", "priority", "resumed", "row", "spent", "step", "tags", "ticket"),
    *("action", "arguments", "captures", "failures", "payloads", "result", "stores_large", "task"),
}


def test_call_has_the_same_data_where_the_task_runs(executor: invocation.TaskExecutor) -> None:
    data = {
        "uuid": "uuid", "attempt": 7, "flow_uuid": "flow", "index": 2, "repeats": 3, "epoch": 4,
        "recovered": True, "settled": 5,
    }  # fmt: skip
    fields = {field.name for field in dataclasses.fields(invocation.Invocation)}
    assert fields == data.keys() | NOT_DESCRIBED
    wanted = invocation.Invocation(Describe("d"), "execute", arguments={"names": [*data]}, **data)
    assert one(executor, wanted).value == data


@pytest.mark.parametrize("sort", ["threads", "coroutines", "processes"])
def test_withdraw_returns_calls_that_have_not_started(sort: str) -> None:
    """A running call ends as usual; the others are returned in order."""
    running, leave, ends = threading.Event(), threading.Event(), Ends()

    def wait(*_: Any) -> None:
        running.set()
        leave.wait()

    async def wait_later() -> None:
        wait()

    made: Any = executors.ThreadTaskExecutor(max_workers=1)
    first = call(task.FunctorTask(wait_later if sort == "coroutines" else wait, name="w"))
    if sort == "processes":
        # The event blocks the thread of the slot, while its call counts as running.
        made, first = local_processes(), call(Echo("w"), events=wait)
        first.task.notifier.register("update_progress", lambda *_, **__: None)
    made.start()
    made.submit(first, ends)
    running.wait()
    rest = [call((Fetch if sort == "coroutines" else Echo)(f"t{n}")) for n in range(3)]
    made.submit_many(rest, ends)
    assert made.withdraw() == rest
    assert made.withdraw() == []
    leave.set()
    assert ends.get(timeout=WAIT)[0] is first
    made.stop()
    assert ends.empty()


def test_call_of_given_pool_that_is_cancelled_during_withdraw_ends_once() -> None:
    leave, ends = threading.Event(), Ends()
    with futures.ThreadPoolExecutor(1) as pool:
        pool.submit(leave.wait)
        made = executors.ThreadTaskExecutor(pool)
        waiting = call(Echo("t"))
        made.submit(waiting, ends)
        external: Any = made._pool
        has_reported_starts = external._has_reported_starts

        def cancel(pool_call: Any) -> bool:
            made.cancel([waiting])  # in another thread, after this one has listed the calls
            return bool(has_reported_starts(pool_call))

        external._has_reported_starts = cancel
        try:
            withdrawn = made.withdraw()
        finally:
            leave.set()
    ended, outcome = ends.get(timeout=WAIT)
    assert ended is waiting and outcome.value.check(exceptions.Cancelled)
    assert withdrawn == []


def test_call_dropped_by_given_pool_fails() -> None:
    """Another component may shut down a given pool."""
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
    "make",
    [lambda: executors.ThreadTaskExecutor(max_workers=1), local_processes],
    ids=["threads", "processes"],
)
def test_submit_before_start_results_in_failure(make: Any) -> None:
    """`submit` never raises."""
    assert one(make(), call(Echo("e"))).value.check(RuntimeError)


@pytest.mark.parametrize("given", [False, True], ids=["own-pool", "given-pool"])
@pytest.mark.parametrize(
    "wanted",
    [call(Odd("odd")), call(Echo("odd"), arguments={"value": lambda: None})],
    ids=["result", "argument"],
)
def test_unpicklable_value_fails_only_its_task(
    given: bool, wanted: invocation.Invocation, process_pool: futures.ProcessPoolExecutor
) -> None:
    made: Any = executors.FutureProcessTaskExecutor(process_pool) if given else local_processes()
    made.start()
    failure = one(made, wanted).value
    assert isinstance(failure, ft.Failure)
    assert failure.check(exceptions.NotEncodable)
    assert "'odd'" in failure.exception_str
    assert one(made, call(Echo("e"), arguments={"value": 1})).value == 1
    made.stop()


# -- async bodies --------------------------------------------------------------------------------


def test_coroutine_returned_by_plain_method_is_awaited(executor: invocation.TaskExecutor) -> None:
    assert one(executor, call(Hides("h"))).value == 5
    assert one(executor, call(Hides("h"), "revert", result=6)).value == 6
    made = task.FunctorTask(functools.partial(coroutine_of), name="p")
    assert one(executor, call(made, arguments={"value": 1})).value == 1


def test_concurrent_withdraw_loses_no_call() -> None:
    """Each call is either returned by `withdraw` or ends once."""
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


@pytest.mark.parametrize("cls", [Gives, GivesLater])
def test_strict_executor_refuses_unencodable_results(
    strict: invocation.TaskExecutor, cls: type[task.Task]
) -> None:
    """The message is that of the codec, as on a worker, and `revert` receives the failure."""
    for what in ("object()", "lambda: None", "signal.SIGINT", "type('L', (list,), {})()"):
        _is_refused(strict, cls, what)


def _is_refused(strict: invocation.TaskExecutor, cls: type[task.Task], what: str) -> None:
    with pytest.raises(exceptions.NotEncodable) as expected:
        codec.pack(gift(what))
    failure = one(strict, call(cls("g"), arguments={"what": what})).value
    assert failure.check(exceptions.NotEncodable)
    assert failure.exception_str == str(expected.value)
    assert "result['a'][1]" in failure.exception_str
    outcome = one(strict, call(cls("g"), "revert", arguments={"what": what}, result=failure))
    assert outcome.value == "undone"
    refused = one(strict, call(cls("g"), "revert", arguments={"what": what}, result=1)).value
    assert refused.check(exceptions.NotEncodable)


def test_strict_executor_refuses_unencodable_arguments(strict: invocation.TaskExecutor) -> None:
    """The task does not start, so there is nothing to revert."""
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
def test_reverts_nothing_is_false_with_any_revert_method(method: str) -> None:
    plain = type("Plain", (task.Task,), {"execute": lambda self: None})
    reverts = type("Reverts", (plain,), {method: lambda self: None})
    assert invocation.reverts_nothing(plain)
    assert not invocation.reverts_nothing(reverts)


def test_strict_executor_accepts_failures(strict: invocation.TaskExecutor) -> None:
    """This includes raised failures and those that are passed to `revert`."""
    raised = one(strict, call(Raises("r"))).value
    assert raised.check(LookupError)
    assert one(strict, call(Echo("e"), "revert", result=raised)).value[1] == []


class Pauses(task.Task):
    async def execute(self) -> str:
        await asyncio.sleep(0.02)
        return "rested"


@pytest.mark.parametrize("cls", [executors.SerialTaskExecutor, executors.ThreadTaskExecutor])
def test_executor_can_start_again_after_interrupted_stop(cls: Any) -> None:
    """Unfinished coroutines of the previous loop do not affect the next run."""
    made = cls()
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
    event_loop.stop_all()  # Interrupts before a loop was stopped leave it.
    assert step > 3
