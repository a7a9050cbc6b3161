"""Parents with many child flows: writes per child, wake-ups, cancellation and reversion."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import child_flows
from tests.support.orders import Orders
from wbengine import engines, operations, states
from wbengine._runtime.gates import child_flows as gate
from wbengine.engines import _children
from wbengine.persistence.backends import _sql as sql

pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ends wait until no other flow can run, and group those of a few children."""
    monkeypatch.setattr(gate, "_MIN_GROUPED", 2)
    monkeypatch.setattr(gate, "_DELAY_SECONDS", 1000.0)
    monkeypatch.setattr(gate, "_MAX_DELAY_SECONDS", 1000.0)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def counted(orders: Orders) -> Counter[str]:
    """Run all submitted flows; return the numbers of statements that park, command, and all."""
    statements: Counter[str] = Counter()

    def note(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        statements["all"] += 1
        statements["parked"] += "end_delay = ?" in statement
        if statement.startswith("UPDATE wbe_flowdetails SET wish = ?"):
            statements["commands"] += 1

    assert isinstance(orders.store, sql.SQLBackend)
    engine = orders.store.engine
    sa.event.listen(engine, "after_cursor_execute", note)
    try:
        orders.run()
    finally:
        sa.event.remove(engine, "after_cursor_execute", note)
    return statements


def states_of_children(orders: Orders, parent: engines.FlowHandle) -> Counter[str]:
    return Counter(orders.states(parent)[1:])


@pytest.mark.slow
def test_writes_per_child_are_constant_and_parent_wakes_rarely(orders: Orders) -> None:
    totals = []
    for count in (10, 30, 50):
        handle = orders.submit(child_flows.order_by_async_map, *numbers(count))
        statements = counted(orders)
        assert len(handle.value(timeout=0)) == count
        assert statements["parked"] <= 2
        totals.append(statements["all"])
    first, second = totals[1] - totals[0], totals[2] - totals[1]
    assert abs(second - first) < first / 10


@pytest.mark.slow
def test_children_are_stored_with_few_statements(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    original = _children.ChildFlows._post

    def post(self: Any, new: Any) -> None:
        started.append(len(new))
        original(self, new)

    monkeypatch.setattr(_children, "_MAX_FLOWS", 20)
    monkeypatch.setattr(_children.ChildFlows, "_post", post)
    orders.start(child_flows.order_by_async_map, *numbers(50))
    assert started == [20, 20, 10]


@pytest.mark.slow
def test_children_in_progress_together_are_reverted_together(orders: Orders) -> None:
    handle = orders.start(child_flows.order_by_async_map, *numbers(20))
    operations.request(orders.store, handle.id, "revert")
    statements = counted(orders)
    assert handle.state == states.REVERTED
    assert states_of_children(orders, handle) == {states.REVERTED: 20}
    assert statements["parked"] <= 2
    assert statements["commands"] == 20


def test_failed_revert_of_child_leaves_others_reverted(orders: Orders) -> None:
    handle = orders.start(child_flows.order_by_async_map, "a", "stuck", "b", "c")
    for _ in range(2):
        orders.request(handle.id, "revert")
        assert handle.state == states.FAILURE
        assert states_of_children(orders, handle) == {states.REVERTED: 3, states.FAILURE: 1}
    assert sorted(orders.effects[4:]) == ["release-a", "release-b", "release-c"]


def test_later_child_is_reverted_before_those_whose_results_it_may_use(orders: Orders) -> None:
    handle = orders.start(child_flows.order_in_two_rounds, *numbers(3))
    orders.request(handle.id, "revert")
    assert handle.state == states.REVERTED
    released = [each for each in orders.effects if each.startswith("release")]
    assert released[0] == "release-last"
    assert sorted(released[1:]) == ["release-0", "release-1", "release-2"]


@pytest.mark.slow
def test_each_child_of_cancelled_parent_receives_one_command(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_MIN_GROUPED", 1000)  # The parent continues after each end.
    handle = orders.start(child_flows.order_and_wait, *numbers(20))
    handle.cancel("enough")
    statements = counted(orders)
    assert states_of_children(orders, handle) == {states.REVERTED: 20}
    assert handle.state == states.REVERTED
    assert statements["commands"] == 20
    assert statements["parked"] >= 20


@pytest.mark.slow
def test_all_children_of_suspended_parent_are_suspended_and_resumed(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_children, "_MAX_FLOWS", 7)
    monkeypatch.setattr(_children, "_MAX_COMMANDS", 3)
    handle = orders.start(child_flows.order_and_wait, *numbers(20))
    operations.suspend(orders.store, handle.id)
    orders.run()
    assert states_of_children(orders, handle) == {states.SUSPENDED: 20}
    orders.request(handle.id, "resume")
    orders.let_children_go(handle)
    assert len(handle.value(timeout=0)) == 20


def test_waiting_child_does_not_wake_its_parent(orders: Orders) -> None:
    orders.submit(child_flows.order_and_wait, *numbers(10))
    assert counted(orders)["parked"] == 1 + 10


def test_parent_with_limit_in_flight_continues_before_all_ends(orders: Orders) -> None:
    handle = orders.start(child_flows.order_by_map, *numbers(9))
    assert len(handle.value(timeout=0)) == 9
