"""Cancellation with `engine.cancel` on all kinds of engines."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cancelling import LINE, WIDE, Log, load
from tests.integration.engine_kinds import engine_options
from tests.support import cancelled_tasks as tasks
from tests.support import ending_tasks
from tests.support.engine_threads import Running
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import clocks

KINDS = ("serial", "threads", "processes", "memory", "filesystem")
CHILDREN = ("processes",)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with engine_options(request.param, tmp_path, tasks) as options:
        yield options


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log")
    made.path.touch()
    return made


def wait_until_started(log: Log, *names: str) -> None:
    until(lambda: {f"+{name}" for name in names} <= set(log.lines))


@pytest.mark.parametrize("cls", [tasks.Cancellable, tasks.Threads, tasks.Waits])
def test_cancel_notifies_running_task_and_reverts_the_flow(
    cls: Any, kind: dict[str, Any], log: Log
) -> None:
    flow = LINE("f").add(tasks.Quick("a"), cls("b"), tasks.Quick("c"))
    engine = load(flow, log, kind)
    with Running(engine) as run:
        wait_until_started(log, "b")
        assert engine.cancel(reason="enough")
    assert type(run.error) is exceptions.Cancelled and str(run.error).endswith("enough")
    assert [line for line in log.lines if line[0] != "!"] == ["+a", "+b", "-b", "-a"]
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_execute_failures()["b"].check(exceptions.Cancelled)


def test_cancelling_one_task_leaves_the_others_running(
    kind: dict[str, Any], log: Log, request: pytest.FixtureRequest
) -> None:
    """The other tasks run to their end and are reverted then."""
    if "engine" not in kind:
        pytest.skip("it runs one at a time")
    engine = load(WIDE("f").add(tasks.Cancellable("a"), tasks.Cancellable("b")), log, kind)
    with Running(engine):
        wait_until_started(log, "a", "b")
        engine.cancel("a")
        until(lambda: "-a" in log.lines)
        assert "!b" not in log.lines
        engine.cancel("b")
    assert sorted(log.lines) == ["!a", "!b", "+a", "+b", "-a", "-b"]


def test_cancelled_flow_starts_no_waiting_task(kind: dict[str, Any], log: Log) -> None:
    """The flow has more tasks than slots."""
    names = [f"t{n}" for n in range(12)]
    engine = load(WIDE("f").add(*[tasks.Cancellable(name) for name in names]), log, kind)
    with Running(engine) as run:
        until(lambda: len(log.lines) >= (3 if "engine" in kind else 1))
        engine.cancel()
    assert isinstance(run.error, exceptions.Cancelled)
    ran = {line[1:] for line in log.lines if line[0] == "+"}
    assert len(ran) < len(names)
    assert sorted(line for line in log.lines if line[0] == "-") == sorted(f"-{n}" for n in ran)
    found = {name: engine.storage.get_atom_state(name) for name in names}
    assert {name for name, state in found.items() if state == "REVERTED"} == ran


def test_cancelled_map_starts_no_further_items_and_reverts(kind: dict[str, Any], log: Log) -> None:
    flow = LINE("f").add(task.Map(tasks.Item("i"), name="m", max_in_flight=3))
    engine = load(flow, log, kind, store={"items": list(range(9))})
    with Running(engine) as run:
        wait_until_started(log, "m[0]", "m[1]", "m[2]")
        engine.cancel("m")
    assert isinstance(run.error, exceptions.Cancelled)
    ran = {line[1:] for line in log.lines if line[0] == "+"}
    assert {"m[0]", "m[1]", "m[2]"} <= ran and "m[8]" not in ran
    # One item can be on its way to a process without having started there.
    undone = {line[1:] for line in log.lines if line[0] == "-"}
    assert ran <= undone and len(undone) <= len(ran) + 1


@pytest.mark.parametrize("name", CHILDREN)
def test_task_ignoring_cancellation_is_killed_after_cancel_grace(
    name: str, tmp_path: Path, log: Log
) -> None:
    """Only this task is killed, and it is reverted like a completed one."""
    with engine_options(name, tmp_path, tasks) as kind:
        flow = WIDE("f").add(tasks.IgnoresCancel("a"), tasks.Cancellable("b"))
        engine = load(flow, log, kind, cancel_grace=0.2)
        with Running(engine) as run:
            wait_until_started(log, "a", "b")
            engine.cancel("a")
            until(lambda: "-a" in log.lines)
            assert "!b" not in log.lines
            engine.cancel()
        assert isinstance(run.error, exceptions.Cancelled)
        assert "-b" in log.lines
        assert "killed" in str(engine.storage.get_execute_failures()["a"].exception)


def random_flow(chance: random.Random) -> Any:
    """Return a flow of twelve to thirty tasks."""
    number = itertools.count()

    def some(size: int) -> list[Any]:
        return [tasks.Quick(f"t{next(number)}") for _ in range(size)]

    flow = LINE("f").add(*some(2))
    for place in range(chance.randint(1, 3)):
        wide = WIDE(f"w{place}").add(*some(chance.randint(1, 6)))
        wide.add(LINE(f"l{place}", retry.Times(2, f"r{place}", backoff=0.001)).add(*some(2)))
        flow.add(wide, *some(1))
    if chance.random() < 0.3:
        flow.add(ending_tasks.Fails("fails", inject={"after": []}))
    return flow


@pytest.mark.parametrize(
    ("name", "rounds"), [("serial", 60), ("threads", 60), ("processes", 12), ("memory", 25)]
)
def test_cancel_at_any_moment_reverts_each_executed_task_once(
    name: str, rounds: int, tmp_path: Path
) -> None:
    """Cancel, suspend and deadline come in random order; `run` raises the first reason."""
    ends = set()
    with engine_options(name, tmp_path, tasks, ending_tasks) as kind:
        for seed in range(rounds):
            chance = random.Random(seed)
            log = Log(tmp_path / f"log-{seed}")
            engine = load(random_flow(chance), log, kind)
            if seed % 5 == 0:  # Random cancellations can all come too late on a busy machine.
                cancel_at_first_task(engine)
            try:
                ends.add(run_with_interference(engine, chance))
                check(engine, log)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}\n{log.lines}") from error
    assert "Cancelled" in ends and len(ends) > 1


def cancel_at_first_task(engine: Any) -> None:
    started: list[str] = []

    def on_running(state: str, details: Any) -> None:
        started.append(state)
        if len(started) == 1:
            engine.cancel()

    engine.atom_notifier.register(states.RUNNING, on_running)


def run_with_interference(engine: Any, chance: random.Random) -> str:
    """Run an engine to its end under random interference, and return its result."""
    cancelled = False
    acts = ["suspend", "suspend", "nothing"]
    if chance.random() < 0.6:
        acts += ["cancel", "one"]
    for _ in range(50):
        begun = threading.Event()
        engine.notifier.register(states.RUNNING, lambda state, details, e=begun: e.set())
        deadline = chance.choice([None, None, 0.005, 0.02])
        with Running(engine, deadline=deadline) as run:
            assert begun.wait(30)
            for what in chance.choices(acts, k=3):
                time.sleep(chance.random() * chance.choice([0.0, 0.003, 0.03]))
                if what == "cancel":
                    engine.cancel()
                elif what == "one":
                    engine.cancel(f"t{chance.randint(0, 5)}")
                elif what == "suspend":
                    engine.suspend()
        engine.notifier.reset()
        state = engine.storage.get_flow_state()
        if cancelled:
            assert state == states.SUSPENDED or isinstance(run.error, exceptions.Cancelled), (
                run.error
            )
        cancelled = cancelled or "cancelled" in engine.storage.flow_meta
        if state != states.SUSPENDED:
            assert (run.error is None) == (state == states.SUCCESS), run.error
            assert cancelled == isinstance(run.error, exceptions.Cancelled)
            return type(run.error).__name__ if run.error else state
        assert run.error is None
    raise AssertionError("it never ends")


def check(engine: Any, log: Log) -> None:
    """Assert that all tasks ran, or that each task that ran is reverted."""
    done = [line[1:] for line in log.lines if line[:2] == "+t"]
    undone = [line[1:] for line in log.lines if line[:2] == "-t"]
    names = {name for name in engine.compilation.plan.by_name if name[0] == "t"}
    if engine.storage.get_flow_state() == states.SUCCESS:
        assert set(done) == names and not undone
    else:
        # A task that was sent to a process can be cancelled before it starts there.
        failures = engine.storage.get_execute_failures()
        early = {name for name in undone if name not in done}
        assert all(failures[name].check(exceptions.Cancelled) for name in early)
        assert set(done) <= set(undone)
    assert len(done) == len(set(done)) and len(undone) == len(set(undone)), "twice"


# `Task.cancel_on_revert` on all kinds of engines.


@pytest.fixture(params=["threads", "processes", "memory", "filesystem"])
def wide(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options for one kind of engine that runs several tasks at a time."""
    with engine_options(request.param, tmp_path, tasks, ending_tasks, slots=4) as options:
        yield options


