"""Child flows of flows that conductors run."""

from __future__ import annotations

import pytest

from tests.support import child_flows
from tests.support.orders import Orders
from tests.support.reading import flow_uuids, read_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine.operations import _retention
from wbengine.persistence import base as persistence

pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)


@pytest.mark.parametrize("workflow", [child_flows.order, child_flows.order_async])
def test_parent_receives_results_of_children(workflow: type[task.Workflow], orders: Orders) -> None:
    handle = orders.start(workflow, "tea", "cup")
    assert handle.value(timeout=0) == ["reserved tea", "reserved cup"]
    assert orders.states(handle) == [states.SUCCESS] * 3


def test_children_of_children_run(orders: Orders) -> None:
    handle = orders.start(child_flows.order_of_orders, "tea")
    assert handle.value(timeout=0) == [["reserved tea"], ["reserved tea"]]


@pytest.mark.parametrize("deletes_by_age", [True, False])
def test_parent_is_undone_with_all_children_after_retention_and_prune(
    orders: Orders, deletes_by_age: bool
) -> None:
    handle = orders.start(child_flows.order_of_orders, "tea", undo_until="30d")
    with orders.store.get_connection() as connection:
        if deletes_by_age:
            before = {states.SUCCESS: connection.now() + 1.0}
            assert _retention.delete_ended(connection, before, 100).flows == 0
        else:
            assert list(operations.prune(orders.store, before=connection.now() + 1.0)) == []
    orders.request(handle.id, "revert")
    assert handle.state == states.REVERTED
    assert orders.effects.count("release-tea") == orders.effects.count("reserve-tea") == 2


def test_children_have_priority_and_queue_of_their_parent(orders: Orders) -> None:
    options = {"priority": "high", "queue": "shop", "fair_key": "a"}
    handle = orders.start(child_flows.order, "tea", **options)
    with orders.store.get_connection() as connection:
        records = connection.flow_records([handle.id, *orders.children(handle)])
    parent, child = (record.meta["submitted"] for record in records.values())
    assert parent == child and child["queue"] == "shop"


