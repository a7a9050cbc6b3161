"""What a wrong program gets: one clear error, a legal state, and never a hang."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import graph_flow, linear_flow
from wbengine.persistence import models


class Plain(task.Task):
    def execute(self) -> None: ...


class Stops(task.Task):
    def execute(self) -> None:
        next(iter(()))


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_task_that_raises_stop_iteration(kind: str) -> None:
    """It is raised as itself, although the run loop is a generator."""
    engine = engines.load(Stops("s"), engine=kind)
    with pytest.raises(StopIteration):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_run_iter_raises_what_the_flow_failed_with() -> None:
    def fail() -> None:
        raise KeyError("k")

    engine = engines.load(task.FunctorTask(fail, name="f"))
    with pytest.raises(KeyError):
        list(engine.run_iter())
    assert engine.storage.get_flow_state() == states.REVERTED


@pytest.mark.parametrize("timeout", [-1, "x", float("nan")])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    engine = engines.load(Plain("p"), engine="parallel")
    with pytest.raises(ValueError, match=f"number of seconds or None, not {timeout!r}"):
        engine.run(timeout)
    assert engine.storage.get_flow_state() == states.PENDING
    engine.run(0)


@pytest.mark.parametrize("flow", [None, 3, "flow", Plain, retry.Times(1, name="r")])
def test_loading_what_is_no_flow(flow: Any) -> None:
    with pytest.raises(exceptions.CompilationFailure, match="Only a flow or a task can be loaded"):
        engines.load(flow)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"store": 3}, "store must be a Mapping, not 3"),
        ({"store": [("a", 1)]}, "store must be a Mapping"),
        ({"flow_detail": 3}, "flow_detail must be a FlowDetail, not 3"),
        ({"book": 3}, "book must be a LogBook, not 3"),
        ({"backend": 3}, "backend must be a Backend, a dict of its options or a URI, not 3"),
        ({"engine": None}, "engine must be the name of a kind, or a URI, not None"),
    ],
)
def test_loading_with_arguments_of_a_wrong_type(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        engines.load(Plain("p"), **arguments)


@pytest.mark.parametrize("workers", [0, -1, "x", []])
def test_a_pool_of_no_size(workers: Any) -> None:
    with pytest.raises(ValueError, match="max_workers must be a number, at least 1"):
        engines.load(Plain("p"), engine="parallel", max_workers=workers)


def test_a_priority_that_is_no_number() -> None:
    only = Plain("p")
    only.priority = "high"  # type: ignore[assignment]
    with pytest.raises(exceptions.CompilationFailure, match=r"priority of atom 'p' .* not 'high'"):
        engines.load(linear_flow.Flow("f").add(only))


def test_asking_for_names_that_are_none() -> None:
    engine = engines.load(Plain("p"))
    engine.prepare()
    with pytest.raises(TypeError, match="A stored name is a str, not None"):
        engine.storage.fetch(None)  # type: ignore[arg-type]
    with pytest.raises(exceptions.NotFound, match="Unknown atom name None"):
        engine.storage.get_atom_state(None)  # type: ignore[arg-type]


def test_values_of_one_name_come_innermost_first() -> None:
    """What is inside a flow comes before the flow's retry; `fetch` gives the first."""
    inner = linear_flow.Flow("inner", retry.ForEach(["inner"], "r2", provides="x"))
    inner.add(task.FunctorTask(lambda: "task", name="t", provides="x"))
    flow = linear_flow.Flow("f", retry.ForEach(["outer"], "r1", provides="x")).add(inner)
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.fetch("x") == "task"
    assert engine.storage.fetch_all()["x"] == ["task", "inner", "outer"]
    assert [record.name for record in engine.storage.flow_detail] == ["t", "r2", "r1"]


def test_a_retry_that_could_not_be_reverted_provides_nothing() -> None:
    class Stuck(retry.AlwaysRevert):
        def revert(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("stuck")

    def fail() -> None:
        raise ValueError("x")

    flow = linear_flow.Flow("f", Stuck("r", provides="x"))
    engine = engines.load(flow.add(task.FunctorTask(fail, name="t")))
    with pytest.raises(exceptions.WrappedFailure):
        engine.run()
    assert engine.storage.get_atom_state("r") == states.REVERT_FAILURE
    assert engine.storage.fetch_all() == {}


def test_deciders_of_an_empty_flow_are_not_asked() -> None:
    """There is nobody to be ignored; what comes after it runs, and running again asks nobody."""
    asked: list[Any] = []

    def decide(history: dict[str, Any]) -> bool:
        asked.append(history)
        return False

    a, b, empty = Plain("a"), Plain("b"), linear_flow.Flow("empty")
    flow = graph_flow.Flow("f").add(a, empty, b)
    engine = engines.load(flow.link(a, empty, decider=decide).link(empty, b))
    engine.run()
    engine.run()
    assert asked == []
    assert engine.storage.get_atom_state("b") == states.SUCCESS


def test_a_flow_detail_of_a_flow_that_was_loaded_before() -> None:
    detail = models.FlowDetail("f")
    engines.load(Plain("p"), flow_detail=detail).run()
    engine = engines.load(Plain("p"), flow_detail=detail)
    engine.run()
    assert engine.storage.get_attempt("p").attempt == 1  # type: ignore[union-attr]
