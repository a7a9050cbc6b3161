"""Operations on many flows in all stores."""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.failed_flows import store_flows
from wbengine import exceptions, states
from wbengine.persistence import base
from wbengine.persistence._bulk_records import CANCELLED, COMPLETE, RUNNING, Bulk, BulkFlow, Skipped
from wbengine.signals import Signal

from . import places

Connection = base.Connection


def bulk_of(flows: Sequence[BulkFlow], **fields: Any) -> Bulk:
    values: dict[str, Any] = {"reason": "Ä\n'", "by": "ann", "rate": 2.5, "created": time.time()}
    arguments, selection = {"a": [1, "é"]}, {"state": ["FAILURE"]}
    bulk = Bulk(str(uuids.uuid4()), "flow retry", arguments, selection, total=len(flows), **values)
    return bulk._replace(**fields)


def stored(connection: Connection, number: int, **fields: Any) -> Bulk:
    """Store an operation on so many flows, which do not exist."""
    flows = [BulkFlow(f"f{index}", states.FAILURE) for index in range(number)]
    bulk = bulk_of(flows, **fields)
    connection.bulks.add(bulk, flows)
    return bulk


class Noting:
    """A work that notes the flows, and skips some of them."""

    def __init__(self, skipped: Mapping[str, str] | None = None) -> None:
        self.skipped, self.flows = dict(skipped or {}), list[BulkFlow]()

    def __call__(
        self, backend: base.Backend, bulk: Bulk, flows: Sequence[BulkFlow]
    ) -> dict[str, str]:
        self.flows += flows
        named = {flow.uuid for flow in flows}
        return {uuid: reason for uuid, reason in self.skipped.items() if uuid in named}


@places.dialects
def test_stored_operation_is_read_unchanged(connection: Connection) -> None:
    first, second = stored(connection, 2), stored(connection, 0, reason=None, by=None, rate=None)
    assert connection.bulks.get(first.uuid) == first
    assert not connection.bulks.has_own_arguments(first.uuid)
    assert connection.bulks.latest(limit=2) == [second, first]
    assert connection.bulks.latest((CANCELLED,)) == []
    assert connection.bulks.flows(first.uuid) == [("f0", None), ("f1", None)]
    with pytest.raises(exceptions.NotFound, match="missing"):
        connection.bulks.get("missing")


@places.dialects
def test_flows_are_settled_in_order_and_once(connection: Connection) -> None:
    bulk, work = stored(connection, 5), Noting({"f1": "busy", "f2": "gone: ä", "f4": "busy"})
    advanced = connection.bulks.advance(bulk.uuid, "a", 60, 2, work)
    assert advanced is not None and (advanced.done, advanced.skipped, advanced.state) == (
        1,
        1,
        RUNNING,
    )
    assert connection.bulks.get(bulk.uuid).owner == "a"
    ended = connection.bulks.advance(bulk.uuid, "a", 60, 9, work)
    assert ended is not None and ended.ended is not None
    assert (ended.done, ended.skipped, ended.state) == (2, 3, COMPLETE)
    assert connection.bulks.get(bulk.uuid) == ended
    assert [flow.uuid for flow in work.flows] == ["f0", "f1", "f2", "f3", "f4"]
    assert connection.bulks.advance(bulk.uuid, "a", 60, 9, work) is None
    assert connection.bulks.skipped(bulk.uuid) == [
        Skipped("busy", 2, "f1"),
        Skipped("gone: ä", 1, "f2"),
    ]
    assert connection.bulks.flows(bulk.uuid, 2, 1) == [("f1", "busy"), ("f2", "gone: ä")]


@places.dialects
def test_work_receives_present_states_and_arguments(connection: Connection) -> None:
    failed, fresh = store_flows(connection.backend, 1) + store_flows(
        connection.backend, 1, state=None
    )
    flows = [
        BulkFlow(failed, states.FAILURE, {"inputs": {"a": 1}}),
        BulkFlow(fresh, states.PENDING),
        BulkFlow("deleted", states.FAILURE),
    ]
    bulk, work = bulk_of(flows), Noting()
    connection.bulks.add(bulk, flows)
    assert connection.bulks.has_own_arguments(bulk.uuid)
    connection.bulks.advance(bulk.uuid, "a", 60, 9, work)
    assert work.flows == [
        flows[0]._replace(current_state=states.FAILURE),
        flows[1]._replace(current_state=states.PENDING),
        flows[2],
    ]