def error_of(engine: Any, **options: Any) -> BaseException | None:
    """Run an engine to its end, and return its error."""
    with Running(engine, **options) as run:
        pass
    return run.error


def local(cls: Any, name: str) -> Any:
    made = cls(name)
    made.local = True
    return made


@pytest.mark.parametrize("cls", [ending_tasks.Early, ending_tasks.EarlyWaits])
@pytest.mark.parametrize("near", [False, True])
def test_failure_cancels_running_tasks_and_reverts(
    cls: Any, near: bool, wide: dict[str, Any], log: Log
) -> None:
    """The engine raises the failure and not the cancellations that follow it."""
    others = [local(cls, name) if near else cls(name) for name in "bc"]
    bad = ending_tasks.Fails("bad", inject={"after": ["b", "c"]})
    flow = LINE("f").add(tasks.Quick("a"), WIDE("w").add(*others, bad))
    engine = load(flow, log, wide)
    error = error_of(engine)
    assert isinstance(error, RuntimeError) and "bad failed" in str(error)
    assert sorted(log.lines) == ["!b", "!c", "+a", "+b", "+bad", "+c", "-a", "-b", "-c"]
    assert engine.storage.get_flow_state() == states.REVERTED
    failures = engine.storage.get_execute_failures()
    assert failures["b"].check(exceptions.Cancelled)


