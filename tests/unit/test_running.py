"""Requests, time limits and cancelling of tasks on all local executors."""

from __future__ import annotations

import contextvars
import decimal
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from tests.unit.running_tasks import (
    ChangesContext,
    ChangesContextLater,
    Obeys,
    Odd,
    Spins,
    Stubborn,
    Tells,
    TellsLater,
    Waits,
    change_context,
    tenant,
)
from wbengine import exceptions, running, task, time_limits
from wbengine._calls import invocation
from wbengine._runtime import executors
from wbengine.engines.worker_based import endpoint
from wbengine.engines.worker_based import protocol as pr

WAIT = 60.0
KINDS = ["serial", "threads", "given threads", "processes", "given processes"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def given_processes() -> Iterator[futures.ProcessPoolExecutor]:
    with futures.ProcessPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def make(kind: str, given_processes: Any) -> Iterator[Any]:
    made: list[Any] = []
    threads = futures.ThreadPoolExecutor(2)

    def make(limit: time_limits.TimeLimit = time_limits.UNLIMITED) -> Any:
        found: Any
        if kind == "serial":
            found = executors.SerialTaskExecutor(limit=limit)
        elif kind == "threads":
            found = executors.ThreadTaskExecutor(max_workers=1, limit=limit)
        elif kind == "given threads":
            found = executors.ThreadTaskExecutor(threads, limit=limit)
        elif kind == "processes":
            found = executors.ProcessTaskExecutor(1, limit=limit)
        else:
            found = executors.FutureProcessTaskExecutor(given_processes, limit=limit)
        found.start()
        made.append(found)
        warm = Tells("warm")
        warm.timelimit = (None, None)  # Starting a process takes time.
        outcome(found, call(warm))
        return found

    yield make
    for found in made:
        found.stop()
    threads.shutdown()


def call(made: task.Task, action: Any = "execute", **options: Any) -> invocation.Invocation:
    return invocation.Invocation(made, action, "uuid", **options)


def outcome(executor: Any, wanted: invocation.Invocation) -> Any:
    ends = queue.SimpleQueue[Any]()
    executor.submit(wanted, lambda _, found: ends.put(found.value))
    return ends.get(timeout=WAIT)


# Requests.


@pytest.mark.parametrize("action", ["execute", "revert"])
def test_task_request_has_id_attempt_epoch_and_flow(make: Any, action: Any) -> None:
    """The id is that of the first attempt, which this one repeats."""
    wanted = call(Tells("t"), action, attempt=3, epoch=4, flow_uuid="f", index=2, repeats=1)
    request, cancelled = outcome(make(), wanted)
    name = invocation.request_id("uuid", action, 2, 2)
    assert request == running.Request(name, 3, 4, "f", "local", None)
    assert cancelled is False
    assert (wanted.task.request, wanted.task.cancelled) == (None, False)


REQUEST_IDS: dict[str, tuple[Any, str]] = {
    "execute": (("atom", "execute", 1), "atom|execute|1"),
    "revert": (("atom", "revert", 12), "atom|revert|12"),
    "no_item": (("atom", "execute", 1, -1, 4), "atom|execute|1"),
    "item": (("atom", "execute", 1, 0), "atom|execute|1|0"),
    "resumed_item": (("\u00e4tom", "execute", 3, 2, 1), "\u00e4tom|execute|3|2|1"),
}


@pytest.mark.parametrize(("what", "name"), REQUEST_IDS.values(), ids=REQUEST_IDS)
def test_request_ids_are_uuid5_of_atom_action_attempt_and_item(what: Any, name: str) -> None:
    space = uuid.UUID("8f3e6c52-5d0b-4d6b-9c55-0b8ee3a4a7c1")
    assert invocation.request_id(*what) == str(uuid.uuid5(space, name))


def test_request_ids_have_uuid_version_5_and_rfc_4122_variant() -> None:
    found = {uuid.UUID(invocation.request_id("atom", "execute", n)) for n in range(100)}
    assert {(each.version, each.variant) for each in found} == {(5, uuid.RFC_4122)}
    assert {str(each)[19] for each in found} == set("89ab")


def test_coroutine_task_has_its_request(make: Any) -> None:
    request, cancelled = outcome(make(), call(TellsLater("t"), attempt=2))
    assert (request.id, cancelled) == (invocation.request_id("uuid", "execute", 2), False)


def test_request_deadline_is_the_hard_time_limit(make: Any, kind: str) -> None:
    executor = make(time_limits.TimeLimit(50, 100))
    for made in (Tells("t"), TellsLater("t")):
        request, _ = outcome(executor, call(made))
        if kind == "given processes":
            assert request.deadline is None  # A given process pool cannot stop tasks.
        else:
            assert abs(request.deadline - time.time() - 100) < 30


def test_concurrent_executions_of_a_task_have_separate_requests() -> None:
    """Several engines may run the same flow object."""
    found = queue.SimpleQueue[Any]()
    meeting = threading.Barrier(2)

    class Meets(task.Task):
        def execute(self) -> Any:
            meeting.wait(WAIT)
            before = self.request
            meeting.wait(WAIT)
            return before, self.request

    made = Meets("m")

    def run(number: int) -> None:
        found.put((number, invocation.invoke(call(made, attempt=number)).value))

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        number, (before, after) = found.get(timeout=WAIT)
        assert before == after and before.attempt == number
    assert not made.cancelled


def test_nested_execution_restores_the_outer_request() -> None:
    inner = Tells("inner")

    class Outer(task.Task):
        def execute(self) -> Any:
            assert inner.request is None
            first = invocation.invoke(call(inner, attempt=7)).value[0].attempt
            return first, self.request.attempt if self.request else None

    assert invocation.invoke(call(Outer("o"), attempt=5)).value == (7, 5)


def test_endpoint_passes_the_request_to_the_task() -> None:
    request = running.Request("id", 3, 4, "flow", "worker-1", None)
    unit = pr.WorkUnit("", "t", "execute", {}, None, {}, request)
    found = endpoint.Endpoint(Tells).run(unit, None, lambda *_: None)
    assert found.value == (request, False)


# Cancelling.


def test_cancel_ends_a_task_waiting_for_a_thread_at_once(make: Any, kind: str) -> None:
    if kind in ("serial", "given processes"):
        pytest.skip("nothing waits there, or nobody knows what does")
    executor, begun = make(), threading.Semaphore(0)
    ends = queue.SimpleQueue[Any]()
    count = 2 if kind == "given threads" else 1
    holding = [call(Obeys(f"h{n}"), events=lambda *_: begun.release()) for n in range(count)]
    executor.submit_many(holding, lambda _, found: None)
    for _ in holding:
        assert begun.acquire(timeout=WAIT)
    waiting = [call(Tells(f"w{n}")) for n in range(3)]
    executor.submit_many(waiting, lambda which, found: ends.put((which, found.value)))
    executor.cancel(waiting[1:2])
    which, value = ends.get(timeout=WAIT)
    assert which is waiting[1] and value.check(exceptions.Cancelled)
    assert executor.withdraw() == [waiting[0], waiting[2]]
    executor.cancel([*waiting, *holding])
    assert ends.empty()


# Time limits.


@pytest.mark.parametrize("made", [Spins, Waits])
def test_soft_time_limit_raises_in_the_task(make: Any, made: Any) -> None:
    executor = make()
    assert outcome(executor, call(made("s"))).check(exceptions.SoftTimeLimitExceeded)
    assert outcome(executor, call(Tells("t")))[1] is False


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_task_that_handles_its_hard_time_limit_fails_nevertheless(make: Any, raises: bool) -> None:
    failure = outcome(make(), call(Stubborn("s"), arguments={"raises": raises}))
    assert failure.check(exceptions.TimeLimitExceeded)
    assert "task 's' did not end within its hard limit of 0.05 s" in failure.exception_str


def test_invalid_time_limit_fails_only_its_task(make: Any) -> None:
    executor = make()
    failure = outcome(executor, call(Odd("o")))
    assert failure.check(TypeError) and "the timelimit of task 'o'" in failure.exception_str
    assert outcome(executor, call(Tells("t")))[1] is False


# Contexts.


@pytest.mark.parametrize("task_cls", [ChangesContext, ChangesContextLater])
def test_task_changes_only_its_own_copy_of_the_context(
    make: Any, kind: str, task_cls: type[task.Task]
) -> None:
    executor = make()

    def run() -> None:
        change_context("engine")
        decimal.getcontext().prec = 40
        first = ("nobody", 28) if "processes" in kind else ("engine", 40)
        for _ in range(2):
            assert outcome(executor, call(task_cls("t"))) == [first, ("hook", 5)]
            assert outcome(executor, call(task_cls("t"), "revert", result=1)) == first
        assert (tenant.get(), decimal.getcontext().prec) == ("engine", 40)

    contextvars.copy_context().run(run)
