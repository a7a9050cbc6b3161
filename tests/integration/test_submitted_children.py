"""Child flows of flows that conductors run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import child_flows
from tests.support.child_flows import effects
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task, testing
from wbengine.operations import _retention
from wbengine.persistence import backends
from wbengine.persistence import base as persistence


@pytest.fixture
def store(tmp_path: Path) -> Iterator[persistence.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


def submit(
    workflow: type[task.Workflow],
    store: persistence.Backend,
    folder: Path,
    *items: str,
    **more: Any,
) -> engines.FlowHandle:
    given = {"folder": str(folder), "items": list(items), **more}
    handle = engines.submit(workflow, inputs=given, backend=store)
    testing.run_submitted(store)
    return handle


def children_of(store: persistence.Backend, handle: engines.FlowHandle) -> list[str]:
    with store.get_connection() as connection:
        rows = connection.list_flows(newest_first=False).flows
        records = connection.flow_records([row.uuid for row in rows])
    return [row.uuid for row in rows if records[row.uuid].parent == handle.id]


def states_of(store: persistence.Backend, handle: engines.FlowHandle) -> list[str]:
    children = children_of(store, handle)
    return [engines.handle(uuid, backend=store).state for uuid in (handle.id, *children)]


@pytest.mark.parametrize("workflow", [child_flows.order, child_flows.order_async])
def test_parent_receives_results_of_children(
    workflow: type[task.Workflow], store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(workflow, store, tmp_path, "tea", "cup")
    assert handle.value(timeout=0) == ["reserved tea", "reserved cup"]
    assert states_of(store, handle) == [states.SUCCESS] * 3


def test_children_of_children_run(store: persistence.Backend, tmp_path: Path) -> None:
    handle = submit(child_flows.order_of_orders, store, tmp_path, "tea")
    assert handle.value(timeout=0) == [["reserved tea"], ["reserved tea"]]


@pytest.mark.parametrize("deletes_by_age", [True, False])
def test_parent_is_undone_with_all_children_after_retention_and_prune(
    store: persistence.Backend, tmp_path: Path, deletes_by_age: bool
) -> None:
    given = {"folder": str(tmp_path), "items": ["tea"]}
    handle = engines.submit(
        child_flows.order_of_orders, inputs=given, backend=store, undo_until="30d"
    )
    testing.run_submitted(store)
    with store.get_connection() as connection:
        if deletes_by_age:
            before = {states.SUCCESS: connection.now() + 1.0}
            assert _retention.delete_ended(connection, before, 100) == 0
        else:
            assert list(operations.prune(store, before=connection.now() + 1.0)) == []
    operations.request(store, handle.id, "revert")
    testing.run_submitted(store)
    assert handle.state == states.REVERTED
    assert effects(tmp_path).count("release-tea") == effects(tmp_path).count("reserve-tea") == 2


def test_children_have_priority_and_queue_of_their_parent(
    store: persistence.Backend, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "items": ["tea"]}
    handle = engines.submit(
        child_flows.order, inputs=given, backend=store, priority="high", queue="shop", fair_key="a"
    )
    testing.run_submitted(store)
    with store.get_connection() as connection:
        records = connection.flow_records([handle.id, *children_of(store, handle)])
    parent, child = (record.meta["submitted"] for record in records.values())
    assert parent == child and child["queue"] == "shop"


def test_parent_is_parked_while_its_children_wait(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", "cup")
    assert states_of(store, handle) == [states.WAITING] * 3
    for uuid in children_of(store, handle):
        operations.signal(store, uuid, "go")
    testing.run_submitted(store)
    assert handle.value(timeout=0) == ["tea", "cup"]


def test_cancelled_parent_ends_after_its_children(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", "cup")
    handle.cancel("enough")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED] * 3
    assert sorted(effects(tmp_path)) == ["release-cup", "release-tea", "reserve-cup", "reserve-tea"]
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


def test_interrupted_child_continues(store: persistence.Backend, tmp_path: Path) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea")
    (child,) = children_of(store, handle)
    interrupt(store, child)
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.WAITING] * 2
    operations.signal(store, child, "go")
    testing.run_submitted(store)
    assert handle.value(timeout=0) == ["tea"]


@pytest.mark.parametrize("request_", [None, "resume", "retry"])
def test_cancelled_parent_ends_after_interrupted_child(
    store: persistence.Backend, tmp_path: Path, request_: str | None
) -> None:
    """The child is reverted, also if it is about to be resumed or retried."""
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea")
    (child,) = children_of(store, handle)
    interrupt(store, child)
    if request_ is not None:
        operations.request(store, child, request_)
    handle.cancel("enough")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED] * 2
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_cancelled_parent_ends_after_interrupted_child_in_its_process(
    store: persistence.Backend, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "items": ["tea"]}
    engine = engines.load(child_flows.order_and_wait, given, backend=store)
    uuid = engine.storage.flow_uuid
    for _ in engine.run_iter(timeout=0.01):
        if effects(tmp_path):
            engine.suspend()
    with store.get_connection() as connection:
        (child,) = [row.uuid for row in connection.list_flows(parent=uuid).flows]
    interrupt(store, child)
    operations.cancel(store, uuid)
    with pytest.raises(exceptions.Cancelled):
        operations.resume(store, uuid).run(timeout=30)
    with store.get_connection() as connection:
        assert connection.get_flow_details(child).state == states.REVERTED
    assert effects(tmp_path) == ["reserve-tea", "release-tea"]


def test_cancelled_parent_leaves_detached_children(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", detached=True)
    handle.cancel()
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED, states.WAITING]
    assert effects(tmp_path) == ["reserve-tea"]


def test_cancelled_child_is_failure_of_its_step(store: persistence.Backend, tmp_path: Path) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", "cup")
    operations.cancel(store, children_of(store, handle)[0], reason="sold out")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED] * 3
    with pytest.raises(exceptions.Cancelled, match="sold out"):
        handle.value(timeout=0)


def test_suspended_parent_suspends_its_children_and_resumes_them(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", "cup")
    operations.suspend(store, handle.id, reason="night")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.SUSPENDED] * 3
    for uuid in children_of(store, handle):
        operations.signal(store, uuid, "go")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.SUSPENDED] * 3
    operations.request(store, handle.id, "resume")
    testing.run_submitted(store)
    assert handle.value(timeout=0) == ["tea", "cup"]


def test_resumed_parent_leaves_child_that_was_suspended_alone(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", "cup")
    operations.suspend(store, children_of(store, handle)[0], reason="inventory")
    operations.suspend(store, handle.id)
    testing.run_submitted(store)
    operations.request(store, handle.id, "resume")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.WAITING, states.SUSPENDED, states.WAITING]


def test_suspended_parent_leaves_detached_children(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea", detached=True)
    operations.suspend(store, handle.id)
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.SUSPENDED, states.WAITING]


def test_failed_parent_reverts_complete_children(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_fail, store, tmp_path, "tea", "cup")
    assert states_of(store, handle) == [states.REVERTED] * 3
    assert effects(tmp_path) == ["reserve-tea", "reserve-cup", "release-cup", "release-tea"]


def test_failed_revert_of_child_is_tried_once_for_each_revert_of_parent(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_fail, store, tmp_path, "tea", "stuck")
    assert states_of(store, handle) == [states.FAILURE, states.SUCCESS, states.FAILURE]
    with store.get_connection() as connection:
        child = connection.get_flow_details(children_of(store, handle)[1], lazy=True)
    assert [change.state for change in child.history].count(states.FAILURE) == 1
    operations.request(store, handle.id, "revert")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.FAILURE, states.SUCCESS, states.FAILURE]
    with store.get_connection() as connection:
        child = connection.get_flow_details(children_of(store, handle)[1], lazy=True)
    assert [change.state for change in child.history].count(states.FAILURE) == 2


def test_reverted_parent_after_success_reverts_its_children(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order, store, tmp_path, "tea", "cup")
    operations.request(store, handle.id, "revert", reason="returned")
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED] * 3
    assert effects(tmp_path) == ["reserve-tea", "reserve-cup", "release-cup", "release-tea"]


def test_deleted_child_is_failure_of_its_step(store: persistence.Backend, tmp_path: Path) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea")
    with store.get_connection() as connection:
        connection.destroy_flow(children_of(store, handle)[0])
    testing.run_submitted(store)
    with pytest.raises(exceptions.FlowDeleted):
        handle.value(timeout=0)


def test_parent_that_ends_before_its_child_starts_no_second_child(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order, store, tmp_path, "none", "tea")
    assert states_of(store, handle) == [states.REVERTED] * 2
    testing.run_submitted(store)
    assert states_of(store, handle) == [states.REVERTED] * 2


def test_users_cannot_send_the_signal_of_an_end(store: persistence.Backend, tmp_path: Path) -> None:
    handle = submit(child_flows.order_and_wait, store, tmp_path, "tea")
    with pytest.raises(ValueError, match="printable"):
        handle.signal(f"\x1echild:{children_of(store, handle)[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["limited_parent", "limited_grandparent"])
def test_child_with_limit_of_its_parent_uses_its_permit(
    factory: str, store: persistence.Backend, tmp_path: Path
) -> None:
    given = {"folder": str(tmp_path), "tenant": "ann"}
    handles = [
        engines.submit(f"tests.support.child_flows:{name}", inputs=given, backend=store)
        for name in (factory, "limited", factory)
    ]
    until(lambda: testing.run_submitted(store) == [], within=3.0)
    assert [handle.state for handle in handles] == [states.SUCCESS] * 3
    assert effects(tmp_path) == ["use-ann"] * 3
    for handle in handles:
        operations.request(store, handle.id, "revert")
    until(lambda: testing.run_submitted(store) == [], within=3.0)
    assert [handle.state for handle in handles] == [states.REVERTED] * 3


@pytest.mark.parametrize("is_forked_again", [False, True])
def test_fork_that_owns_a_child_reverts_it(
    is_forked_again: bool, store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_pack, store, tmp_path, "tea")
    fork = operations.fork(store, handle.id, "reserve", own=True).uuid
    testing.run_submitted(store)
    if is_forked_again:
        fork = operations.fork(store, fork, "reserve", own=True).uuid
        testing.run_submitted(store)
    with store.get_connection() as connection:
        (child,) = children_of(store, handle)
        connection.destroy_flow(handle.id)
    operations.request(store, fork, "revert")
    testing.run_submitted(store)
    ended = [engines.handle(uuid, backend=store).state for uuid in (fork, child)]
    assert ended == [states.REVERTED] * 2
    assert effects(tmp_path)[-2:] == ["release-box", "release-tea"]


def test_parent_is_not_reverted_before_the_fork_that_owns_its_child(
    store: persistence.Backend, tmp_path: Path
) -> None:
    handle = submit(child_flows.order_and_pack, store, tmp_path, "tea")
    (child,) = children_of(store, handle)
    fork = operations.fork(store, child, "reserve", undo=True).uuid
    testing.run_submitted(store)
    for expected in (states.FAILURE, states.REVERTED):
        operations.request(store, handle.id, "revert")
        testing.run_submitted(store)
        assert handle.state == expected
        if expected == states.FAILURE:
            with pytest.raises(exceptions.InvalidState, match=f"revert or cancel .* {fork}"):
                handle.value(timeout=0)
            operations.request(store, fork, "revert")
            testing.run_submitted(store)
    assert effects(tmp_path)[-2:] == ["release-box", "release-tea"]
    assert effects(tmp_path).count("release-tea") == 2