def test_task_without_cancel_on_revert_is_not_cancelled(wide: dict[str, Any], log: Log) -> None:
    """The engine waits until such a task ends."""
    bad = ending_tasks.Fails("bad", inject={"after": ["b", "c"]})
    flow = WIDE("f").add(ending_tasks.Early("b"), tasks.Cancellable("c"), bad)
    engine = load(flow, log, wide)
    with Running(engine) as run:
        until(lambda: "!b" in log.lines)
        assert "!c" not in log.lines and "-c" not in log.lines
        engine.cancel("c")
    assert "bad failed" in str(run.error)
    assert sorted(line for line in log.lines if line[0] == "-") == ["-b", "-c"]


def test_retry_history_omits_tasks_cancelled_on_revert(
    wide: dict[str, Any], log: Log, tmp_path: Path
) -> None:
    """Only the subflow is reverted and retried. Other tasks continue."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    inner = WIDE("w", retry=RetriesRuntimeErrors("r")).add(ending_tasks.Early("b"), bad)
    flow = WIDE("f").add(inner, ending_tasks.Early("beside"))
    engine = load(flow, log, wide)
    with Running(engine) as run:
        until(lambda: log.lines.count("+b") == 2)
        assert "!beside" not in log.lines and log.lines.count("-b") == 1
        history = engine.storage.get_retry_history("r")
        assert [set(failed) for _, failed in history] == [{"bad"}, set()]
        engine.cancel()
    assert isinstance(run.error, exceptions.Cancelled)
    assert "-a" not in log.lines and "-beside" in log.lines


class RetriesRuntimeErrors(retry.Times):
    """Retry controller that retries a RuntimeError up to three times, and no other error."""

    def __init__(self, name: str) -> None:
        super().__init__(3, name, retry_on="RuntimeError")


def test_other_error_of_cancelled_task_reaches_the_retry_controller(
    wide: dict[str, Any], log: Log, tmp_path: Path
) -> None:
    """An error other than Cancelled is a failure, which this controller does not retry."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    flow = WIDE("w", retry=RetriesRuntimeErrors("r")).add(ending_tasks.FailsOnCancel("b"), bad)
    engine = load(flow, log, wide)
    assert "sulking" in str(error_of(engine))
    assert log.lines.count("+b") == 1


