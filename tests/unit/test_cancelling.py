"""`Engine.cancel`: notified tasks, reverted tasks, and the error that `run` raises."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support import engine_threads
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._calls import invocation
from wbengine._concurrency import clocks
from wbengine._runtime import executors
from wbengine.engines import _local
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import base
from wbengine.persistence.backends import _memory
from wbengine.types import failure as ft

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


class Hands(invocation.TaskExecutor):
    """Executor whose tasks the test starts and ends."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[invocation.Invocation, invocation.Done]] = {}
        self.running: dict[str, tuple[invocation.Invocation, invocation.Done]] = {}
        self.told: list[str] = []
        self.submitted: list[str] = []

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        name = f"{'+' if call.action == 'execute' else '-'}{call.task.name}"
        self.submitted.append(name)
        if call.action == "revert":
            done(call, invocation.Outcome(None))
        else:
            self.waiting[call.task.name] = call, done

    def start_one(self, name: str) -> None:
        until(lambda: name in self.waiting)
        self.running[name] = self.waiting.pop(name)

    def end(self, name: str, value: Any = None) -> None:
        call, done = self.running.pop(name)
        if isinstance(value, BaseException):
            value = ft.Failure.from_exception(value)
        done(call, invocation.Outcome(value))

    def run(self, name: str, value: Any = None) -> None:
        self.start_one(name)
        self.end(name, value)

    def withdraw(self) -> list[invocation.Invocation]:
        taken, self.waiting = self.waiting, {}
        return [call for call, _ in taken.values()]

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        for call in invocations:
            assert call.action == "execute" and call.cancellation.cancelled
            assert call.task.name not in self.waiting, "it was to be withdrawn"
            self.told.append(call.task.name)


class Plain(task.Task):
    def execute(self) -> str:
        return self.name


class Run(engine_threads.Running):
    """Engine with `Hands` that runs in a thread."""

    def __init__(self, flow: Any, detail: Any = None, backend: Any = None, **options: Any) -> None:
        self.hands = Hands()
        detail = detail or base.create_flow_detail(flow, backend=backend)
        options["executor"] = self.hands
        super().__init__(_local.ParallelActionEngine(flow, detail, backend, options))
        self.engine.compile()

    def again(self) -> Run:
        """Return another engine for the same flow."""
        engine = self.engine
        return Run(engine.flow, engine.storage.flow_detail, engine.storage.backend)

    def crashed(self) -> Run:
        """Return another engine for the present records of the store, as after a crash."""
        storage = self.engine.storage
        connection = storage.backend.get_connection()
        return Run(self.engine.flow, connection.get_flow_details(storage.flow_uuid).copy())

    @property
    def states(self) -> dict[str, str]:
        storage = self.engine.storage
        found = storage.get_atoms_states(self.engine.compilation.plan.by_name)
        return {name: state for name, (state, _) in found.items()}


def wide() -> Any:
    return LINE("f").add(Plain("a"), WIDE("w").add(Plain("b"), Plain("c"), Plain("d")))


def begun(run: Run) -> Hands:
    """Wait until `a` is done, `b` and `d` run, and `c` waits."""
    run.hands.run("a")
    for name in "bd":
        run.hands.start_one(name)
    until(lambda: "c" in run.hands.waiting)
    return run.hands


def test_cancel_of_flow_withdraws_waiting_and_reverts_finished_tasks() -> None:
    with Run(wide()) as run:
        hands = begun(run)
        assert run.engine.cancel(reason="no more money") is True
        assert sorted(hands.told) == ["b", "d"] and not hands.waiting
        assert run.engine.cancel() is True
        hands.end("b", exceptions.Cancelled("stopped"))
        hands.end("d", "all the same")
    assert run.states == {"a": "REVERTED", "b": "REVERTED", "c": "PENDING", "d": "REVERTED"}
    assert run.engine.storage.get_flow_state() == states.REVERTED
    assert isinstance(run.error, exceptions.Cancelled) and run.error.cause is None
    assert str(run.error) == "Flow 'f' was cancelled: no more money"
    assert hands.submitted.count("+c") == 1
    assert run.engine.cancel() is False, "there is no run any more"


