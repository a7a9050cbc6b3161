"""Deadlines, suspension, interruption and reset of runs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import queue
import signal
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.support import engine_threads
from tests.support import sample_tasks as samples
from tests.support.reading import read_flow
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import clocks, manual_clock
from wbengine._runtime import executors
from wbengine._runtime import run as run_module
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends, models
from wbengine.types import failure as ft

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow
NEAR = {"serial": {}, "threads": {"engine": "parallel", "max_workers": 2}}
DONE, GONE, LEFT = states.SUCCESS, states.REVERTED, states.PENDING


@pytest.fixture(params=NEAR)
def near(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of engines whose tasks share memory with the test."""
    return NEAR[request.param]  # type: ignore[return-value]


class ClockTask(task.Task):
    """Task that advances a manual clock by a number of seconds."""

    def __init__(
        self, name: str, clock: manual_clock.ManualClock, seconds: float = 1, **also: Any
    ) -> None:
        super().__init__(name)
        self.clock, self.seconds, self.log = clock, seconds, also.get("log", [])
        self.fails = also.get("fails", False)

    def execute(self) -> str:
        self.log.append(f"+{self.name}")
        self.clock.advance(self.seconds)
        if self.fails:
            raise LookupError(self.name)
        return self.name

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> None:
        self.log.append(f"-{self.name}")
        self.clock.advance(self.seconds)


def load(flow: Any, clock: clocks.Clock | None = None, **options: Any) -> Any:
    return engines.load(flow, clock=clock, **options)


def atom_states(engine: base.Engine, *names: str) -> list[str | None]:
    return [engine.storage.get_atom_state(name) for name in names]


# -- deadlines -----------------------------------------------------------------------------------


def test_last_task_that_ends_after_deadline_is_reverted() -> None:
    """The flow was unfinished at the deadline, although the clock was read only later."""
    clock, log = manual_clock.ManualClock(), []
    engine = load(LINE("f").add(*[ClockTask(name, clock, log=log) for name in "ab"]), clock)
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=1.5)
    assert log == ["+a", "+b", "-b", "-a"]
    assert engine.storage.get_flow_state() == states.REVERTED
    engine.run(deadline=2.5)
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_deadline_within_batch_starts_no_further_task() -> None:
    """Thousands of tasks are submitted together and started one by one."""
    clock, log = manual_clock.ManualClock(), []
    engine = load(
        WIDE("f").add(*[ClockTask(f"t{n}", clock, 1, log=log) for n in range(5000)]), clock
    )
    with pytest.raises(exceptions.DeadlineExceeded):
        engine.run(deadline=300)
    assert len([entry for entry in log if entry[0] == "+"]) == 300
    assert len([entry for entry in log if entry[0] == "-"]) == 300
    final_states = [
        state for state, _ in engine.storage.get_atoms_states(f"t{n}" for n in range(5000)).values()
    ]
    assert final_states.count(GONE) == 300 and final_states.count(LEFT) == 4700
    assert engine.statistics["withdrawn"] == -300 % run_module.MAX_ATOMS_PER_SHORT_ITERATION


@pytest.mark.parametrize("name", ["threads", "processes", "memory"])
def test_deadline_withdraws_waiting_tasks(name: str, tmp_path: Path) -> None:
    """With one slot, one task runs at the deadline and the other never starts."""
    started, release = tmp_path / "started", tmp_path / "release"
    flow = WIDE("f").add(*[samples.WaitFor(name=name, provides=name) for name in "ab"])
    store = {"started": str(started), "release": str(release)}

    class Clock(clocks.Clock):
        def monotonic(self) -> float:
            return time.monotonic() + 1000 * started.exists()

    with engine_options(name, tmp_path, samples, slots=1) as options:
        engine = load(flow, Clock(), store=store, **options)
        engine.atom_notifier.register(
            states.PENDING, lambda state, details: release.write_text("now")
        )
        with pytest.raises(exceptions.DeadlineExceeded):
            engine.run(0.05, deadline=1000)
    assert sorted(map(str, atom_states(engine, "a", "b"))) == [LEFT, GONE]
    assert engine.statistics["withdrawn"] == 1


