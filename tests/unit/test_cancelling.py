"""`Engine.cancel`: what starts no more, who is told, what is reverted, and what `run` raises."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support import beside
from tests.support.workers import until
from wbengine import _clock, engines, exceptions, invocation, retry, states, task
from wbengine.engines import local
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import base
from wbengine.persistence.backends import memory
from wbengine.runtime import executors
from wbengine.types import failure as ft

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow


class Hands(invocation.TaskExecutor):
    """Everything in it is started, told and ended by hand."""

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


class Run(beside.Running):
    """An engine of `Hands` at work in a thread."""

    def __init__(self, flow: Any, detail: Any = None, backend: Any = None, **options: Any) -> None:
        self.hands = Hands()
        detail = detail or base.create_flow_detail(flow, backend=backend)
        options["executor"] = self.hands
        super().__init__(local.ParallelActionEngine(flow, detail, backend, options))
        self.engine.compile()

    def again(self) -> Run:
        """What goes on with the flow: another engine, in another process maybe."""
        engine = self.engine
        return Run(engine.flow, engine.storage.flow_detail, engine.storage.backend)

    @property
    def states(self) -> dict[str, str]:
        storage = self.engine.storage
        found = storage.get_atoms_states(self.engine.compilation.plan.by_name)
        return {name: state for name, (state, _) in found.items()}


def wide() -> Any:
    return LINE("f").add(Plain("a"), WIDE("w").add(Plain("b"), Plain("c"), Plain("d")))


def begun(run: Run) -> Hands:
    """`a` is done, `b` and `d` run, `c` waits."""
    run.hands.start_one("a")
    run.hands.end("a")
    for name in "bd":
        run.hands.start_one(name)
    until(lambda: "c" in run.hands.waiting)
    return run.hands


def test_a_whole_flow_is_cancelled() -> None:
    """What waits is taken back, all that runs is told, and everything is reverted."""
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


def test_a_flow_that_was_cancelled_starts_anew() -> None:
    with Run(wide()) as run:
        hands = begun(run)
        run.engine.cancel()
        hands.end("b", exceptions.Cancelled("stopped"))
        hands.end("d")
    again = Run(run.engine.flow, run.engine.storage.flow_detail)
    with again:
        begun(again)
        for name in "bd":
            again.hands.end(name)
        again.hands.start_one("c")
        again.hands.end("c")
    assert again.error is None and set(again.states.values()) == {"SUCCESS"}


def test_one_task_is_cancelled() -> None:
    """Nobody else is told, what else runs finishes; nothing more starts."""
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


def test_a_task_that_waits_for_its_turn_is_cancelled() -> None:
    """It never starts, and what ran is undone."""
    with Run(LINE("f").add(Plain("a"), Plain("b"))) as run:
        run.hands.start_one("a")
        run.engine.cancel("b")
        run.hands.end("a")
    assert run.hands.submitted == ["+a", "-a"] and not run.hands.told
    assert isinstance(run.error, exceptions.Cancelled)


def test_what_has_ended_is_left_alone() -> None:
    with Run(LINE("f").add(Plain("a"), Plain("b"))) as run:
        run.hands.start_one("a")
        run.hands.end("a")
        run.hands.start_one("b")
        run.engine.cancel("a")
        run.hands.end("b")
    assert run.error is None and set(run.states.values()) == {"SUCCESS"}


def inside() -> Any:
    inner = WIDE("inner", retry=retry.Times(9, "again")).add(Plain("b"), Plain("c"))
    return WIDE("f").add(inner, Plain("d"))


@pytest.mark.parametrize("what", ["inner", "again", "flow", "retry", "both"])
def test_a_flow_inside_is_cancelled(what: str) -> None:
    """By its name, its retry, itself, or task by task: all that is in it."""
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


def test_wrong_calls() -> None:
    flow = inside()
    engine = Run(flow).engine
    with pytest.raises(exceptions.NotFound, match=r"Flow 'f' has no 'innr' \(did you mean 'inner'"):
        engine.cancel("innr")
    with pytest.raises(exceptions.NotFound, match="has no 'x'"):
        engine.cancel(LINE("x"))
    with pytest.raises(exceptions.NotFound, match="has no 'x'"):
        engine.cancel("b", Plain("x"))
    with pytest.raises(TypeError, match="a task, a retry, a flow, or its name, not 7"):
        engine.cancel(7)
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


def test_no_retry_is_asked_about_what_was_cancelled() -> None:
    """Neither by us nor by somebody who ended it elsewhere."""
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


def test_a_retry_that_wants_to_go_on_cannot() -> None:
    """It is asked about a failure of its own kind, but the flow is given up."""
    asked = Asked("r")
    with Run(LINE("f", retry=asked).add(Plain("a"))) as run:
        run.hands.start_one("a")
        run.engine.cancel()
        run.hands.end("a", OSError("no disk"))
    assert asked.asked == ["a"]
    assert isinstance(run.error, exceptions.Cancelled)
    assert isinstance(run.error.cause, OSError) and run.error.__cause__ is run.error.cause
    assert run.hands.submitted == ["+a", "-a"]


def test_a_flow_that_waits_to_try_again_is_cancelled() -> None:
    waits = retry.Times(5, "r", backoff=1000)
    with Run(LINE("f", retry=waits).add(Plain("a"))) as run:
        run.hands.start_one("a")
        run.hands.end("a", OSError())
        until(lambda: run.states["r"] == "RETRYING")
        run.engine.cancel("a")  # it failed, but it is going to be tried again
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.states == {"r": "REVERTED", "a": "PENDING"} or set(run.states.values()) == {
        "REVERTED"
    }


def test_with_never_resolve_nothing_is_reverted() -> None:
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


class Undone(Plain):
    """Its reversion goes on for as long as the test wants."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def revert(self, result: Any, flow_failures: Any) -> None:
        self.begun.set()
        assert self.go_on.wait(60)