@places.dialects
def test_one_owner_at_a_time_has_the_claim(connection: Connection) -> None:
    bulk, work = stored(connection, 5), Noting()
    assert connection.bulks.advance(bulk.uuid, "a", 60, 1, work)
    assert connection.bulks.advance(bulk.uuid, "b", 60, 1, work) is None
    connection.bulks.release(bulk.uuid, "b")
    assert connection.bulks.advance(bulk.uuid, "b", 60, 1, work) is None
    connection.bulks.release(bulk.uuid, "a")
    assert connection.bulks.get(bulk.uuid).owner is None
    assert connection.bulks.advance(bulk.uuid, "b", 0, 1, work)  # Its claim ends at once.
    assert connection.bulks.advance(bulk.uuid, "a", 60, 1, work)
    assert len(work.flows) == 3


@places.durable_dialects
def test_changes_of_a_failed_batch_are_not_stored(connection: Connection) -> None:
    uuid = store_flows(connection.backend, 1, state=None)[0]
    flows = [BulkFlow(uuid, states.PENDING)]
    bulk = bulk_of(flows)
    connection.bulks.add(bulk, flows)

    def send(backend: base.Backend, bulk: Bulk, flows: Sequence[BulkFlow]) -> dict[str, str]:
        with backend.get_connection() as inner:
            assert inner.put_signal(flows[0].uuid, Signal("paid", "1", 1.0))
            assert list(inner.signals([uuid])[uuid]) == [Signal("paid", "1", 1.0)]
        return {}

    def fail(backend: base.Backend, bulk: Bulk, flows: Sequence[BulkFlow]) -> dict[str, str]:
        send(backend, bulk, flows)
        raise exceptions.StorageFailure("the disk is full")

    with pytest.raises(exceptions.StorageFailure, match="full"):
        connection.bulks.advance(bulk.uuid, "a", 60, 9, fail)
    assert connection.signals([uuid]) == {} and connection.bulks.get(bulk.uuid) == bulk
    connection.bulks.advance(bulk.uuid, "a", 60, 9, send)
    assert len(connection.signals([uuid])[uuid]) == 1
    assert connection.bulks.get(bulk.uuid).state == COMPLETE


@places.dialects
def test_cancelled_operation_advances_no_more_until_it_is_resumed(connection: Connection) -> None:
    bulk, work = stored(connection, 3), Noting()
    connection.bulks.advance(bulk.uuid, "a", 60, 1, work)
    for _ in range(2):
        cancelled = connection.bulks.change_state(bulk.uuid, CANCELLED)
        assert (cancelled.state, cancelled.done, cancelled.owner) == (CANCELLED, 1, None)
        assert cancelled.ended is not None
        assert connection.bulks.advance(bulk.uuid, "a", 60, 1, work) is None
    resumed = connection.bulks.change_state(bulk.uuid, RUNNING)
    assert (resumed.state, resumed.ended) == (RUNNING, None)
    connection.bulks.advance(bulk.uuid, "b", 60, 9, work)
    assert len(work.flows) == 3
    for state in (RUNNING, CANCELLED):
        with pytest.raises(exceptions.InvalidState, match="COMPLETE"):
            connection.bulks.change_state(bulk.uuid, state)
    with pytest.raises(exceptions.NotFound):
        connection.bulks.change_state("missing", CANCELLED)


@places.dialects
def test_ended_operations_are_deleted_with_their_flows(connection: Connection) -> None:
    running, ended = stored(connection, 1), stored(connection, 1)
    connection.bulks.advance(ended.uuid, "a", 60, 9, Noting())
    connection.bulks.delete_ended(1.0)
    assert connection.bulks.get(ended.uuid).state == COMPLETE
    connection.bulks.delete_ended(1e12)
    assert connection.bulks.get(running.uuid) == running
    assert len(connection.bulks.flows(running.uuid)) == 1
    with pytest.raises(exceptions.NotFound):
        connection.bulks.get(ended.uuid)
