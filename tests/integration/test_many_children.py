"""Parents with many child flows: writes per child, wake-ups, cancellation and reversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import child_flows
from tests.support.child_flows import effects
from wbengine import engines, operations, states, testing
from wbengine._runtime.gates import child_flows as gate
from wbengine.engines import _children
from wbengine.persistence import backends
from wbengine.persistence.backends import _sql as sql


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sql.SQLBackend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        assert isinstance(backend, sql.SQLBackend)
        yield backend


@pytest.fixture(autouse=True)
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ends wait until no other flow can run, and group those of a few children."""
    monkeypatch.setattr(gate, "_MIN_GROUPED", 2)
    monkeypatch.setattr(gate, "_DELAY_SECONDS", 1000.0)
    monkeypatch.setattr(gate, "_MAX_DELAY_SECONDS", 1000.0)


def submit(workflow: Any, store: sql.SQLBackend, folder: Path, count: int) -> engines.FlowHandle:
    inputs = {"folder": str(folder), "items": [str(number) for number in range(count)]}
    return engines.submit(workflow, inputs=inputs, backend=store)


def counted(store: sql.SQLBackend) -> Counter[str]:
    """Run all submitted flows; return the numbers of statements that park, command, and all."""
    statements: Counter[str] = Counter()

    def note(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        statements["all"] += 1
        statements["parked"] += "end_delay = ?" in statement
        if statement.startswith("UPDATE wbe_flowdetails SET wish = ?"):
            statements["commands"] += 1

    sa.event.listen(store.engine, "after_cursor_execute", note)
    try:
        testing.run_submitted(store)
    finally:
        sa.event.remove(store.engine, "after_cursor_execute", note)
    return statements


def states_of_children(store: sql.SQLBackend, parent: str) -> Counter[str]:
    with store.get_connection() as connection:
        rows = connection.list_flows(parent=parent, limit=500).flows
    return Counter(row.state for row in rows)


@pytest.mark.slow
def test_writes_per_child_are_constant_and_parent_wakes_rarely(
    store: sql.SQLBackend, tmp_path: Path
) -> None:
    totals = []
    for count in (10, 30, 50):
        handle = submit(child_flows.order_by_async_map, store, tmp_path, count)
        statements = counted(store)
        assert len(handle.value(timeout=0)) == count
        assert statements["parked"] <= 2
        totals.append(statements["all"])
    first, second = totals[1] - totals[0], totals[2] - totals[1]
    assert abs(second - first) < first / 10


@pytest.mark.slow
def test_children_are_stored_with_few_statements(
    store: sql.SQLBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    original = _children.ChildFlows._post

    def post(self: Any, new: Any) -> None:
        started.append(len(new))
        original(self, new)

    monkeypatch.setattr(_children, "_MAX_FLOWS", 20)
    monkeypatch.setattr(_children.ChildFlows, "_post", post)
    submit(child_flows.order_by_async_map, store, tmp_path, 50)
    testing.run_submitted(store)
    assert started == [20, 20, 10]


@pytest.mark.slow
def test_children_in_progress_together_are_reverted_together(
    store: sql.SQLBackend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_by_async_map, store, tmp_path, 20)
    testing.run_submitted(store)
    operations.request(store, handle.id, "revert")
    statements = counted(store)
    assert handle.state == states.REVERTED
    assert states_of_children(store, handle.id) == {states.REVERTED: 20}
    assert statements["parked"] <= 2
    assert statements["commands"] == 20


def test_failed_revert_of_child_leaves_others_reverted(
    store: sql.SQLBackend, tmp_path: Path
) -> None:
    inputs = {"folder": str(tmp_path), "items": ["a", "stuck", "b", "c"]}
    handle = engines.submit(child_flows.order_by_async_map, inputs=inputs, backend=store)
    testing.run_submitted(store)
    for _ in range(2):
        operations.request(store, handle.id, "revert")
        testing.run_submitted(store)
        assert handle.state == states.FAILURE
        assert states_of_children(store, handle.id) == {states.REVERTED: 3, states.FAILURE: 1}
    assert sorted(effects(tmp_path)[4:]) == ["release-a", "release-b", "release-c"]


def test_later_child_is_reverted_before_those_whose_results_it_may_use(
    store: sql.SQLBackend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_in_two_rounds, store, tmp_path, 3)
    testing.run_submitted(store)
    operations.request(store, handle.id, "revert")
    testing.run_submitted(store)
    assert handle.state == states.REVERTED
    released = [each for each in effects(tmp_path) if each.startswith("release")]
    assert released[0] == "release-last"
    assert sorted(released[1:]) == ["release-0", "release-1", "release-2"]


@pytest.mark.slow
def test_each_child_of_cancelled_parent_receives_one_command(
    store: sql.SQLBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_MIN_GROUPED", 1000)  # The parent continues after each end.
    handle = submit(child_flows.order_and_wait, store, tmp_path, 20)
    testing.run_submitted(store)
    handle.cancel("enough")
    statements = counted(store)
    assert states_of_children(store, handle.id) == {states.REVERTED: 20}
    assert handle.state == states.REVERTED
    assert statements["commands"] == 20
    assert statements["parked"] >= 20


@pytest.mark.slow
def test_all_children_of_suspended_parent_are_suspended_and_resumed(
    store: sql.SQLBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_children, "_MAX_FLOWS", 7)
    monkeypatch.setattr(_children, "_MAX_COMMANDS", 3)
    handle = submit(child_flows.order_and_wait, store, tmp_path, 20)
    testing.run_submitted(store)
    operations.suspend(store, handle.id)
    testing.run_submitted(store)
    assert states_of_children(store, handle.id) == {states.SUSPENDED: 20}
    operations.request(store, handle.id, "resume")
    testing.run_submitted(store)
    with store.get_connection() as connection:
        uuids = [row.uuid for row in connection.list_flows(parent=handle.id, limit=500).flows]
    for uuid in uuids:
        operations.signal(store, uuid, "go")
    testing.run_submitted(store)
    assert len(handle.value(timeout=0)) == 20


def test_waiting_child_does_not_wake_its_parent(store: sql.SQLBackend, tmp_path: Path) -> None:
    submit(child_flows.order_and_wait, store, tmp_path, 10)
    assert counted(store)["parked"] == 1 + 10


def test_parent_with_limit_in_flight_continues_before_all_ends(
    store: sql.SQLBackend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_by_map, store, tmp_path, 9)
    testing.run_submitted(store)
    assert len(handle.value(timeout=0)) == 9