class Boom(task.Task):
    def execute(self) -> None:
        raise ValueError(self.name)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_what_is_being_reverted_goes_on(kind: str) -> None:
    """And a flow that failed by itself fails with that."""
    slow = Undone("a")
    engine = engines.load(LINE("f").add(slow, Boom("b")), engine=kind)
    with beside.Running(engine) as run:
        assert slow.begun.wait(60)
        assert engine.cancel() is True
        slow.go_on.set()
    assert isinstance(run.error, ValueError) and str(run.error) == "b"
    assert engine.storage.get_flow_state() == states.REVERTED


# -- and suspensions, deadlines, the end of the process --------------------------------------------


@pytest.mark.parametrize("order", ["cancel suspend", "suspend cancel", "suspend cancel one"])
def test_cancelled_and_suspended(order: str) -> None:
    """Both are done: nothing more starts now, and whoever goes on reverts."""
    with Run(wide(), backend=memory.MemoryBackend()) as run:
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


def test_an_engine_that_died_while_a_cancelled_flow_was_reverted() -> None:
    """Who goes on reverts, and executes nothing that ran then."""
    with Run(wide(), backend=memory.MemoryBackend()) as run:
        hands = begun(run)
        run.engine.cancel("b", reason="why not")
        until(lambda: run.engine.storage.flow_meta)
        hands.end("b", exceptions.Cancelled("stopped"))
        until(lambda: run.states["b"] == "REVERTED")
        # As it is in the store now: `d` still runs.
        kept = run.engine.storage.backend.get_connection().get_flow_details(
            run.engine.storage.flow_uuid
        )
        again = Run(run.engine.flow, kept.copy())
        hands.end("d")
    with again:
        pass
    assert str(again.error) == "Flow 'f' was cancelled: why not"
    assert not [name for name in again.hands.submitted if name[0] == "+"]
    assert again.states == {"a": "REVERTED", "b": "REVERTED", "c": "PENDING", "d": "REVERTED"}
    assert again.engine.storage.get_execute_failures()["d"].check(exceptions.Cancelled)


class Turned(_clock.Clock):
    """The system's, but for how far it was turned."""

    turned = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.turned


def test_what_ran_when_its_engine_died_does_not_run_again() -> None:
    """If it is cancelled before it begins to: it is only undone."""
    with Run(wide(), backend=memory.MemoryBackend()) as run:
        hands = begun(run)
        kept = run.engine.storage.backend.get_connection().get_flow_details(
            run.engine.storage.flow_uuid
        )
        again = Run(run.engine.flow, kept.copy())
        run.engine.cancel()
        for name in "bd":
            hands.end(name)
    again.engine.notifier.register(states.RUNNING, lambda state, details: again.engine.cancel("b"))
    with again:
        again.hands.start_one("d")  # nobody cancelled that
        again.hands.start_one("c")  # nor that
        for name in "cd":
            again.hands.end(name)
    assert "+b" not in again.hands.submitted and "-b" in again.hands.submitted
    assert again.engine.storage.get_execute_failures()["b"].check(exceptions.Cancelled)
    assert isinstance(again.error, exceptions.Cancelled)


@pytest.mark.parametrize("first", ["cancel", "deadline"])
def test_cancelled_before_time_is_up_and_after(first: str) -> None:
    """What came first is the reason; who is cancelled is told in either case."""
    run = Run(wide())
    clock = run.engine._clock = Turned()
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


# -- from anywhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("state", ["RUNNING", "SUCCESS"])
def test_cancelled_by_a_listener(kind: str, state: str) -> None:
    """Of a task, in the run loop's own thread: nothing starts after that."""
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


def test_cancelled_by_who_hears_that_the_flow_runs() -> None:
    engine = engines.load(LINE("f").add(Plain("a")))
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_attempt("a") is None


