"""The run loop: what is written, submitted and told, and in which order."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.held_tasks import HeldTasks
from wbengine import exceptions, invocation, retry, states, task
from wbengine.engines import base as engine_base
from wbengine.engines import local
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base, models
from wbengine.persistence.backends import memory
from wbengine.runtime import executors


class Plain(task.Task):
    def execute(self) -> None:
        pass


class Boom(task.Task):
    def execute(self) -> None:
        raise ValueError(self.name)


class Writing(memory.MemoryBackend):
    """Writes down the states it is given to keep."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def get_connection(self) -> Any:
        log = self.log

        class Connection(memory.MemoryConnection):
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
    engine = local.ParallelActionEngine(flow, detail, backend, options)
    engine.compile()
    engine.prepare()
    return engine


@pytest.mark.parametrize("size", [1, 40])
def test_a_turn_costs_one_write_and_one_round_of_states(size: int) -> None:
    """However many tasks are ready."""
    log: list[Any] = []
    flow = unordered_flow.Flow("f").add(*[Plain(f"t{n}") for n in range(size)])
    engine = made(flow, HeldTasks(log), Writing(log))
    log.clear()
    found = list(engine.run_iter())
    assert found == ["RESUMING", "SCHEDULING", "WAITING", "ANALYZING", "SUCCESS"]
    assert sum(entry[0] == "write" for entry in log) == 2


def test_outcomes_that_arrive_together_are_one_turn() -> None:
    """ANALYZING takes all that is there."""
    executor = HeldTasks([], held=True)
    flow = unordered_flow.Flow("f").add(Plain("a"), Plain("b"), Plain("c"))
    engine = made(flow, executor)
    steps = engine.run_iter(timeout=0.001)
    while next(steps) != states.WAITING:
        pass
    for _ in range(3):
        executor.release()
    assert list(steps) == ["ANALYZING", "SUCCESS"]


def test_a_wait_that_times_out_only_waits_again() -> None:
    """`timeout` gives the caller a turn; it ends nothing and writes nothing."""
    log: list[Any] = []
    executor = HeldTasks(log, held=True)
    engine = made(linear_flow.Flow("f").add(Plain("a")), executor, Writing(log))
    steps = engine.run_iter(timeout=0.001)
    found = [next(steps) for _ in range(7)]
    assert found[2:] == ["WAITING", "ANALYZING"] * 2 + ["WAITING"]
    written = len(log)
    executor.release()
    assert list(steps)[-1] == "SUCCESS"
    assert len(log) == written + 2  # the result, and that it may be forgotten


def test_a_kept_failure_takes_back_what_has_not_started() -> None:
    """With `never_resolve` nothing new starts, and what runs finishes."""
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
def test_an_interruption_while_a_turn_begins_leaves_nothing_half_begun(reads: int) -> None:
    """What was not submitted is PENDING again, wherever the interruption came."""

    class Interrupts(Plain):
        left = -1  # never

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
def test_an_interruption_while_a_turn_is_submitted_leaves_only_what_was_submitted(
    reads: int,
) -> None:
    """What did not get to the executor is PENDING again; what did is finished."""

    class Interrupted(HeldTasks):
        left = reads

        def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
            super().submit(call, done)
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt

    flow = unordered_flow.Flow("f").add(*[Plain(name) for name in "abcd"])
    engine = made(flow, Interrupted([]), memory.MemoryBackend())
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    found = [engine.storage.get_atom_state(name) for name in "abcd"]
    assert found == [states.SUCCESS] * (reads + 1) + [states.PENDING] * (3 - reads)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_whoever_suspends_a_run_that_is_over_takes_nothing_from_the_next() -> None:
    """The executor may be the same; what waits there belongs to somebody else."""
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


def test_a_listener_that_suspends_does_not_hear_of_what_is_taken_back() -> None:
    """Both are in the same write; what began is given back without a word."""
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


def test_an_executor_that_cannot_start_changes_nothing() -> None:
    """Its error is raised; the flow waits for the next run."""

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


def test_an_engine_that_ran_leaves_no_cyclic_garbage() -> None:
    """Its memory is free at once, not when the collector comes by."""
    flow = linear_flow.Flow("f", retry=retry.Times(2)).add(Plain("a"), Plain("b"))
    engine = made(flow, executors.SerialTaskExecutor())
    engine.run()
    left = weakref.ref(flow)
    gc.disable()
    try:
        del engine, flow
        assert left() is None
    finally:
        gc.enable()