def test_empty_flow_succeeds_with_zero_deadline(near: dict[str, Any]) -> None:
    load(LINE("empty"), **near).run(deadline=0)


def test_resumed_reversion_after_deadline_raises_deadline_exceeded() -> None:
    for restored in (False, True):
        clock, log = manual_clock.ManualClock(), []

        def flow(clock: Any = clock, log: list[str] = log) -> Any:
            return LINE("f").add(*[ClockTask(name, clock, log=log) for name in "abc"])

        with backends.backend("memory") as backend:
            engine = load(flow(), clock, backend=backend)
            engine.atom_notifier.register(
                states.REVERTED, lambda _, details, engine=engine: engine.suspend()
            )
            engine.run(deadline=1.5)
            assert engine.storage.get_flow_state() == states.SUSPENDED
            engine.atom_notifier.reset()
            if restored:
                detail = read_flow(backend, engine.storage.flow_uuid)
                engine = load(flow(), clock, backend=backend, flow_detail=detail)
            with pytest.raises(exceptions.DeadlineExceeded, match="an earlier run"):
                engine.run()
            assert log == ["+a", "+b", "-b", "-a"]
            engine.run()
            assert engine.storage.get_flow_state() == states.SUCCESS
            stored = read_flow(backend, engine.storage.flow_uuid)
            assert stored.state == states.SUCCESS
            assert stored.meta.keys() <= {models.LOG_LEVEL}


def test_deadline_counts_from_call_of_run_iter() -> None:
    clock = manual_clock.ManualClock()
    engine = load(LINE("f").add(ClockTask("a", clock)), clock)
    steps = engine.run_iter(deadline=10)
    clock.advance(11)
    with pytest.raises(exceptions.DeadlineExceeded):
        list(steps)
    assert atom_states(engine, "a") == [LEFT]


@pytest.mark.parametrize("name", ["deadline", "timeout"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (math.nan, ValueError), (-math.inf, ValueError), ("5", TypeError),
     (True, TypeError), ([], TypeError)],
    ids=["negative", "nan", "negative infinity", "text", "bool", "list"],
)  # fmt: skip
def test_invalid_deadline_or_timeout_is_rejected_at_once(
    name: str, value: Any, error: type[Exception]
) -> None:
    engine = load(LINE("f").add(samples.Nothing(name="n")))
    for call in (engine.run, engine.run_iter):
        with pytest.raises(
            error, match=rf"^{name} must be (a number of|0 or more) seconds or None, got "
        ):
            call(**{name: value})
    assert engine.storage.get_flow_state() == states.PENDING
    engine.run(**{name: math.inf})
    assert engine.storage.get_flow_state() == states.SUCCESS


# -- suspending in each state ----------------------------------------------------------------------


def test_suspend_before_compile_fails_and_without_run_has_no_effect(near: dict[str, Any]) -> None:
    detail = load(samples.Nothing(name="n")).storage.flow_detail
    engine = type(load(samples.Nothing(name="n"), **near))(
        samples.Nothing(name="n"), detail, None, {}
    )
    with pytest.raises(exceptions.InvalidState, match="must be compiled before it is suspended"):
        engine.suspend()
    engine.compile()
    engine.suspend()
    engine.run()
    engine.suspend()
    assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize("stop", range(8))
def test_run_suspended_in_any_state_can_be_resumed(stop: int, near: dict[str, Any]) -> None:
    log: list[str] = []
    flow = LINE("f").add(
        task.FunctorTask(lambda: log.append("a"), "a"),
        task.FunctorTask(lambda: log.append("b"), "b"),
    )
    engine = load(flow, **near)
    for place, _ in enumerate(engine.run_iter()):
        if place == stop:
            engine.suspend()
    assert engine.storage.get_flow_state() in (states.SUSPENDED, states.SUCCESS)
    assert (stop == 0) <= (log == [])
    engine.run()
    assert log == ["a", "b"]


def test_suspend_from_flow_listener_runs_no_task() -> None:
    engine = load(LINE("f").add(samples.Nothing(name="n")))
    engine.notifier.register(states.RUNNING, lambda state, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "n") == [LEFT]