@pytest.mark.parametrize("steps", range(6))
def test_cancelled_at_each_state_of_the_loop(steps: int) -> None:
    """Between two steps of `run_iter`."""
    engine = engines.load(LINE("f").add(Plain("a"), Plain("b")))
    found: list[str] = []
    with pytest.raises(exceptions.Cancelled):
        for state in engine.run_iter():
            found.append(state)
            if len(found) == steps + 1:
                assert engine.cancel()
    assert found[-1] == states.REVERTED


def test_cancelled_while_it_is_awaited() -> None:
    slow = Plain("a")
    engine = engines.load(LINE("f").add(slow, Plain("b")), engine="parallel")

    async def main() -> None:
        engine.atom_notifier.register(states.SUCCESS, lambda state, details: heard.set())
        running = asyncio.ensure_future(engine.arun())
        await asyncio.to_thread(heard.wait, 60)
        engine.cancel()
        await running

    heard = threading.Event()
    try:
        asyncio.run(main())
    except exceptions.Cancelled:
        assert engine.storage.get_flow_state() == states.REVERTED
    else:
        assert engine.storage.get_flow_state() == states.SUCCESS, "it was too late"


def test_cancelled_while_it_waits_for_somebody_else() -> None:
    """Nothing of the other's run is touched."""
    backend = memory.MemoryBackend()
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
        assert "run by somebody else and was not changed" in str(second.error)
        assert not second.hands.submitted
        for name in "bd":
            hands.end(name)
        hands.start_one("c")
        hands.end("c")
    assert first.error is None


class Hasty(executors.SerialTaskExecutor):
    """Somebody cancels between the loop's last look and the start."""

    engine: Any = None

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        if call.task.name == "b":
            self.engine.cancel()
        super().submit(call, done)


def test_what_is_cancelled_just_before_it_starts_never_ran() -> None:
    """There is nothing to undo."""
    flow = LINE("f").add(Plain("a"), Plain("b"))
    hasty = Hasty()
    detail = base.create_flow_detail(flow)
    engine: Any = local.ParallelActionEngine(flow, detail, None, {"executor": hasty})
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
@pytest.mark.parametrize("ends", [exceptions.Cancelled("stopped"), OSError("no disk"), "well"])
def test_a_map_is_cancelled_item_by_item(policy: str, ends: Any) -> None:
    """The items that run are told, no more are handed out, and what finished is undone."""
    run = Run(mapped(max_in_flight=3, on_item_failure=policy))
    run.engine.storage.inject({"items": list(range(9))})
    with run:
        hands = run.hands
        for n in (0, 1):
            hands.start_one(f"m[{n}]")
        hands.end("m[0]", 7)
        hands.start_one("m[2]")
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


def test_an_item_cancelled_elsewhere_ends_a_map_that_collects() -> None:
    run = Run(mapped(on_item_failure="collect"))
    run.engine.storage.inject({"items": [1, 2]})
    with run:
        for n in (0, 1):
            run.hands.start_one(f"m[{n}]")
        run.hands.end("m[0]", OSError("collected"))
        run.hands.end("m[1]", exceptions.Cancelled("by an operator"))
    assert isinstance(run.error, exceptions.Cancelled)
    assert run.engine.storage.get_flow_state() == states.REVERTED


def test_a_cancelled_map_goes_on_reverting(tmp_path: Any) -> None:
    """In another engine: no item is executed again."""
    run = Run(mapped(max_in_flight=1), backend=memory.MemoryBackend())
    run.engine.storage.inject({"items": [1, 2, 3]})
    with run:
        run.hands.start_one("m[0]")
        run.hands.end("m[0]", 1)
        run.hands.start_one("m[1]")
        run.engine.cancel()
        until(lambda: run.engine.storage.flow_meta)
        kept = run.engine.storage.backend.get_connection().get_flow_details(
            run.engine.storage.flow_uuid
        )
        again = Run(mapped(max_in_flight=1), kept.copy())
        run.hands.end("m[1]", 2)
    with again:
        pass
    assert again.hands.submitted == ["-m[0]"]
    assert isinstance(again.error, exceptions.Cancelled)


# -- races -----------------------------------------------------------------------------------------


def test_suspended_and_then_cancelled_at_any_moment() -> None:
    """Who is told that he is heard is heard, also if the run is about to end."""
    heard = 0
    for n in range(100):
        flow = LINE("f", retry=retry.Times(5, backoff=1000)).add(Boom("a"))
        engine = engines.load(flow)
        with beside.Running(engine):
            until(lambda e=engine: e.storage.get_flow_state() == states.RUNNING)
            engine.suspend()
            if n % 3 == 0:
                time.sleep(random.random() / 5000)
            cancelled = engine.cancel()
        heard += cancelled
        assert cancelled == ("cancelled" in engine.storage.flow_meta)
    assert heard


def test_a_task_is_undone_whatever_it_was_waiting_for() -> None:
    """A vote that nobody answered is called off."""
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
