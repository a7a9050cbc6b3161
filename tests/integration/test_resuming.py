"""Flows that are resumed after their engine died at any of its writes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.snapshots import Snapshots
from wbengine import deciders, engines, exceptions, retry, states, task
from wbengine._concurrency import crash_points
from wbengine.patterns import graph_flow, linear_flow
from wbengine.persistence import backends


class FailsUnless(task.Task):
    """Task that fails for every value but one."""

    def __init__(self, name: str, value: str, wanted: Any) -> None:
        super().__init__(name, requires=[value], auto_extract=False, provides=f"{name}-got")
        self.wanted = wanted

    def execute(self, **found: Any) -> Any:
        (value,) = found.values()
        if value != self.wanted:
            raise RuntimeError(f"{self.name} does not want {value}")
        return value

    def revert(self, **_: Any) -> None: ...


class ReturnsName(task.Task):
    def execute(self) -> str:
        return self.name


def no(history: Any) -> bool:
    return False


def flow() -> Any:
    each = linear_flow.Flow("each", retry.ForEach([1, 2, 3], "r-each", provides="v"))
    each.add(ReturnsName("before"), FailsUnless("picky", "v", 3))
    given = linear_flow.Flow(
        "given", retry.ParameterizedForEach("r-given", rebind=["choices"], provides="w")
    )
    given.add(FailsUnless("choosy", "w", "c"))
    times = linear_flow.Flow("times", retry.Times(3, "r-times", provides="n", backoff=0.001))
    times.add(FailsUnless("late", "n", 3))
    branches = graph_flow.Flow("branches")
    first, left_out, taken, end = (
        ReturnsName("first"),
        ReturnsName("left-out"),
        ReturnsName("taken"),
        ReturnsName("end"),
    )
    branches.add(first, left_out, taken, end)
    branches.link(first, left_out, decider=no, decider_depth=deciders.Depth.ATOM)
    branches.link(first, taken)
    branches.link(left_out, end)
    branches.link(taken, end)
    branches.join(end, "any")
    return linear_flow.Flow("f").add(branches, each, given, times)


def check(engine: Any) -> None:
    engine.run()
    storage = engine.storage
    assert storage.get_flow_state() == states.SUCCESS
    found = {name: storage.fetch(f"{name}-got") for name in ("picky", "choosy", "late")}
    assert found == {"picky": 3, "choosy": "c", "late": 3}
    tried = {"r-each": [1, 2, 3], "r-given": ["a", "b", "c"], "r-times": [1, 2, 3]}
    for name, values in tried.items():
        history = storage.get_retry_history(name)
        assert list(history.provided_iter()) == values, name
        failed = [set(failures) for _, failures in history]
        assert all(failed[:-1]) and not failed[-1], name
    assert storage.get_atom_state("left-out") == states.IGNORE
    assert storage.get_atom_state("end") == states.SUCCESS


STORE = {"choices": ["a", "b", "c"]}


def test_retries_resumed_after_any_write_in_memory_have_same_result() -> None:
    backend = Snapshots()
    check(engines.load(flow(), backend=backend, store=STORE))
    assert len(backend.taken) > 30
    for left in backend.taken:
        check(engines.load(flow(), flow_detail=left))


@pytest.mark.parametrize("kind", ["task", "flow", "Map", "workflow"])
def test_target_whose_decider_raised_never_runs_after_any_write(kind: str) -> None:
    ran: list[str] = []

    @task.task
    def effect(item: int = 0) -> None:
        ran.append("effect")

    @task.workflow
    def effects(steps: Any) -> None:
        ran.append("function")

    def raises(history: Any) -> bool:
        raise LookupError("no idea")

    def made() -> graph_flow.Flow:
        first, target = ReturnsName("first"), effect("target")
        members = {
            "task": target,
            "flow": linear_flow.Flow("inner").add(target, effect("later")),
            "Map": task.Map(target, "items", "item", name="many"),
            "workflow": effects("effects"),
        }
        flow = graph_flow.Flow("f").add(first, members[kind])
        return flow.link(first, members[kind], decider=raises)

    backend = Snapshots()
    store = {"items": [1, 2]}
    with pytest.raises(LookupError, match="no idea"):
        engines.run(made(), backend=backend, store=store)
    for left in backend.taken:
        engine = engines.load(made(), flow_detail=left, store=store)
        with contextlib.suppress(LookupError):  # A flow that has ended raises nothing.
            engine.run()
        assert engine.storage.get_flow_state() == states.REVERTED
    assert len(backend.taken) > 3
    assert not ran


@task.task
def twice(item: int) -> int:
    return 2 * item


@task.workflow
def order(steps: Any) -> int:
    return int(steps.run(twice, item=1) + steps.run(twice, item=2))


def test_task_that_was_running_when_its_engine_died_is_marked_as_resent() -> None:
    """This applies to tasks, steps and Maps, and not to the function of a workflow."""
    backend = Snapshots()
    doubles = task.Map(twice("one"), "items", "item", name="doubles")
    members = ReturnsName("first"), doubles, order("order")
    made = lambda: linear_flow.Flow("f").add(*members)  # noqa: E731
    engines.load(made(), backend=backend, store={"items": [1, 2]}).run()
    found = set()
    for left in backend.taken:
        running = {
            atom.name for atom in left if atom.state == states.RUNNING and atom.name != "order"
        }
        engine = engines.load(made(), flow_detail=left)
        engine.run()
        flow_detail = engine.storage.flow_detail
        resent = {atom.name for atom in flow_detail if atom.incidents}
        assert resent == running
        assert (flow_detail.resent_at is not None) == bool(running)
        found |= resent
    assert {"first", "doubles"} < found and any("order/" in name for name in found)


def test_suspended_flow_is_not_marked_as_resent() -> None:
    doubles = task.Map(twice("one"), "items", "item", name="doubles", max_in_flight=1)
    made = lambda: linear_flow.Flow("f").add(doubles)  # noqa: E731
    engine = engines.load(made(), store={"items": [1, 2, 3]})
    engine.atom_notifier.register(states.RUNNING, lambda *_, **details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    second = engines.load(made(), flow_detail=engine.storage.flow_detail)
    second.run()
    assert second.storage.flow_detail.resent_at is None


@pytest.fixture(params=["dir", "sqlite"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, list[Path]]]:
    """Yield a function that opens a store in a folder, and copies of a store after each write."""

    def opened(folder: Path) -> Any:
        if request.param == "dir":
            return backends.fetch({"connection": "dir", "path": str(folder)})
        return backends.fetch({"connection": f"sqlite:///{folder / 'store.db'}"})

    taken: list[Path] = []

    def copy(point: str) -> None:
        if point == "storage.after-save":
            taken.append(tmp_path / f"left-{len(taken)}")
            shutil.copytree(tmp_path / "store", taken[-1])

    (tmp_path / "store").mkdir()
    backend = opened(tmp_path / "store")
    backend.get_connection().upgrade()
    engine = engines.load(flow(), backend=backend, store=STORE)
    crash_points.install(copy)
    try:
        check(engine)
    finally:
        crash_points.install(None)
        backend.close()
    yield opened, taken


def test_retries_resumed_after_any_write_on_disk_have_same_result(
    places: tuple[Any, list[Path]],
) -> None:
    opened, taken = places
    assert len(taken) > 30
    for folder in taken[::4]:
        backend = opened(folder)
        connection = backend.get_connection()
        (left,) = [detail for book in connection.get_logbooks() for detail in book]
        connection.close()
        check(engines.load(flow(), flow_detail=left, backend=backend))
        backend.close()


@pytest.mark.parametrize("give_up", ["deadline", "cancel"])
def test_interrupted_task_is_reverted_when_suspended_before_it_reran(
    give_up: str,
) -> None:
    """Its effect before the engine died is undone too."""
    done: list[str] = []

    class Charges(task.Task):
        def execute(self) -> None:
            done.append("charged")

        def revert(self, *args: Any, **kwargs: Any) -> None:
            done.append("refunded")

    def flow() -> Any:
        return linear_flow.Flow("f").add(Charges("a"), Charges("b"))

    backend = Snapshots()
    engines.run(flow(), backend=backend)
    [left, *_] = [f for f in backend.taken if any(a.state == states.RUNNING for a in f)]
    engine = engines.load(flow(), flow_detail=left)
    engine.atom_notifier.register(states.RUNNING, lambda _, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atom_state("a") == states.RUNNING
    del done[:]
    other = engines.load(flow(), flow_detail=left)
    other.atom_notifier.register(states.RUNNING, lambda _, details: other.cancel())
    with pytest.raises((exceptions.DeadlineExceeded, exceptions.Cancelled)):
        other.run(deadline=0 if give_up == "deadline" else None)
    assert other.storage.get_flow_state() == states.REVERTED
    assert done[-1] == "refunded"
    assert other.storage.get_atom_state("b") == states.PENDING