class SuspendingExecutor(executors.SerialTaskExecutor):
    """Executor that suspends its engine when it starts."""

    engine: Any = None

    def start(self) -> None:
        super().start()
        self.engine.suspend()


def test_suspend_while_executor_starts_runs_no_task() -> None:
    executor = SuspendingExecutor()
    engine = load(LINE("f").add(samples.Nothing(name="n")), engine="parallel", executor=executor)
    executor.engine = engine
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "n") == [LEFT]


@pytest.mark.parametrize("run", ["run", "run_iter", "arun"])
def test_suspend_while_flow_is_prepared_runs_no_task(run: str) -> None:
    engine = load(LINE("f").add(samples.Nothing(name="n")))
    engine.prepare()
    detail = engine.storage.flow_detail
    detail.state = states.RUNNING  # as a dead engine leaves it
    engine = load(LINE("f").add(samples.Nothing(name="n")), flow_detail=detail)

    def suspend(state: str, details: dict[str, Any]) -> None:
        engine.notifier.deregister(states.SUSPENDED, suspend)
        engine.suspend()

    engine.notifier.register(states.SUSPENDED, suspend)
    if run == "run":
        engine.run()
    elif run == "run_iter":
        assert list(engine.run_iter())[-1] == states.SUSPENDED
    else:
        asyncio.run(engine.arun())
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "n") == [LEFT]
    engine.run()
    assert atom_states(engine, "n") == [DONE]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")
def test_engine_can_be_suspended_from_signal_handler(near: dict[str, Any]) -> None:
    """A signal can arrive at any moment, even while the engine holds its locks."""
    count = 0

    class Signals(task.Task):
        def execute(self) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    flow = LINE("f").add(
        *[WIDE(f"w{n}").add(Signals(f"s{n}"), Signals(f"u{n}")) for n in range(10)]
    )
    engine = load(flow, **near)

    def handler(*_: Any) -> None:
        nonlocal count
        count += 1
        engine.suspend()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        while engine.storage.get_flow_state() != states.SUCCESS:
            engine.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert count
    assert all(atom.state == DONE for atom in engine.storage.flow_detail)


# -- reset -----------------------------------------------------------------------------------------


def failing(log: list[str], times: int) -> Any:
    left = [times]

    def work() -> None:
        log.append("work")
        if left[0]:
            left[0] -= 1
            raise LookupError("work")

    return LINE("f").add(
        task.FunctorTask(lambda: log.append("first"), "first"), task.FunctorTask(work, "work")
    )


def test_reset_of_running_engine_is_refused() -> None:
    """In each state of the loop, and from a listener of the final state."""
    engine = load(LINE("f").add(samples.Nothing(name="a"), samples.Nothing(name="b")))
    refused: list[str] = []

    def try_it(*_: Any, **__: Any) -> None:
        with pytest.raises(exceptions.InvalidState, match="running: it cannot be reset"):
            engine.reset()
        refused.append(engine.storage.get_flow_state())

    engine.notifier.register("*", try_it)
    for _ in engine.run_iter():
        try_it()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert set(refused) == {states.RUNNING, states.SUCCESS}
    engine.notifier.reset()
    engine.reset()


# -- run_iter --------------------------------------------------------------------------------------


def three() -> Any:
    return LINE("f").add(*[samples.Nothing(name=name) for name in "abc"])


def test_unstarted_run_iter_does_not_block_engine(near: dict[str, Any]) -> None:
    engine = load(three(), **near)
    steps = engine.run_iter()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    steps.close()
    del steps
    unstarted = engine.run_iter()
    with pytest.raises(LookupError):
        unstarted.throw(LookupError)
    engine.run()


@pytest.mark.parametrize("stop", range(1, 9))
def test_abandoned_run_iter_suspends_flow(stop: int, near: dict[str, Any]) -> None:
    engine = load(three(), **near)
    steps = engine.run_iter()
    for _ in range(stop):
        next(steps)
    with pytest.raises(exceptions.ExecutionFailure, match="already running"):
        engine.run()
    with pytest.raises(exceptions.ExecutionFailure, match="already running"):
        next(engine.run_iter())
    del steps
    gc.collect()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert {atom.state for atom in engine.storage.flow_detail} <= {LEFT, DONE}
    engine.run()
    assert {atom.state for atom in engine.storage.flow_detail} == {DONE}


