"""Flows in `concurrent.futures` executors that may pickle their calls."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

from tests.unit.executor_tasks import Echo, Fetch, Raises
from wbengine import engines, exceptions, task
from wbengine._calls import invocation
from wbengine._concurrency import event_loop
from wbengine._runtime import executors
from wbengine.patterns import linear_flow, unordered_flow


class Pickling(futures.Executor):
    """Makes pickled calls at once, or when `make_calls` is called. Futures are never `running`."""

    def __init__(self, *, later: bool = False) -> None:
        self.error: Exception | None = None
        self.pending: list[tuple[futures.Future[Any], bytes]] = []
        self._later = later

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        try:
            data = pickle.dumps((fn, args))
        except Exception as error:
            raise TypeError("Could not serialize") from error
        future: futures.Future[Any] = futures.Future()
        self.pending.append((future, data))
        if not self._later:
            self.make_calls()
        return future

    def make_calls(self) -> None:
        while self.pending:
            future, data = self.pending.pop(0)
            if self.error is not None:
                future.set_exception(self.error)
                continue
            fn, args = pickle.loads(data)
            future.set_result(pickle.loads(pickle.dumps(fn(*args))))


class Direct(futures.Executor):
    """Makes calls in this process, although its type does not say so."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args))
        return future


class Here(Echo):
    local = True

    def execute(self, value: Any = None) -> Any:
        return threading.current_thread().name


def run(flow: Any, executor: futures.Executor, **options: Any) -> Any:
    return engines.run(flow, engine="parallel", executor=executor, **options)


def test_executor_that_pickles_runs_tasks_items_and_coroutines() -> None:
    flow = linear_flow.Flow("f").add(
        Echo("plain", provides="plain", inject={"value": {1, 2}}),
        Fetch("async", provides="async", inject={"value": "x"}),
        task.Map(Echo("each"), over="values", item="value", provides="items"),
    )
    values = run(flow, Pickling(), inputs={"values": [1, 2, 3]})
    event_loop.stop_all()  # A child process would end with its loop.
    assert (values["plain"], values["async"][2], values["items"]) == ({1, 2}, "x", [1, 2, 3])


def test_failure_in_executor_that_pickles_reverts_the_flow() -> None:
    flow = linear_flow.Flow("f").add(Echo("undone"), Raises("fails"))
    engine = engines.load(flow, engine="parallel", executor=Pickling())
    with pytest.raises(LookupError, match="gone"):
        engine.run()
    assert engine.storage.get_atom_state("undone") == "REVERTED"


def test_local_task_runs_in_the_process_of_the_engine() -> None:
    flow = linear_flow.Flow("f").add(Here("t", provides="r"))
    assert run(flow, Pickling())["r"].startswith("wbengine")


def test_argument_that_cannot_be_pickled_is_named() -> None:
    flow = linear_flow.Flow("f").add(Echo("t", inject={"value": threading.Lock()}))
    with pytest.raises(exceptions.NotEncodable, match=r"Task 't': arguments\['value'\]"):
        run(flow, Pickling())


def test_executor_without_pickling_needs_no_picklable_tasks() -> None:
    @task.task(provides="r")
    def local(lock: Any) -> str:
        with lock:
            return "done"

    events: list[Any] = []
    echo = Echo("e", inject={"value": 1})
    echo.notifier.register("update_progress", lambda _, details: events.append(details["progress"]))
    flow = unordered_flow.Flow("f").add(local("t", inject={"lock": threading.Lock()}), echo)
    assert run(flow, Direct())["r"] == "done"
    assert events == [0.0, 0.5, 1.0]


def test_error_of_the_executor_after_the_call_was_sent_is_a_lost_worker() -> None:
    executor = Pickling()
    executor.error = RuntimeError("the host is gone")
    with pytest.raises(exceptions.WorkerLost, match=r"task 't'.*the host is gone"):
        run(linear_flow.Flow("f").add(Echo("t")), executor)


def test_missing_module_on_the_other_host_is_the_error() -> None:
    executor = Pickling()
    executor.error = ModuleNotFoundError("No module named 'orders'")
    with pytest.raises(ModuleNotFoundError, match="orders"):
        run(linear_flow.Flow("f").add(Echo("t")), executor)


def test_expiry_does_not_depend_on_the_monotonic_clock_of_the_other_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Pickling(later=True)
    given = executors.FutureProcessTaskExecutor(executor)
    outcomes: list[Any] = []
    for name, seconds in (("early", 60.0), ("late", -60.0)):
        call = invocation.Invocation(Echo(name), "execute", "uuid", arguments={"value": name})
        call.not_after = time.monotonic() + seconds
        given.submit(call, lambda _, outcome: outcomes.append(outcome.value))
    here = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: here() + 1e6)
    executor.make_calls()
    assert outcomes[0] == "early"
    assert outcomes[1].check(exceptions.Expired)


def test_calls_that_may_have_started_are_neither_withdrawn_nor_cancelled() -> None:
    """The futures of Dask are never `running`."""
    executor = Pickling(later=True)
    given = executors.FutureProcessTaskExecutor(executor)
    outcomes: list[Any] = []
    calls = [
        invocation.Invocation(Echo(f"t{n}"), "execute", "uuid", arguments={"value": n})
        for n in range(3)
    ]
    given.submit_many(calls, lambda _, outcome: outcomes.append(outcome.value))
    assert given.withdraw() == []
    given.cancel(calls[2:])
    assert outcomes == []
    executor.pending[0][0].set_running_or_notify_cancel()  # This executor reports starts.
    assert given.withdraw() == calls[1:]
    del executor.pending[1:]
    executor.make_calls()
    assert outcomes == [0]