def test_cancelled_flow_can_be_run_again() -> None:
    with Run(wide()) as run:
        hands = begun(run)
        run.engine.cancel()
        hands.end("b", exceptions.Cancelled("stopped"))
        hands.end("d")
    with run.again() as again:
        begun(again)
        for name in "bd":
            again.hands.end(name)
        again.hands.run("c")
    assert again.error is None and set(again.states.values()) == {"SUCCESS"}


def test_cancel_of_one_task_lets_running_tasks_finish_and_reverts() -> None:
    with Run(wide()) as run:
        hands = begun(run)
        run.engine.cancel("b")
        hands.end("b", exceptions.Cancelled("stopped"))
        until(lambda: run.states["b"] == "REVERTED")
        assert not hands.waiting and "d" in hands.running
        hands.end("d")
    assert set(hands.told) == {"b"}
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.states == {"a": "REVERTED", "b": "REVERTED", "c": "PENDING", "d": "REVERTED"}


def test_cancel_of_task_not_yet_started_prevents_its_start() -> None:
    with Run(LINE("f").add(Plain("a"), Plain("b"))) as run:
        run.hands.start_one("a")
        run.engine.cancel("b")
        run.hands.end("a")
    assert run.hands.submitted == ["+a", "-a"] and not run.hands.told
    assert isinstance(run.error, exceptions.Cancelled)


def test_cancel_of_finished_task_has_no_effect() -> None:
    with Run(LINE("f").add(Plain("a"), Plain("b"))) as run:
        run.hands.run("a")
        run.hands.start_one("b")
        run.engine.cancel("a")
        run.hands.end("b")
    assert run.error is None and set(run.states.values()) == {"SUCCESS"}


def inside() -> Any:
    inner = WIDE("inner", retry=retry.Times(9, "again")).add(Plain("b"), Plain("c"))
    return WIDE("f").add(inner, Plain("d"))


@pytest.mark.parametrize("what", ["inner", "again", "flow", "retry", "both"])
def test_cancel_of_subflow_cancels_all_its_tasks(what: str) -> None:
    """The argument is its name, its retry controller, the flow, or its tasks."""
    flow = inside()
    inner = next(item for item in flow if item.name == "inner")
    chosen: dict[str, tuple[Any, ...]] = {
        "flow": (inner,),
        "retry": (inner.retry,),
        "both": ("b", next(item for item in inner if item.name == "c")),
    }
    with Run(flow) as run:
        for name in "bcd":
            run.hands.start_one(name)
        run.engine.cancel(*chosen.get(what, (what,)))
        assert sorted(set(run.hands.told)) == ["b", "c"]
        for name in "bc":
            run.hands.end(name, exceptions.Cancelled("stopped"))
        run.hands.end("d")
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.engine.storage.get_flow_state() == states.REVERTED


def test_cancel_rejects_unknown_atoms_and_wrong_types() -> None:
    flow = inside()
    engine = Run(flow).engine
    for atoms, error, text in (
        (["innr"], exceptions.NotFound, r"Flow 'f' has no atom or flow 'innr' \(did you mean 'inn"),
        ([LINE("x")], exceptions.NotFound, "has no atom or flow 'x'"),
        (["b", Plain("x")], exceptions.NotFound, "has no atom or flow 'x'"),
        ([7], TypeError, "must be tasks, retries, flows or their names, got 7"),
    ):
        with pytest.raises(error, match=text):
            engine.cancel(*atoms)
    with pytest.raises(TypeError, match="reason"):
        engine.cancel(reason=7)
    assert engine.cancel("b") is False
    fresh = engines.load(flow)
    fresh = type(fresh)(flow, base.create_flow_detail(flow))
    with pytest.raises(exceptions.InvalidState, match="before it is cancelled"):
        fresh.cancel()


