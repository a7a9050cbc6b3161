"""Tasks that run in the engine's process instead of a worker: `local`, `local_tasks`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cancelling import Log
from tests.support import cancelled_tasks, sample_tasks
from tests.support.brokers import broker_url
from tests.support.engine_threads import Running
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions, retry, states, task
from wbengine._calls import invocation
from wbengine.engines.worker_based import engine as worker_based
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base
from wbengine.persistence.backends import _memory

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


class Near(task.Task):
    """Task that no worker offers."""

    default_provides = "near"

    def execute(self) -> str:
        self.update_progress(0.5)
        return threading.current_thread().name


class Further(Near):
    """Subclass with its own name."""


class Each(task.Task):
    def execute(self, item: int) -> int:
        return item * os.getpid()

    def revert(self, item: int, result: Any, flow_failures: Any) -> None:
        undone.append(item)


undone: list[int] = []


class FailsTwice(task.Task):
    """Task that fails twice."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(name)
        self.log = log

    def execute(self) -> None:
        self.log.append("+")
        if len(self.log) < 4:
            raise OSError(self.name)

    def revert(self, result: Any, flow_failures: Any) -> None:
        self.log.append("-")


@pytest.fixture(params=["memory", "filesystem"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a broker for one test."""
    return broker_url(request.param, request, tmp_path)


@pytest.fixture
def remote(broker: str) -> Iterator[dict[str, Any]]:
    """A worker that offers only the sample tasks."""
    with worker_in_thread(broker, sample_tasks):
        yield {"engine": "worker-based", "url": broker}


@pytest.mark.parametrize(
    "chosen",
    [
        ["n", "f"],
        [Near],
        "n, f",
        ["tests.integration.test_local_tasks.Near"],
        ["tests.integration.test_local_tasks:Further", "n"],
        Near,
        {Further, "n"},
    ],
    ids=["names", "class", "text", "path", "path and name", "single class", "set"],
)
def test_local_tasks_run_without_a_worker(broker: str, chosen: Any, tmp_path: Path) -> None:
    """Tasks are chosen by name or by class. The engine sends no request and opens no row."""
    flow = LINE("flow").add(Near("n"), Further("f", provides="g"))
    engine = engines.load(
        flow, engine="worker-based", url=broker, local_tasks=chosen, transition_timeout=1
    )
    progress: list[float] = []
    flow_tasks = list(flow)
    flow_tasks[0].notifier.register(
        "update_progress", lambda event, details: progress.append(details["progress"])
    )
    engine.run()
    assert engine.storage.fetch("near").startswith("wbengine")
    assert progress == [0.0, 0.5, 1.0]
    attempt = engine.storage.get_attempt("n")
    assert attempt is not None and attempt.worker == "local" and attempt.runtime is not None
    sent = invocation.request_id(engine.storage.get_atom_uuid("n"), "execute", 1)
    assert not [path for path in tmp_path.rglob("*") if sent in str(path)]
    assert not engine.executor.ignored


def test_tasks_that_are_not_local_run_on_workers(remote: dict[str, Any]) -> None:
    flow = LINE("flow").add(Near("n"), sample_tasks.Echo("e", rebind={"value": "near"}))
    engine = engines.load(flow, local_tasks=["n"], **remote)
    engine.run()
    assert engine.storage.fetch("echo") == engine.storage.fetch("near")
    assert engine.storage.get_attempt("e").worker != "local"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        (["nn"], ValueError, "local_tasks must be .* of the flow, got 'nn' .* mean 'n'"),
        ("tests.integration.test_local_tasks.Nera", ValueError, "mean '.*test_local_tasks.Near'"),
        ([7], TypeError, "names or classes of tasks, got 7"),
        ([str], TypeError, "names or classes of tasks, got <class 'str'>"),
        (7, TypeError, "got 7"),
    ],
    ids=["name", "path", "number in list", "class that is no task", "number"],
)
def test_invalid_local_tasks_are_rejected_with_suggestion(
    chosen: Any, error: type[Exception], words: str
) -> None:
    """The error is raised before anything runs."""
    engine = engines.load(LINE("flow").add(Near("n")), engine="serial")
    assert engine.storage.get_flow_state() == states.PENDING
    with pytest.raises(error, match=words):
        engines.load(LINE("flow").add(Near("n")), engine="serial", local_tasks=chosen).run()


def test_local_task_is_retried_and_reverted(remote: dict[str, Any]) -> None:
    log: list[str] = []
    flow = LINE("flow", retry=retry.Times(3, "r")).add(FailsTwice("f", log))
    engines.load(flow, local_tasks=["f"], **remote).run()
    assert log == ["+", "-", "+", "-", "+"] or log == ["+", "-", "+", "-", "+", "-"]


def test_items_of_local_map_run_and_revert_in_engine_process(remote: dict[str, Any]) -> None:
    """The Map is chosen by its name or by the class of its items."""
    for chosen in ("m", Each):
        undone.clear()
        flow = LINE("flow").add(
            task.Map(Each("i"), name="m", provides="found"), sample_tasks.Fail(name="fail")
        )
        engine = engines.load(flow, store={"items": [1, 2, 3]}, local_tasks=chosen, **remote)
        with pytest.raises(Exception, match="wrong"):
            engine.run()
        assert sorted(undone) == [1, 2, 3]
        items = engine.storage.flow_detail.find(engine.storage.get_atom_uuid("m")).items
        assert items is not None and {item.worker for item in items} == {"local"}
        assert all(item.submitted is not None for item in items)


def test_local_attempt_of_dead_engine_is_repeated(remote: dict[str, Any]) -> None:
    """No other process can report the result, even if the task was sent to a worker before."""
    backend = _memory.MemoryBackend()
    flow = LINE("flow").add(Near("n"))
    engine = engines.load(flow, backend=backend, local_tasks=["n"], **remote)
    engine.compile()
    engine.prepare()
    record = engine.storage.record("n")
    record.state, record.attempt, record.epoch = states.RUNNING, 1, 1
    engine.run()
    assert engine.storage.get_attempt("n").attempt == 2  # type: ignore[union-attr]


def test_local_and_remote_tasks_can_be_cancelled_separately(broker: str, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with worker_in_thread(broker, cancelled_tasks, threads_count=2):
        flow = WIDE("flow").add(
            cancelled_tasks.Waits("here"),
            cancelled_tasks.Cancellable("too"),
            cancelled_tasks.Cancellable("there"),
        )
        engine = engines.load(
            flow,
            store={"path": str(log.path)},
            engine="worker-based",
            url=broker,
            local_tasks=["here", "too"],
        )
        with Running(engine) as run:
            until(lambda: {"+here", "+too", "+there"} <= set(log.lines))
            engine.cancel("here", "too")
            until(lambda: {"-here", "-too"} <= set(log.lines))
            assert "!there" not in log.lines
            engine.cancel()
    assert isinstance(run.error, exceptions.Cancelled)
    assert {"-here", "-there"} <= set(log.lines)


def test_time_limit_applies_to_local_task(remote: dict[str, Any]) -> None:
    class Long(task.Task):
        timelimit = (0.05, None)

        def execute(self) -> None:
            for _ in range(1000):
                threading.Event().wait(0.01)

    engine = engines.load(LINE("flow").add(Long("l")), local_tasks=[Long], **remote)
    with pytest.raises(exceptions.SoftTimeLimitExceeded):
        engine.run()


def test_attempt_records_time_of_submission(remote: dict[str, Any], tmp_path: Path) -> None:
    """The store contains the time at which the engine submitted each attempt."""
    place = f"dir://{tmp_path / 'store'}"
    flow = LINE("flow").add(Near("n"), sample_tasks.Echo("e", rebind={"value": "near"}))
    before = time.time()
    heard: list[dict[str, Any]] = []
    engine = engines.load(flow, local_tasks=["n"], backend=place, **remote)
    engine.atom_notifier.register(states.SUCCESS, lambda state, details: heard.append(details))
    engine.run()
    again = engines.load(flow, flow_detail=engine.storage.flow_detail, backend=place, **remote)
    for name, details in zip("ne", heard, strict=True):
        attempt = again.storage.get_attempt(name)
        assert attempt is not None and attempt == engine.storage.get_attempt(name)
        assert attempt.submitted is not None and attempt.started is not None
        assert before <= attempt.submitted <= attempt.started + 0.001
        assert details["submitted"] == attempt.submitted
        assert details["runtime"] == attempt.runtime


def double(x: int) -> int:
    return 2 * x


class Named(task.FunctorTask):
    """Function task with its own class, which a worker can offer."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(double, name, provides="doubled")


FUNCTORS: dict[str, Callable[[], task.Task]] = {
    "a FunctorTask": lambda: task.FunctorTask(double, "odd one"),
    "a MapFunctorTask": lambda: task.MapFunctorTask(double, ["x"], "odd one"),
    "a ReduceFunctorTask": lambda: task.ReduceFunctorTask(
        lambda a, b: a + b, ["x", "y"], "odd one"
    ),
    "a FunctorTask ": lambda: task.Map(
        task.FunctorTask(lambda x: x, "inner"), over="all", item="x", name="odd one"
    ),
}
REFUSALS = pytest.mark.parametrize("interop", [None, "taskflow"])


@REFUSALS
@pytest.mark.parametrize("kind", FUNCTORS)
def test_functor_task_for_a_worker_is_rejected_at_load(kind: str, interop: str | None) -> None:
    """The error names the task, the reason and the remedy."""
    flow = LINE("f").add(Near("n"), FUNCTORS[kind]())
    with pytest.raises(exceptions.CompilationFailure) as caught:
        engines.load(
            flow,
            store={"x": 1, "y": 2, "all": [1]},
            engine="worker-based",
            url="memory://nobody",
            topics=["t"],
            interop=interop,
        )
    message = str(caught.value)
    assert "No worker can run task 'odd one'" in message
    assert f"{kind.strip()} is only a wrapper" in message
    assert "@task.task" in message
    assert "local_tasks=['odd one']" in message
    assert "'n'" not in message


def test_rejection_names_three_functor_tasks_and_counts_the_rest() -> None:
    flow = WIDE("f").add(*[task.FunctorTask(double, f"t{n}") for n in range(5)])
    with pytest.raises(exceptions.CompilationFailure, match="tasks 't0', 't1', 't2' and 2 more"):
        engines.load(flow, store={"x": 1}, engine="worker-based", url="memory://nobody")


def test_rejected_functor_task_cannot_be_run_without_load() -> None:
    """The check also applies to an engine that was created without `load`."""
    detail = base.temporary_flow_detail()[1]
    engine = worker_based.WorkerBasedActionEngine(
        task.FunctorTask(lambda: 1, "odd one"), detail, None, {"url": "memory://nobody"}
    )
    for _ in range(2):
        with pytest.raises(exceptions.CompilationFailure, match="'odd one'"):
            engine.run()


@pytest.mark.parametrize(
    "chosen",
    [["odd one"], [task.FunctorTask], "wbengine.task.FunctorTask"],
    ids=["name", "class", "path"],
)
@pytest.mark.parametrize("kind", ["a FunctorTask", "a FunctorTask "])
def test_functor_task_listed_in_local_tasks_is_run(kind: str, chosen: Any, broker: str) -> None:
    engine = engines.load(
        LINE("f").add(FUNCTORS[kind]()),
        store={"x": 1, "all": [1]},
        engine="worker-based",
        url=broker,
        local_tasks=chosen,
    )
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_functor_task_marked_local_is_run(broker: str) -> None:
    marked = task.FunctorTask(double, "odd one", provides="doubled")
    marked.local = True
    results = engines.run(marked, store={"x": 4}, engine="worker-based", url=broker)
    assert results["doubled"] == 8


def test_subclass_of_functor_task_runs_on_a_worker(broker: str) -> None:
    with worker_in_thread(broker, Named):
        results = engines.run(Named("n"), store={"x": 4}, engine="worker-based", url=broker)
    assert results["doubled"] == 8
