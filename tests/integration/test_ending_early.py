"""`Task.cancel_on_revert` on all kinds of engines: what runs ends when what it is part of is to be
undone, and nobody is asked about its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cancelling import LINE, WIDE, Log, kind_of, load
from tests.support import cancelled_tasks, ending_tasks
from tests.support.beside import Running
from tests.support.workers import until
from wbengine import _clock, exceptions, retry, states, task

KINDS = ("threads", "processes", "memory", "filesystem")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options for one kind of engine that runs several tasks at a time."""
    with kind_of(request.param, tmp_path, ending_tasks, slots=4) as options:
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
    """The failure is raised, and not what it led to; all that ran is undone."""
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


def test_others_are_waited_for(kind: dict[str, Any], log: Log) -> None:
    """Who does not say so is left alone until it ends by itself."""
    bad = ending_tasks.Fails("bad", inject={"after": ["b", "c"]})
    flow = WIDE("f").add(ending_tasks.Early("b"), cancelled_tasks.Heeds("c"), bad)
    engine = load(flow, log, kind)
    with Running(engine) as run:
        until(lambda: "!b" in log.lines)
        assert "!c" not in log.lines and "-c" not in log.lines
        engine.cancel("c")
    assert "bad failed" in str(run.error)
    assert sorted(line for line in log.lines if line[0] == "-") == ["-b", "-c"]


def test_a_retry_is_not_asked_about_it(kind: dict[str, Any], log: Log, tmp_path: Path) -> None:
    """Only the subflow is undone, and runs again; what is beside it goes on."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    inner = WIDE("w", retry=Noting("r")).add(ending_tasks.Early("b"), bad)
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


class Noting(retry.Times):
    """Tries again, three times, what failed by a `RuntimeError`; nothing else."""

    def __init__(self, name: str) -> None:
        super().__init__(3, name, retry_on="RuntimeError")


def test_an_error_of_its_own_counts(kind: dict[str, Any], log: Log, tmp_path: Path) -> None:
    """Who fails otherwise when it is told is a failure like others: the retry hears of it."""
    flag = str(tmp_path / "flag")
    bad = ending_tasks.Fails("bad", inject={"after": ["b"], "flag": flag}, requires=["flag"])
    flow = WIDE("w", retry=Noting("r")).add(ending_tasks.Sulks("b"), bad)
    engine = load(flow, log, kind)
    with Running(engine) as run:
        pass
    assert run.error is not None and "sulking" in str(run.error)
    assert log.lines.count("+b") == 1


class Waiting(_clock.Clock):
    """Stands still until a task has begun."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._start = time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() if f"+{self._name}" in self._log.lines else self._start


def test_deadline_reverts_the_flow(kind: dict[str, Any], log: Log) -> None:
    engine = load(WIDE("f").add(ending_tasks.Early("b")), log, kind)
    engine._clock = Waiting(log, "b")
    with Running(engine, deadline=0.2) as run:
        pass
    assert isinstance(run.error, exceptions.DeadlineExceeded)
    assert log.lines[-1] == "-b"


def test_the_items_of_a_map(kind: dict[str, Any], log: Log) -> None:
    """Those that run end, and no further one starts."""
    many = task.Map(ending_tasks.EarlyItem("i"), name="m", max_in_flight=3)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[2]"]})
    engine = load(WIDE("f").add(many, bad), log, kind, store={"items": list(range(20))})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    ran = {line[1:] for line in log.lines if line[0] == "+"} - {"bad"}
    undone = {line[1:] for line in log.lines if line[0] == "-"}
    assert "m[2]" in ran <= undone and "m[19]" not in ran


def test_no_item_follows_one_that_succeeds_all_the_same(kind: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.ShruggingItem("i"), name="m", max_in_flight=1)
    bad = ending_tasks.Fails("bad", inject={"after": ["m[0]"]})
    engine = load(WIDE("f").add(many, bad), log, kind, store={"items": [0, 1]})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    assert sorted(log.lines) == ["!m[0]", "+bad", "+m[0]", "-m[0]"]


def test_an_item_that_fails_ends_the_others(kind: dict[str, Any], log: Log) -> None:
    many = task.Map(ending_tasks.FailingItem("i"), name="m")
    engine = load(many, log, kind, store={"items": [0, 1]})
    with Running(engine) as run:
        pass
    assert "item 0 failed" in str(run.error)
    assert "!m[1]" in log.lines


def test_on_a_serial_engine_it_ends_by_itself(log: Log) -> None:
    """Nothing else runs beside it; what comes after in the same turn, late, does not begin."""
    flow = WIDE("f").add(
        ending_tasks.Fails("bad", inject={"after": []}), cancelled_tasks.Quick("b")
    )
    engine = load(flow, log, {})
    with Running(engine) as run:
        pass
    assert "bad failed" in str(run.error)
    assert log.lines in (["+bad", "+b", "-b"], ["+bad"])
