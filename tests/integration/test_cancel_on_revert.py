"""`Task.cancel_on_revert` on all kinds of engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cancelling import LINE, WIDE, Log, load
from tests.integration.engine_kinds import engine_options
from tests.support import cancelled_tasks, ending_tasks
from tests.support.engine_threads import Running
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import clocks

KINDS = ("threads", "processes", "memory", "filesystem")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options for one kind of engine that runs several tasks at a time."""
    with engine_options(request.param, tmp_path, cancelled_tasks, ending_tasks, slots=4) as options:
        yield options


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path / "log")
    made.path.touch()
    return made


def local(cls: Any, name: str) -> Any:
    made = cls(name)
    made.local = True
    return made


@pytest.mark.parametrize("cls", [ending_tasks.Early, ending_tasks.EarlyWaits])
@pytest.mark.parametrize("near", [False, True])
def test_failure_cancels_running_tasks_and_reverts(
    cls: Any, near: bool, kind: dict[str, Any], log: Log
) -> None:
    """The engine raises the failure and not the cancellations that follow it."""
    others = [local(cls, name) if near else cls(name) for name in "bc"]
    bad = ending_tasks.Fails("bad", inject={"after": ["b", "c"]})
    flow = LINE("f").add(cancelled_tasks.Quick("a"), WIDE("w").add(*others, bad))
    engine = load(flow, log, kind)
    with Running(engine) as run:
        pass
    assert isinstance(run.error, RuntimeError) and "bad failed" in str(run.error)
    assert sorted(log.lines) == ["!b", "!c", "+a", "+b", "+bad", "+c", "-a", "-b", "-c"]
    assert engine.storage.get_flow_state() == states.REVERTED
    failures = engine.storage.get_execute_failures()
    assert failures["b"].check(exceptions.Cancelled)


def test_task_without_cancel_on_revert_is_not_cancelled(kind: dict[str, Any], log: Log) -> None:
    """The engine waits until such a task ends."""
    bad = ending_tasks.Fails("bad", inject={"after": ["b", "c"]})
    flow = WIDE("f").add(ending_tasks.Early("b"), cancelled_tasks.Cancellable("c"), bad)
    engine = load(flow, log, kind)
    with Running(engine) as run:
        until(lambda: "!b" in log.lines)
        assert "!c" not in log.lines and "-c" not in log.lines
        engine.cancel("c")
    assert "bad failed" in str(run.error)
    assert sorted(line for line in log.lines if line[0] == "-") == ["-b", "-c"]


def test_retry_history_omits_tasks_cancelled_on_revert(
    kind: dict[str, Any], log: Log, tmp_path: Path
) -> None:
    """Only the subflow is reverted and retried. Other tasks continue."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    inner = WIDE("w", retry=RetriesRuntimeErrors("r")).add(ending_tasks.Early("b"), bad)
    flow = WIDE("f").add(inner, ending_tasks.Early("beside"))
    engine = load(flow, log, kind)
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
    kind: dict[str, Any], log: Log, tmp_path: Path
) -> None:
    """An error other than Cancelled is a failure, which this controller does not retry."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    flow = WIDE("w", retry=RetriesRuntimeErrors("r")).add(ending_tasks.FailsOnCancel("b"), bad)
    engine = load(flow, log, kind)
    with Running(engine) as run:
        pass
    assert run.error is not None and "sulking" in str(run.error)
    assert log.lines.count("+b") == 1


class ClockUntilTaskStarts(clocks.Clock):
    """Clock that stands still until a task has started."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._start = time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() if f"+{self._name}" in self._log.lines else self._start


def test_deadline_cancels_running_task_and_reverts_the_flow(kind: dict[str, Any], log: Log) -> None:
    kind = {**kind, "clock": ClockUntilTaskStarts(log, "b")}
    engine = load(WIDE("f").add(ending_tasks.Early("b")), log, kind)
    with Running(engine, deadline=0.2) as run:
        pass
    assert isinstance(run.error, exceptions.DeadlineExceeded)
    assert log.lines[-1] == "-b"


def test_failure_cancels_running_items_and_starts_no_further_item(
    kind: dict[str, Any], log: Log
) -> None:
    many = task.Map(ending_tasks.EarlyItem("i"), name="m", max_in_flight=3)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[2]"]})
    engine = load(WIDE("f").add(many, bad), log, kind, store={"items": list(range(20))})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    ran = {line[1:] for line in log.lines if line[0] == "+"} - {"bad"}
    undone = {line[1:] for line in log.lines if line[0] == "-"}
    assert "m[2]" in ran <= undone and "m[19]" not in ran


def test_no_item_starts_after_cancelled_item_that_succeeds(kind: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.SucceedingItem("i"), name="m", max_in_flight=1)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[0]"]})
    engine = load(WIDE("f").add(many, bad), log, kind, store={"items": [0, 1]})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    assert sorted(log.lines) == ["!m[0]", "+bad", "+m[0]", "-m[0]"]


def test_failed_item_cancels_the_other_items(kind: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.FailingItem("i"), name="m")
    engine = load(many, log, kind, store={"items": [0, 1]})
    with Running(engine) as run:
        pass
    assert "item 0 failed" in str(run.error)
    assert "!m[1]" in log.lines


def test_failure_on_serial_engine_reverts_tasks_that_ran(log: Log) -> None:
    """Only one task runs at a time. The other task can precede the failed one."""
    flow = WIDE("f").add(
        ending_tasks.Fails("bad", inject={"after": []}), cancelled_tasks.Quick("b")
    )
    engine = load(flow, log, {})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    assert log.lines in (["+bad", "+b", "-b"], ["+bad"])


@pytest.mark.parametrize("name", ["threads", "memory"])
def test_calls_cancelled_before_their_start_are_not_reverted(
    name: str, log: Log, tmp_path: Path
) -> None:
    first = ending_tasks.Early("first")
    bad = ending_tasks.Fails("bad", inject={"after": ["first"]})
    queued = [ending_tasks.Early(f"q{n}") for n in range(6)]
    first.priority = bad.priority = 1
    with engine_options(name, tmp_path, cancelled_tasks, ending_tasks, slots=2) as options:
        engine = load(WIDE("f").add(first, bad, *queued), log, options)
        with Running(engine) as run:
            pass
    assert "bad failed" in str(run.error)
    begun = {line[1:] for line in log.lines if line[0] == "+"}
    assert {line[1:] for line in log.lines if line[0] == "-"} == begun - {"bad"}
    never_begun = {each.name for each in queued} - begun
    assert len(never_begun) >= 4
    assert {engine.storage.get_atom_state(each) for each in never_begun} == {states.PENDING}


def test_items_cancelled_before_their_start_are_not_reverted(log: Log, tmp_path: Path) -> None:
    many = task.Map(ending_tasks.FailingItem("i"), name="m")
    with engine_options("threads", tmp_path, slots=2) as options:
        engine = load(many, log, options, store={"items": list(range(8))})
        with Running(engine) as run:
            pass
    assert "item 0 failed" in str(run.error)
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