class Asked(retry.AlwaysRevert):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[str] = []

    def on_failure(self, history: Any) -> str:
        self.asked += [name for name, _ in history.outcomes_iter(len(history) - 1)]
        return retry.RETRY


def test_retry_controller_is_not_consulted_about_cancelled_task() -> None:
    """The cancellation is requested by this engine, or by another component."""
    for cancels in (True, False):
        asked = Asked("r")
        with Run(LINE("f", retry=asked).add(Plain("a"))) as run:
            run.hands.start_one("a")
            if cancels:
                run.engine.cancel("a")
            run.hands.end("a", exceptions.Cancelled("ended"))
        assert asked.asked == []
        assert isinstance(run.error, exceptions.Cancelled)
        assert run.engine.storage.get_flow_state() == states.REVERTED
        assert run.hands.submitted == ["+a", "-a"]


def test_cancel_overrides_decision_of_retry_controller() -> None:
    """The retry controller is consulted, because the failure is not a cancellation."""
    asked = Asked("r")
    with Run(LINE("f", retry=asked).add(Plain("a"))) as run:
        run.hands.start_one("a")
        run.engine.cancel()
        run.hands.end("a", OSError("no disk"))
    assert asked.asked == ["a"]
    assert isinstance(run.error, exceptions.Cancelled)
    assert isinstance(run.error.cause, OSError) and run.error.__cause__ is run.error.cause
    assert run.hands.submitted == ["+a", "-a"]


def test_cancel_during_retry_backoff_ends_the_run() -> None:
    waits = retry.Times(5, "r", backoff=1000)
    with Run(LINE("f", retry=waits).add(Plain("a"))) as run:
        run.hands.run("a", OSError())
        until(lambda: run.states["r"] == "RETRYING")
        run.engine.cancel("a")  # the task failed and waits for a retry
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.states == {"r": "REVERTED", "a": "PENDING"} or set(run.states.values()) == {
        "REVERTED"
    }


def test_cancel_with_never_resolve_reverts_nothing() -> None:
    with Run(wide(), never_resolve=True) as run:
        hands = begun(run)
        run.engine.cancel("b")
        run.engine.cancel("d")
        hands.end("b", exceptions.Cancelled("stopped"))
        hands.end("d")
    assert set(hands.told) == {"b", "d"}
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.states == {"a": "SUCCESS", "b": "FAILURE", "c": "PENDING", "d": "SUCCESS"}
    run.engine.reset(failed_only=True)
    assert run.states["b"] == "PENDING"


class Boom(task.Task):
    def execute(self) -> None:
        raise ValueError(self.name)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_cancel_during_revert_keeps_the_original_failure(kind: str) -> None:
    """A flow that failed before it was cancelled raises that failure."""
    gate = engine_threads.Gate()
    slow = task.FunctorTask(lambda: None, revert=lambda **_: gate(), name="a")
    engine = engines.load(LINE("f").add(slow, Boom("b")), engine=kind)
    with engine_threads.Running(engine) as run:
        assert gate.inside.wait(60)
        assert engine.cancel() is True
        gate.let.set()
    assert isinstance(run.error, ValueError) and str(run.error) == "b"
    assert engine.storage.get_flow_state() == states.REVERTED


# -- suspensions, deadlines, end of the process ----------------------------------------------------


@pytest.mark.parametrize("order", ["cancel suspend", "suspend cancel", "suspend cancel one"])
def test_cancel_and_suspend_together_revert_on_resume(order: str) -> None:
    """No further task starts, and the next engine reverts."""
    with Run(wide(), backend=_memory.MemoryBackend()) as run:
        hands = begun(run)
        for what in order.split()[:2]:
            if what == "suspend":
                run.engine.suspend()
            elif order.endswith("one"):
                run.engine.cancel("b", reason="why not")
            else:
                run.engine.cancel(reason="why not")
        assert "b" in hands.told
        hands.end("b", exceptions.Cancelled("stopped"))
        hands.end("d")
    assert run.error is None
    assert run.engine.storage.get_flow_state() == states.SUSPENDED
    with run.again() as again:
        pass
    assert str(again.error) == "Flow 'f' was cancelled: why not"
    assert sorted(again.hands.submitted) == ["-a", "-b", "-d"]
    assert again.engine.storage.get_flow_state() == states.REVERTED


