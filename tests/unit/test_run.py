"""Writes, submissions and events of the run loop, and their order."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.held_tasks import HeldTasks
from wbengine import exceptions, retry, states, task
from wbengine._calls import invocation
from wbengine._runtime import executors
from wbengine.engines import _local
from wbengine.engines import base as engine_base
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base, models
from wbengine.persistence.backends import _memory


class Plain(task.Task):
    def execute(self) -> None:
        pass


class Boom(task.Task):
    def execute(self) -> None:
        raise ValueError(self.name)


class Writing(_memory.MemoryBackend):
    """Backend that logs the written states."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def get_connection(self) -> Any:
        log = self.log

        class Connection(_memory.MemoryConnection):
            def save_changes(
                self, flow: Any, atoms: Iterable[models.AtomDetail], **more: Any
            ) -> None:
                found = list(atoms)
                if found:
                    log.append(("write", {atom.name: atom.state for atom in found}))
                super().save_changes(flow, found, **more)

        return Connection(self)


def made(flow: Any, executor: Any, backend: Any = None, **options: Any) -> engine_base.Engine:
    detail = base.create_flow_detail(flow, backend=backend)
    options["executor"] = executor
    engine = _local.ParallelActionEngine(flow, detail, backend, options)
    engine.compile()
    engine.prepare()
    return engine


@pytest.mark.parametrize("size", [1, 40])
def test_ready_tasks_of_any_number_start_with_one_write(size: int) -> None:
    log: list[Any] = []
    flow = unordered_flow.Flow("f").add(*[Plain(f"t{n}") for n in range(size)])
    engine = made(flow, HeldTasks(log), Writing(log))
    log.clear()
    found = list(engine.run_iter())
    assert found == ["RESUMING", "SCHEDULING", "WAITING", "ANALYZING", "SUCCESS"]
    assert sum(entry[0] == "write" for entry in log) == 2


def test_results_that_arrive_together_are_analyzed_together() -> None:
    executor = HeldTasks([], held=True)
    flow = unordered_flow.Flow("f").add(Plain("a"), Plain("b"), Plain("c"))
    engine = made(flow, executor)
    steps = engine.run_iter(timeout=0.001)
    while next(steps) != states.WAITING:
        pass
    for _ in range(3):
        executor.release()
    assert list(steps) == ["ANALYZING", "SUCCESS"]


def test_run_iter_timeout_writes_nothing_and_waits_again() -> None:
    log: list[Any] = []
    executor = HeldTasks(log, held=True)
    engine = made(linear_flow.Flow("f").add(Plain("a")), executor, Writing(log))
    steps = engine.run_iter(timeout=0.001)
    found = [next(steps) for _ in range(7)]
    assert found[2:] == ["WAITING", "ANALYZING"] * 2 + ["WAITING"]
    written = len(log)
    executor.release()
    assert list(steps)[-1] == "SUCCESS"
    assert len(log) == written + 2  # The write of the result, and `retire`.


def test_never_resolve_resets_submitted_tasks_that_did_not_start() -> None:
    executor = HeldTasks([], held=True)
    flow = unordered_flow.Flow("f").add(Boom("a"), Plain("b"))
    engine = made(flow, executor, never_resolve=True)
    steps = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
    executor.release()
    with pytest.raises(ValueError, match="a"):
        list(steps)
    assert engine.storage.get_flow_state() == states.FAILURE
    assert engine.storage.get_atom_state("b") == states.PENDING


@pytest.mark.parametrize("reads", range(6))
def test_interrupt_while_tasks_are_selected_leaves_all_pending(reads: int) -> None:
    class Interrupts(Plain):
        left = -1  # Never.

        @property
        def priority(self) -> int:  # type: ignore[override]
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
            return 0

    b = Interrupts("b")
    flow = unordered_flow.Flow("f").add(Plain("a"), b, Plain("c"))
    engine = made(flow, HeldTasks([]))
    engine.compile()
    b.left = reads
    interrupted = False
    try:
        engine.run()
    except KeyboardInterrupt:
        interrupted = True
        assert {engine.storage.get_atom_state(name) for name in "abc"} == {states.PENDING}
        assert engine.storage.get_flow_state() == states.SUSPENDED
        engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert interrupted == (reads < 2)