def test_parent_is_parked_while_its_children_wait(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", "cup")
    assert orders.states(handle) == [states.WAITING] * 3
    orders.let_children_go(handle)
    assert handle.value(timeout=0) == ["tea", "cup"]


def test_cancelled_parent_ends_after_its_children(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", "cup")
    handle.cancel("enough")
    orders.run()
    assert orders.states(handle) == [states.REVERTED] * 3
    assert sorted(orders.effects) == ["release-cup", "release-tea", "reserve-cup", "reserve-tea"]
    with pytest.raises(exceptions.Cancelled, match="enough"):
        handle.value(timeout=0)


def interrupt(store: persistence.Backend, uuid: str) -> None:
    """End a flow as an engine does whose store fails for some time."""
    with store.get_connection() as connection:
        lease = connection.acquire_lease(uuid, "engine", 60.0)
        flow = connection.get_flow_details(uuid)
        flow.epoch = lease.epoch
        flow.enter(states.FAILURE, connection.now(), errors=exceptions.StorageFailure.__name__)
        connection.save_changes(flow, (), lease=lease)
        connection.release_lease(lease)


def test_interrupted_child_continues(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea")
    (child,) = orders.children(handle)
    interrupt(orders.store, child)
    orders.run()
    assert orders.states(handle) == [states.WAITING] * 2
    operations.signal(orders.store, child, "go")
    orders.run()
    assert handle.value(timeout=0) == ["tea"]


@pytest.mark.parametrize("request_", [None, "resume", "retry"])
def test_cancelled_parent_ends_after_interrupted_child(
    orders: Orders, request_: str | None
) -> None:
    """The child is reverted, also if it is about to be resumed or retried."""
    handle = orders.start(child_flows.order_and_wait, "tea")
    (child,) = orders.children(handle)
    interrupt(orders.store, child)
    if request_ is not None:
        operations.request(orders.store, child, request_)
    handle.cancel("enough")
    orders.run()
    assert orders.states(handle) == [states.REVERTED] * 2
    assert orders.effects == ["reserve-tea", "release-tea"]


def test_cancelled_parent_ends_after_interrupted_child_in_its_process(orders: Orders) -> None:
    given = {"folder": str(orders.folder), "items": ["tea"]}
    engine = engines.load(child_flows.order_and_wait, given, backend=orders.store)
    uuid = engine.storage.flow_uuid
    for _ in engine.run_iter(timeout=0.01):
        if orders.effects:
            engine.suspend()
    (child,) = flow_uuids(orders.store, parent=uuid)
    interrupt(orders.store, child)
    operations.cancel(orders.store, uuid)
    with pytest.raises(exceptions.Cancelled):
        operations.resume(orders.store, uuid).run(timeout=30)
    assert read_flow(orders.store, child).state == states.REVERTED
    assert orders.effects == ["reserve-tea", "release-tea"]


def test_cancelled_parent_leaves_detached_children(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", detached=True)
    handle.cancel()
    orders.run()
    assert orders.states(handle) == [states.REVERTED, states.WAITING]
    assert orders.effects == ["reserve-tea"]


def test_cancelled_child_is_failure_of_its_step(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", "cup")
    operations.cancel(orders.store, orders.children(handle)[0], reason="sold out")
    orders.run()
    assert orders.states(handle) == [states.REVERTED] * 3
    with pytest.raises(exceptions.Cancelled, match="sold out"):
        handle.value(timeout=0)


def test_suspended_parent_suspends_its_children_and_resumes_them(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", "cup")
    operations.suspend(orders.store, handle.id, reason="night")
    orders.run()
    assert orders.states(handle) == [states.SUSPENDED] * 3
    orders.let_children_go(handle)
    assert orders.states(handle) == [states.SUSPENDED] * 3
    orders.request(handle.id, "resume")
    assert handle.value(timeout=0) == ["tea", "cup"]


def test_resumed_parent_leaves_child_that_was_suspended_alone(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", "cup")
    operations.suspend(orders.store, orders.children(handle)[0], reason="inventory")
    operations.suspend(orders.store, handle.id)
    orders.run()
    orders.request(handle.id, "resume")
    assert orders.states(handle) == [states.WAITING, states.SUSPENDED, states.WAITING]


def test_suspended_parent_leaves_detached_children(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea", detached=True)
    operations.suspend(orders.store, handle.id)
    orders.run()
    assert orders.states(handle) == [states.SUSPENDED, states.WAITING]


def test_failed_parent_reverts_complete_children(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_fail, "tea", "cup")
    assert orders.states(handle) == [states.REVERTED] * 3
    assert orders.effects == ["reserve-tea", "reserve-cup", "release-cup", "release-tea"]


def test_failed_revert_of_child_is_tried_once_for_each_revert_of_parent(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_fail, "tea", "stuck")
    assert orders.states(handle) == [states.FAILURE, states.SUCCESS, states.FAILURE]
    child = read_flow(orders.store, orders.children(handle)[1], lazy=True)
    assert [change.state for change in child.history].count(states.FAILURE) == 1
    orders.request(handle.id, "revert")
    assert orders.states(handle) == [states.FAILURE, states.SUCCESS, states.FAILURE]
    child = read_flow(orders.store, orders.children(handle)[1], lazy=True)
    assert [change.state for change in child.history].count(states.FAILURE) == 2


def test_reverted_parent_after_success_reverts_its_children(orders: Orders) -> None:
    handle = orders.start(child_flows.order, "tea", "cup")
    orders.request(handle.id, "revert", reason="returned")
    assert orders.states(handle) == [states.REVERTED] * 3
    assert orders.effects == ["reserve-tea", "reserve-cup", "release-cup", "release-tea"]


def test_deleted_child_is_failure_of_its_step(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea")
    with orders.store.get_connection() as connection:
        connection.destroy_flow(orders.children(handle)[0])
    orders.run()
    with pytest.raises(exceptions.FlowDeleted):
        handle.value(timeout=0)


def test_parent_that_ends_before_its_child_starts_no_second_child(orders: Orders) -> None:
    handle = orders.start(child_flows.order, "none", "tea")
    assert orders.states(handle) == [states.REVERTED] * 2
    orders.run()
    assert orders.states(handle) == [states.REVERTED] * 2


def test_users_cannot_send_the_signal_of_an_end(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_wait, "tea")
    with pytest.raises(ValueError, match="printable"):
        handle.signal(f"\x1echild:{orders.children(handle)[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["limited_parent", "limited_grandparent"])
def test_child_with_limit_of_its_parent_uses_its_permit(factory: str, orders: Orders) -> None:
    given = {"folder": str(orders.folder), "tenant": "ann"}
    handles = [
        engines.submit(f"tests.support.child_flows:{name}", inputs=given, backend=orders.store)
        for name in (factory, "limited", factory)
    ]
    until(lambda: orders.run() == [], within=3.0)
    assert [handle.state for handle in handles] == [states.SUCCESS] * 3
    assert orders.effects == ["use-ann"] * 3
    for handle in handles:
        operations.request(orders.store, handle.id, "revert")
    until(lambda: orders.run() == [], within=3.0)
    assert [handle.state for handle in handles] == [states.REVERTED] * 3


@pytest.mark.parametrize("is_forked_again", [False, True])
def test_fork_that_owns_a_child_reverts_it(is_forked_again: bool, orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_pack, "tea")
    fork = operations.fork(orders.store, handle.id, "reserve", own=True).uuid
    orders.run()
    if is_forked_again:
        fork = operations.fork(orders.store, fork, "reserve", own=True).uuid
        orders.run()
    with orders.store.get_connection() as connection:
        (child,) = orders.children(handle)
        connection.destroy_flow(handle.id)
    orders.request(fork, "revert")
    ended = [engines.handle(uuid, backend=orders.store).state for uuid in (fork, child)]
    assert ended == [states.REVERTED] * 2
    assert orders.effects[-2:] == ["release-box", "release-tea"]


def test_parent_is_not_reverted_before_the_fork_that_owns_its_child(orders: Orders) -> None:
    handle = orders.start(child_flows.order_and_pack, "tea")
    (child,) = orders.children(handle)
    fork = operations.fork(orders.store, child, "reserve", undo=True).uuid
    orders.run()
    for expected in (states.FAILURE, states.REVERTED):
        orders.request(handle.id, "revert")
        assert handle.state == expected
        if expected == states.FAILURE:
            with pytest.raises(exceptions.InvalidState, match=f"revert or cancel .* {fork}"):
                handle.value(timeout=0)
            orders.request(fork, "revert")
    assert orders.effects[-2:] == ["release-box", "release-tea"]
    assert orders.effects.count("release-tea") == 2
