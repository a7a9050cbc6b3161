"""Exceptions of tasks have the same type on every kind of engine and after a reload."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.flows import kinds
from tests.support import failing_tasks as tasks
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import models
from wbengine.types import codec
from wbengine.types import failure as ft

LOCAL = ("serial", "threads", "processes")


@pytest.fixture(scope="module", params=kinds.NAMES)
def kind(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with kinds.kind(request.param, folder, tasks.__name__) as engine_kind:
        yield engine_kind


def run_failing_flow(kind: Any, how: str, *, flow: Any = None) -> tuple[Any, BaseException]:
    """Run a flow whose task fails in the given way. Return the engine and the exception."""
    if flow is None:
        flow = linear_flow.Flow("f").add(tasks.ReportsFailures("notices"), tasks.Fails("bad"))
    engine = kind.load(flow, store={"how": how})
    try:
        engine.run()
    except BaseException as error:
        return engine, error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("how", "type_", "args"),
    [
        ("builtin", ValueError, ("this went wrong", 3)),
        ("caused", KeyError, ("missing",)),
        ("own", tasks.Refused, (7, "no credit")),
        ("ours", exceptions.NotFound, ("nothing there",)),
    ],
    ids=["builtin", "with cause", "custom", "wbengine"],
)
def test_original_exception_type_is_raised(kind: Any, how: str, type_: type, args: Any) -> None:
    engine, error = run_failing_flow(kind, how)
    assert isinstance(error, type_) and error.args == args  # type: ignore[attr-defined]
    if how != "own" or kind.name != "processes":  # a Refused cannot be pickled
        assert isinstance(error, exceptions.WrappedFailure) is (kind.name not in LOCAL)
    assert engine.storage.get_flow_state() == states.REVERTED
    failure = engine.storage.get_failures()["bad"]
    assert failure.check(type_) is type_
    assert "failing_tasks.py" in failure.traceback_str
    with pytest.raises(type_):
        failure.reraise()
    with pytest.raises(type_):
        pickle.loads(pickle.dumps(failure)).reraise()


def test_cause_of_the_exception_is_preserved(kind: Any) -> None:
    _, error = run_failing_flow(kind, "caused")
    assert isinstance(error.__cause__, FileNotFoundError)
    assert error.__cause__.errno == 2


@pytest.mark.parametrize(
    "kind", [name for name in kinds.NAMES if name not in LOCAL], indirect=True, scope="module"
)
@pytest.mark.parametrize(
    ("how", "type_", "base"),
    [
        pytest.param("foreign", json.JSONDecodeError, ValueError, id="type that is not allowed"),
        pytest.param("exit", SystemExit, Exception, id="SystemExit"),
    ],
)  # fmt: skip
def test_exception_that_cannot_be_rebuilt_is_wrapped(
    kind: Any, how: str, type_: Any, base: type[Exception]
) -> None:
    """A remote SystemExit must not end this process."""
    _, error = run_failing_flow(kind, how, flow=tasks.Fails("bad"))
    assert isinstance(error, exceptions.WrappedFailure) and isinstance(error, base)
    assert not isinstance(error, type_) and error.check(type_) == type_


def test_revert_receives_failures_with_original_type(kind: Any) -> None:
    """This includes reverts on workers, which receive the failures from the engine."""
    for how, noticed in [
        ("own", "bad was refused: (7, 'no credit')"),
        ("builtin", "bad had a bad value: ('this went wrong', 3)"),
    ]:
        engine, _ = run_failing_flow(kind, how)
        assert engine.storage.get_revert_result("notices") == [noticed]


class Picky(retry.Times):
    """Retry controller that checks the failures by type and by name."""

    def on_failure(self, history: retry.History, *args: Any, **kwargs: Any) -> retry.Decision:
        assert history.caused_by(tasks.Refused)
        assert history.caused_by("tests.support.failing_tasks.Refused")
        assert not history.caused_by(ValueError)
        [(_, failure)] = history.outcomes_iter(-1)
        with pytest.raises(tasks.Refused):
            failure.reraise()
        return super().on_failure(history, *args, **kwargs)


def test_retry_history_preserves_failure_types(kind: Any) -> None:
    flow = linear_flow.Flow("f", Picky(2, "picky")).add(tasks.Fails("bad"))
    _, error = run_failing_flow(kind, "own", flow=flow)
    assert isinstance(error, tasks.Refused)


def reloaded(detail: models.FlowDetail) -> models.FlowDetail:
    """Return a copy of the record that was encoded and decoded, as from a store."""
    read = models.FlowDetail.from_dict(codec.loads(codec.dumps(detail.to_dict())))
    for atom in detail:
        data = codec.loads(codec.dumps(atom.to_dict()))
        read.add(type(atom).from_dict(data))
    return read


def own_refusal() -> None:
    raise tasks.Refused(8, reason="a function's")


class Local(Exception):
    pass


def local_refusal() -> None:
    raise Local("of this module")


@pytest.mark.parametrize(
    ("make", "type_"),
    [
        (lambda: tasks.Fails("bad", inject={"how": "own"}), tasks.Refused),
        (lambda: tasks.Fails("bad", inject={"how": "builtin"}), ValueError),
        (lambda: task.FunctorTask(local_refusal, "bad"), Local),
        (lambda: task.FunctorTask(own_refusal, "bad"), exceptions.WrappedFailure),
    ],
    ids=["custom type", "builtin type", "local type", "type of a function"],
)
def test_failure_reloaded_from_a_store_reraises_its_type(
    make: Any, type_: type[BaseException]
) -> None:
    def flow() -> Any:
        return linear_flow.Flow("f", retry.Times(1, "r")).add(make())

    detail = models.FlowDetail("f")
    first = engines.load(flow(), flow_detail=detail, never_resolve=True)
    with pytest.raises((tasks.Refused, ValueError, Local)) as before:
        first.run()
    again = engines.load(flow(), flow_detail=reloaded(detail))
    again.prepare()
    failure = again.storage.get_failures()["bad"]
    assert failure.exception is None
    with pytest.raises(type_) as after:
        failure.reraise()
    assert isinstance(after.value, exceptions.WrappedFailure)
    assert after.value.args == before.value.args or type(after.value) is exceptions.WrappedFailure
    assert after.value.check(type(before.value)) is type(before.value)


def test_reloaded_retry_history_preserves_failure_types() -> None:
    def flow() -> Any:
        outer = linear_flow.Flow("f", Picky(1, "picky"))
        return outer.add(tasks.Fails("bad", inject={"how": "own"}))

    detail = models.FlowDetail("f")
    engine = engines.load(flow(), flow_detail=detail, never_resolve=True)
    with pytest.raises(tasks.Refused):
        engine.run()
    engine.storage.save_retry_failure("picky", "bad", engine.storage.get("bad"))
    again = engines.load(flow(), flow_detail=reloaded(detail))
    again.prepare()
    assert Picky(1).on_failure(again.storage.get_retry_history("picky")) == retry.REVERT


def test_custom_types_are_passed_to_and_from_tasks(kind: Any) -> None:
    order = tasks.Order(1, dt.date(2024, 2, 28), notes={3: {"a"}})
    flow = linear_flow.Flow("f").add(
        tasks.PostponesOrder("one", rebind={"old": "first"}, provides=("second", "paint2")),
        tasks.PostponesOrder("two", rebind={"old": "second", "paint": "paint2"}),
    )
    engine = kind.load(flow, store={"first": order, "paint": tasks.Colour.RED})
    engine.run()
    result = engine.storage.fetch("order")
    colours = (tasks.Colour.RED, tasks.Colour.GREEN)
    assert result == tasks.Order(1, dt.date(2024, 3, 1), colours, {3: {"a"}})
    assert type(result) is tasks.Order and engine.storage.fetch("colour") is tasks.Colour.GREEN


def test_copied_and_pickled_failures_match_the_original(kind: Any) -> None:
    engine, _ = run_failing_flow(kind, "own")
    failure = engine.storage.get_failures()["bad"]
    for copy in (failure.copy(), pickle.loads(pickle.dumps(failure))):
        assert copy.matches(failure) and copy.home == tasks.__name__
    assert ft.Failure.from_dict(failure.to_dict()).home is None