class ClockUntilTaskStarts(clocks.Clock):
    """Clock that stands still until a task has started."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._start = time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() if f"+{self._name}" in self._log.lines else self._start


def test_deadline_cancels_running_task_and_reverts_the_flow(wide: dict[str, Any], log: Log) -> None:
    options = {**wide, "clock": ClockUntilTaskStarts(log, "b")}
    engine = load(WIDE("f").add(ending_tasks.Early("b")), log, options)
    assert isinstance(error_of(engine, deadline=0.2), exceptions.DeadlineExceeded)
    assert log.lines[-1] == "-b"


def test_failure_cancels_running_items_and_starts_no_further_item(
    wide: dict[str, Any], log: Log
) -> None:
    many = task.Map(ending_tasks.EarlyItem("i"), name="m", max_in_flight=3)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[2]"]})
    engine = load(WIDE("f").add(many, bad), log, wide, store={"items": list(range(20))})
    assert "bad failed" in str(error_of(engine))
    ran = {line[1:] for line in log.lines if line[0] == "+"} - {"bad"}
    undone = {line[1:] for line in log.lines if line[0] == "-"}
    assert "m[2]" in ran <= undone and "m[19]" not in ran


def test_no_item_starts_after_cancelled_item_that_succeeds(wide: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.SucceedingItem("i"), name="m", max_in_flight=1)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[0]"]})
    engine = load(WIDE("f").add(many, bad), log, wide, store={"items": [0, 1]})
    assert "bad failed" in str(error_of(engine))
    assert sorted(log.lines) == ["!m[0]", "+bad", "+m[0]", "-m[0]"]


def test_failed_item_cancels_the_other_items(wide: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.FailingItem("i"), name="m")
    engine = load(many, log, wide, store={"items": [0, 1]})
    assert "item 0 failed" in str(error_of(engine))
    assert "!m[1]" in log.lines


def test_failure_on_serial_engine_reverts_tasks_that_ran(log: Log) -> None:
    """Only one task runs at a time. The other task can precede the failed one."""
    flow = WIDE("f").add(ending_tasks.Fails("bad", inject={"after": []}), tasks.Quick("b"))
    engine = load(flow, log, {})
    assert "bad failed" in str(error_of(engine))
    assert log.lines in (["+bad", "+b", "-b"], ["+bad"])


@pytest.mark.parametrize("name", ["threads", "memory"])
def test_calls_cancelled_before_their_start_are_not_reverted(
    name: str, log: Log, tmp_path: Path
) -> None:
    first = ending_tasks.Early("first")
    bad = ending_tasks.Fails("bad", inject={"after": ["first"]})
    queued = [ending_tasks.Early(f"q{n}") for n in range(6)]
    first.priority = bad.priority = 1
    with engine_options(name, tmp_path, tasks, ending_tasks, slots=2) as options:
        engine = load(WIDE("f").add(first, bad, *queued), log, options)
        error = error_of(engine)
    assert "bad failed" in str(error)
    begun = {line[1:] for line in log.lines if line[0] == "+"}
    assert {line[1:] for line in log.lines if line[0] == "-"} == begun - {"bad"}
    never_begun = {each.name for each in queued} - begun
    assert len(never_begun) >= 4
    assert {engine.storage.get_atom_state(each) for each in never_begun} == {states.PENDING}


def test_items_cancelled_before_their_start_are_not_reverted(log: Log, tmp_path: Path) -> None:
    many = task.Map(ending_tasks.FailingItem("i"), name="m")
    with engine_options("threads", tmp_path, slots=2) as options:
        engine = load(many, log, options, store={"items": list(range(8))})
        error = error_of(engine)
    assert "item 0 failed" in str(error)
    undone = {line[1:] for line in log.lines if line[0] == "-"}
    assert undone - {"m[0]"} == {line[1:] for line in log.lines if line[0] == "+"}


BEGUN: set[int] = set()
UNDONE: set[int] = set()


class Numbered(task.Task):
    """The first step fails. The others end when they are cancelled."""

    cancel_on_revert = True

    def execute(self, number: int) -> None:
        BEGUN.add(number)
        if number == 0:
            raise ValueError("step 0 failed")
        until(lambda: self.cancelled)

    def revert(self, number: int, **_: Any) -> None:
        UNDONE.add(number)


@task.workflow
async def gathers(steps: Any) -> None:
    await asyncio.gather(*(steps.run(Numbered, number) for number in range(8)))


def test_steps_cancelled_before_their_start_are_not_reverted() -> None:
    engine = engines.load(gathers(), engine="parallel", max_workers=1)
    with pytest.raises(ValueError, match="step 0 failed"):
        engine.run()
    assert UNDONE == BEGUN and len(BEGUN) < 4