def test_resume_after_crash_during_cancel_continues_reverting() -> None:
    """The next engine reverts, and does not execute the interrupted tasks."""
    with Run(wide(), backend=_memory.MemoryBackend()) as run:
        hands = begun(run)
        run.engine.cancel("b", reason="why not")
        until(lambda: run.engine.storage.flow_meta)
        hands.end("b", exceptions.Cancelled("stopped"))
        until(lambda: run.states["b"] == "REVERTED")
        again = run.crashed()  # `d` still runs
        hands.end("d")
    with again:
        pass
    assert str(again.error) == "Flow 'f' was cancelled: why not"
    assert not [name for name in again.hands.submitted if name[0] == "+"]
    assert again.states == {"a": "REVERTED", "b": "REVERTED", "c": "PENDING", "d": "REVERTED"}
    assert again.engine.storage.get_execute_failures()["d"].check(exceptions.Cancelled)


class Turned(clocks.Clock):
    """System clock with an adjustable offset."""

    turned = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.turned


def test_cancel_at_resume_reverts_interrupted_task_without_executing() -> None:
    """The task is cancelled before the next engine starts it."""
    with Run(wide(), backend=_memory.MemoryBackend()) as run:
        hands = begun(run)
        again = run.crashed()
        run.engine.cancel()
        for name in "bd":
            hands.end(name)
    again.engine.notifier.register(states.RUNNING, lambda state, details: again.engine.cancel("b"))
    with again:
        for name in "dc":  # not cancelled
            again.hands.run(name)
    assert "+b" not in again.hands.submitted and "-b" in again.hands.submitted
    assert again.engine.storage.get_execute_failures()["b"].check(exceptions.Cancelled)
    assert isinstance(again.error, exceptions.Cancelled)


REVERTED: list[Any] = []


@task.task
def interrupt() -> None:
    raise KeyboardInterrupt


@interrupt.revert
def undo_interrupted(result: Any) -> None:
    REVERTED.append(result)