def test_close_of_run_iter_does_not_raise_failure_of_flow() -> None:
    engine = load(failing([], 9), never_resolve=True)
    steps = engine.run_iter()
    while next(steps) != states.WAITING or atom_states(engine, "work") != [states.RUNNING]:
        pass
    steps.close()
    assert engine.storage.get_flow_state() == states.FAILURE
    with pytest.raises(LookupError):
        engine.run()


@pytest.mark.parametrize("stop", range(1, 12))
@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_exception_thrown_into_run_iter_leaves_resumable_flow(
    stop: int, error: type[BaseException], near: dict[str, Any]
) -> None:
    """The state is FAILURE, or SUSPENDED after an interruption; the flow can be run again."""
    engine = load(three(), **near)
    steps = engine.run_iter()
    for _ in range(stop):
        next(steps)
    with pytest.raises(error):
        steps.throw(error("mine"))
    state = engine.storage.get_flow_state()
    assert state == (states.FAILURE if error is LookupError else states.SUSPENDED)
    assert {atom.state for atom in engine.storage.flow_detail} <= {LEFT, DONE}
    assert list(engine.run_iter())[-1] == states.SUCCESS


# -- interruptions ---------------------------------------------------------------------------------

INTERRUPTIONS = [KeyboardInterrupt, SystemExit]