@pytest.mark.parametrize("reads", range(4))
def test_interrupt_during_submission_finishes_only_submitted_tasks(
    reads: int,
) -> None:
    class Interrupted(HeldTasks):
        left = reads

        def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
            super().submit(call, done)
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt

    flow = unordered_flow.Flow("f").add(*[Plain(name) for name in "abcd"])
    engine = made(flow, Interrupted([]), _memory.MemoryBackend())
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    found = [engine.storage.get_atom_state(name) for name in "abcd"]
    assert found == [states.SUCCESS] * (reads + 1) + [states.PENDING] * (3 - reads)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_suspend_of_an_ended_run_does_not_affect_the_next_run() -> None:
    """The next run may use the same executor, in which its tasks wait."""
    executor = HeldTasks([])
    engine = made(linear_flow.Flow("f").add(Plain("a"), Boom("b")), executor)
    with pytest.raises(ValueError):
        engine.run()
    over = engine._run
    assert over is not None
    executor.held = True
    steps = engine.run_iter(timeout=0.001)
    while next(steps) != states.WAITING:
        pass
    suspends = threading.Thread(target=over.stop_signal.suspend)
    suspends.start()
    suspends.join()
    assert len(executor.waiting) == 1
    executor.release()
    executor.held = False
    with pytest.raises(ValueError):
        list(steps)


def test_listener_that_suspends_receives_no_event_of_a_reset_task() -> None:
    """The RUNNING state of the next task is in the write that contains the suspending result."""
    log: list[Any] = []
    flow = linear_flow.Flow("f").add(Plain("a"), Plain("b"))
    engine = made(flow, HeldTasks(log), Writing(log))
    told: list[Any] = []

    def listen(state: str, details: dict[str, Any]) -> None:
        told.append((details["task_name"], state))
        if told == [("a", "RUNNING"), ("a", "SUCCESS")]:
            engine.suspend()

    engine.atom_notifier.register("*", listen)
    log.clear()
    engine.run()
    assert told == [("a", "RUNNING"), ("a", "SUCCESS")]
    assert [entry for entry in log if entry[0] == "write"] == [
        ("write", {"a": "RUNNING"}),
        ("write", {"a": "SUCCESS", "b": "RUNNING"}),
        ("write", {"b": "PENDING"}),
    ]
    engine.run()
    assert told[2:] == [("b", "RUNNING"), ("b", "SUCCESS")]


def test_failed_start_of_the_executor_changes_no_state() -> None:
    class Unreachable(HeldTasks):
        def start(self) -> None:
            raise exceptions.TransportFailure("no broker")

    log: list[Any] = []
    engine = made(linear_flow.Flow("f").add(Plain("a")), Unreachable(log))
    with pytest.raises(exceptions.TransportFailure, match="no broker"):
        engine.run()
    assert log == []
    assert engine.storage.get_flow_state() == states.PENDING
    assert engine.storage.get_atom_state("a") == states.PENDING


@pytest.mark.parametrize("has_backend", [False, True])
def test_engine_leaves_no_reference_cycle_after_a_run(has_backend: bool) -> None:
    """Memory is released without the garbage collector."""
    backend = _memory.MemoryBackend() if has_backend else None
    flow = linear_flow.Flow("f", retry=retry.Times(2)).add(Plain("a"), Plain("b"))
    engine = made(flow, executors.SerialTaskExecutor(), backend)
    engine.run()
    left = weakref.ref(flow)
    gc.disable()
    try:
        del engine, flow
        assert left() is None
    finally:
        gc.enable()