def test_cancel_of_interrupted_function_task_calls_its_revert() -> None:
    """Whether the task took effect is unknown."""
    REVERTED.clear()
    engine = engines.load(LINE("f").add(interrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert [result.check(exceptions.Interrupted) for result in REVERTED] == [exceptions.Interrupted]


@pytest.mark.parametrize("first", ["cancel", "deadline"])
def test_first_of_cancel_and_deadline_defines_the_error(first: str) -> None:
    """The running task is notified in both cases."""
    clock = Turned()
    run = Run(wide(), clock=clock)
    run.options = {"deadline": 5000}
    with run:
        hands = begun(run)
        if first == "deadline":
            clock.turned += 9000
            run.hands.end("d")
            until(lambda: run.engine.storage.flow_meta)
        run.engine.cancel("b")
        if first == "cancel":
            until(lambda: run.engine.storage.flow_meta)
            clock.turned += 9000
            hands.end("d")
        hands.end("b", exceptions.Cancelled("stopped"))
    wanted = exceptions.Cancelled if first == "cancel" else exceptions.DeadlineExceeded
    assert type(run.error) is wanted and run.error.cause is None
    assert "b" in hands.told


# -- callers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("state", ["RUNNING", "SUCCESS"])
def test_cancel_by_task_listener_prevents_further_starts(kind: str, state: str) -> None:
    """The listener is called in the thread of the run loop."""
    engine = engines.load(LINE("f").add(*[Plain(f"t{n}") for n in range(5)]), engine=kind)

    def heard(entered: str, details: dict[str, Any]) -> None:
        if details["task_name"] == "t2":
            engine.cancel(reason="heard enough")

    engine.atom_notifier.register(state, heard)
    with pytest.raises(exceptions.Cancelled, match="heard enough"):
        engine.run()
    ran = engine.storage.get_attempt("t2")
    assert (ran is None or not ran.ended) if state == "RUNNING" else (ran and ran.ended)
    assert engine.storage.get_attempt("t3") is None or state == "SUCCESS"
    assert engine.storage.get_flow_state() == states.REVERTED


def test_cancel_by_flow_listener_prevents_any_start() -> None:
    engine = engines.load(LINE("f").add(Plain("a")))
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_attempt("a") is None


@pytest.mark.parametrize("steps", range(6))
def test_cancel_between_steps_of_run_iter_reverts(steps: int) -> None:
    engine = engines.load(LINE("f").add(Plain("a"), Plain("b")))
    found: list[str] = []
    with pytest.raises(exceptions.Cancelled):
        for state in engine.run_iter():
            found.append(state)
            if len(found) == steps + 1:
                assert engine.cancel()
    assert found[-1] == states.REVERTED


def test_cancel_during_arun_reverts() -> None:
    gate = engine_threads.Gate()
    waiting = task.FunctorTask(gate, "waits")
    engine = engines.load(LINE("f").add(Plain("a"), waiting, Plain("b")), engine="parallel")

    async def main() -> None:
        running = asyncio.ensure_future(engine.arun())
        await asyncio.to_thread(gate.inside.wait, 60)
        engine.cancel()
        gate.let.set()
        await running

    with pytest.raises(exceptions.Cancelled):
        asyncio.run(main())
    assert engine.storage.get_flow_state() == states.REVERTED


def test_cancel_while_waiting_for_lease_leaves_other_run_alone() -> None:
    backend = _memory.MemoryBackend()
    with Run(wide(), backend=backend) as first:
        hands = begun(first)
        second = Run(
            first.engine.flow,
            first.engine.storage.flow_detail.copy(),
            backend,
            on_busy="wait",
        )
        with second:
            until(lambda: second.engine.cancel(reason="never mind"))
        assert isinstance(second.error, exceptions.Cancelled)
        assert "another process runs and which was not changed" in str(second.error)
        assert not second.hands.submitted
        for name in "bd":
            hands.end(name)
        hands.run("c")
    assert first.error is None


class Hasty(executors.SerialTaskExecutor):
    """Executor that cancels between the last check of the loop and the start."""

    engine: Any = None

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        if call.task.name == "b":
            self.engine.cancel()
        super().submit(call, done)


def test_task_cancelled_just_before_submit_does_not_run() -> None:
    flow = LINE("f").add(Plain("a"), Plain("b"))
    hasty = Hasty()
    detail = base.create_flow_detail(flow)
    engine: Any = _local.ParallelActionEngine(flow, detail, None, {"executor": hasty})
    hasty.engine = engine
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_atom_state("a") == states.REVERTED
    assert engine.storage.get_atom_state("b") == states.PENDING
    assert not engine.storage.get_execute_failures()


# -- Maps ------------------------------------------------------------------------------------------


def mapped(**options: Any) -> Any:
    class Item(task.Task):
        def execute(self, item: int) -> int:
            return item

    return LINE("f").add(task.Map(Item("i"), name="m", **options), Plain("z"))


@pytest.mark.parametrize("policy", ["fail", "collect"])
@pytest.mark.parametrize(
    "ends",
    [exceptions.Cancelled("stopped"), OSError("no disk"), "well"],
    ids=["cancelled", "error", "success"],
)
def test_cancel_of_map_cancels_running_items_and_reverts(policy: str, ends: Any) -> None:
    run = Run(mapped(max_in_flight=3, on_item_failure=policy))
    run.engine.storage.inject({"items": list(range(9))})
    with run:
        hands = run.hands
        hands.run("m[0]", 7)
        for n in (1, 2):
            hands.start_one(f"m[{n}]")
        until(lambda: "m[3]" in hands.waiting)
        run.engine.cancel("m")
        assert sorted(set(hands.told)) == ["m[1]", "m[2]"]
        hands.end("m[1]", ends)
        hands.end("m[2]", 5)
    assert isinstance(run.error, exceptions.Cancelled)
    assert (run.error.cause is None) == (not isinstance(ends, OSError) or policy == "collect")
    assert run.engine.storage.get_flow_state() == states.REVERTED
    executed = [name for name in hands.submitted if name[0] == "+"]
    assert executed == [f"+m[{n}]" for n in range(4)]
    failure = run.engine.storage.get_execute_failures()["m"]
    told = isinstance(ends, OSError) and policy == "fail"
    assert failure.check(OSError if told else exceptions.Cancelled)


def test_item_cancelled_externally_ends_map_that_collects_failures() -> None:
    run = Run(mapped(on_item_failure="collect"))
    run.engine.storage.inject({"items": [1, 2]})
    with run:
        for n in (0, 1):
            run.hands.start_one(f"m[{n}]")
        run.hands.end("m[0]", OSError("collected"))
        run.hands.end("m[1]", exceptions.Cancelled("by an operator"))
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.engine.storage.get_flow_state() == states.REVERTED


def test_cancelled_map_resumes_reverting_without_executing_items(tmp_path: Any) -> None:
    run = Run(mapped(max_in_flight=1), backend=_memory.MemoryBackend())
    run.engine.storage.inject({"items": [1, 2, 3]})
    with run:
        run.hands.run("m[0]", 1)
        run.hands.start_one("m[1]")
        run.engine.cancel()
        until(lambda: run.engine.storage.flow_meta)
        again = run.crashed()
        run.hands.end("m[1]", 2)
    with again:
        pass
    assert again.hands.submitted == ["-m[1]", "-m[0]"], "the second item may have run"
    assert isinstance(again.error, exceptions.Cancelled)


def test_interrupted_item_is_reverted_if_another_one_fails_in_the_next_run() -> None:
    run = Run(mapped(max_in_flight=2), backend=_memory.MemoryBackend())
    run.engine.storage.inject({"items": [1, 2, 3]})
    with run:
        run.hands.start_one("m[0]")
        run.hands.start_one("m[1]")
        again = run.crashed()
        run.engine.cancel()  # Only the copy of the records continues.
        run.hands.end("m[0]", 1)
        run.hands.end("m[1]", 2)
    with again:
        again.hands.run("m[1]", OSError("no"))
    assert {"-m[0]", "-m[1]"} <= set(again.hands.submitted)
    assert isinstance(again.error, OSError)


# -- races -----------------------------------------------------------------------------------------


def test_accepted_cancel_after_suspend_is_always_stored() -> None:
    """If `cancel` returns True, it takes effect, even if the run is about to end."""
    heard = 0
    for n in range(100):
        flow = LINE("f", retry=retry.Times(5, backoff=1000)).add(Boom("a"))
        engine = engines.load(flow)
        with engine_threads.Running(engine):
            until(lambda e=engine: e.storage.get_flow_state() == states.RUNNING)
            engine.suspend()
            if n % 3 == 0:
                time.sleep(random.random() / 5000)
            cancelled = engine.cancel()
        heard += cancelled
        assert cancelled == ("cancelled" in engine.storage.flow_meta)
    assert heard


def test_cancelled_task_behind_decider_is_reverted() -> None:
    flow = graph_flow.Flow("f")
    a, b, c = Plain("a"), Plain("b"), Plain("c")
    flow.add(a, b, c)
    flow.link(a, c, decider=lambda history: True)
    with Run(flow) as run:
        for name in "ab":
            run.hands.start_one(name)
        run.hands.end("a")
        run.hands.start_one("c")
        run.engine.cancel("c")
        run.hands.end("c", exceptions.Cancelled("stopped"))
        run.hands.end("b")
    assert isinstance(run.error, exceptions.Cancelled)
    assert set(run.states.values()) == {"REVERTED"}