class RaisesOnce:
    """Callable that raises when it is called for the first time."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error: type[BaseException] | None = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            raise error("now")
        return True


@pytest.mark.parametrize("error", INTERRUPTIONS)
@pytest.mark.parametrize(
    "where", ["listener", "flow listener", "decider", "on_failure", "wait", "last word"]
)
def test_interruption_of_engine_thread_suspends_flow(
    where: str, error: type[BaseException], near: dict[str, Any]
) -> None:
    once = RaisesOnce(error)

    class Judge(retry.Times):
        def on_failure(self, history: Any, *args: Any, **kwargs: Any) -> Any:
            if where == "on_failure":
                once()
            return super().on_failure(history)

        def wait(self, history: Any) -> float:
            if where == "wait":
                once()
            return 0.0

    log: list[str] = []
    a, b = samples.Nothing(name="a"), LINE("b", Judge(2, "r")).add(*failing(log, 1))
    flow = graph_flow.Flow("f").add(a, b)
    flow.link(a, b, decider=(lambda history: once()) if where == "decider" else None)
    engine = load(flow, **near)
    if where == "listener":
        engine.atom_notifier.register(states.SUCCESS, once)
    elif where == "flow listener":
        engine.notifier.register(states.RUNNING, once)
    elif where == "last word":
        engine.notifier.register(states.SUCCESS, once)
    with pytest.raises(error):
        engine.run()
    expected = states.SUCCESS if where == "last word" else states.SUSPENDED
    assert engine.storage.get_flow_state() == expected
    legal = {LEFT, DONE, GONE, states.FAILURE, states.RETRYING}
    assert {atom.state for atom in engine.storage.flow_detail} <= legal
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert {atom.state for atom in engine.storage.flow_detail} == {DONE}
    assert log.count("work") == 2


@pytest.mark.parametrize("error", [*INTERRUPTIONS, GeneratorExit])
def test_repeated_interruptions_by_listener_leave_flow_suspended(
    error: type[BaseException], near: dict[str, Any]
) -> None:
    """As when a user presses Ctrl-C repeatedly."""

    def interrupt(state: str, details: dict[str, Any]) -> None:
        raise error("again")

    engine = load(LINE("f").add(samples.Nothing(name="a"), samples.Nothing(name="b")), **near)
    engine.notifier.register("*", interrupt)
    with pytest.raises(error):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.notifier.reset()
    engine.run()
    assert atom_states(engine, "a", "b") == [DONE, DONE]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_ctrl_c_while_run_loop_waits_suspends_flow() -> None:
    """A real signal: running tasks finish and are saved, the others wait for the next run."""
    waiting, begun, release = threading.Event(), threading.Event(), threading.Event()
    loop = threading.get_ident()

    class Queue(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            try:
                waiting.set()
                return super().get(block, timeout)
            except KeyboardInterrupt:
                release.set()
                raise

    class Clock(clocks.Clock):
        queue = Queue

    def wait() -> str:
        begun.set()
        assert release.wait(30)
        return "kept"

    def interrupt() -> None:
        assert waiting.wait(30)
        assert begun.wait(30)  # unstarted calls return to the queue
        os.kill(os.getpid(), signal.SIGINT)
        # A signal wakes only a sleeping thread; others notice it at their next wake-up.
        while not release.wait(0.05):
            signal.pthread_kill(loop, signal.SIGUSR1)

    flow = LINE("f").add(task.FunctorTask(wait, "w", provides="w"), samples.Nothing(name="n"))
    engine = load(flow, Clock(), **NEAR["threads"])
    helper = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    helper.join()
    signal.signal(signal.SIGUSR1, before)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "w", "n") == [DONE, LEFT]
    engine.run()
    assert engine.storage.fetch("w") == "kept"


# -- statistics


def test_statistics_describe_latest_run() -> None:
    engine = load(three())
    assert engine.statistics == {}
    for _ in engine.run_iter():
        statistics = engine.statistics
        assert statistics["active_for"] >= 0 and statistics["incomplete"] in (0, 1)
    statistics = engine.statistics
    spent = statistics.pop("seconds_per_state")
    assert set(spent) == {"resuming", "scheduling", "waiting", "analyzing"}
    assert sum(spent.values()) <= statistics.pop("active_for")
    assert statistics == {
        "completed": 3, "incomplete": 0, "awaiting": 0, "withdrawn": 0, "discarded_failures": 0,
    }  # fmt: skip
    quiet = load(three(), gather_statistics="no")
    quiet.run()
    assert quiet.statistics == {}


class BlocksLoop(task.Task):
    """Task with a coroutine that blocks its event loop."""

    def __init__(self, began: threading.Event, ends: threading.Event) -> None:
        super().__init__("blocks")
        self._began, self._ends = began, ends

    async def execute(self) -> None:
        self._began.set()
        self._ends.wait(60)


@pytest.mark.parametrize("act", ["suspend", "cancel"])
def test_task_with_hook_in_busy_event_loop_completes_after_suspend(act: str) -> None:
    """The hook waits in the busy event loop, and counts as running."""
    began, hooked, ends = threading.Event(), threading.Event(), threading.Event()

    class Hooked(task.Task):
        def pre_execute(self) -> Any:
            began.wait(60)
            hooked.set()
            return self._hook()

        async def _hook(self) -> None: ...

        def execute(self) -> int:
            return 1

    flow = WIDE("f").add(BlocksLoop(began, ends), Hooked("hooked", provides="found"))
    engine = engines.load(flow, engine="parallel")
    with contextlib.suppress(exceptions.Cancelled), engine_threads.running(engine, ends):
        assert hooked.wait(60)
        getattr(engine, act)()
    assert act == "cancel" or engine.storage.fetch("found") == 1


class WaitsForFile(task.Task):
    def execute(self, folder: str) -> None:
        Path(folder, "begun").touch()
        until(Path(folder, "go").exists)
        Path(folder, "ended").touch()


class WaitsForOther(task.Task):
    def execute(self, folder: str) -> None:
        until(Path(folder, "begun").exists)


@pytest.mark.parametrize("kind", [futures.ThreadPoolExecutor, futures.ProcessPoolExecutor])
def test_interrupted_run_waits_for_tasks_in_given_executor(kind: Any, tmp_path: Path) -> None:
    """Otherwise the next run would execute them a second time concurrently."""

    def interrupt(*_: Any, **details: Any) -> None:
        if details["details"]["task_name"] == "other":
            threading.Timer(0.5, Path(tmp_path, "go").touch).start()
            raise KeyboardInterrupt

    with kind(2) as given:
        engine = engines.load(
            WIDE("f").add(WaitsForFile("waits"), WaitsForOther("other")),
            engine="parallel", executor=given, store={"folder": str(tmp_path)},
        )  # fmt: skip
        engine.atom_notifier.register(DONE, interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        assert Path(tmp_path, "ended").exists()
        assert engine.storage.get_atom_state("waits") == DONE
