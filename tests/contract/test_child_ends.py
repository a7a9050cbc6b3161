"""The ends of child flows, which stores report to their parents."""

from __future__ import annotations

import pytest

from wbengine import signals, states
from wbengine.persistence import base, models

from . import places

Connection = base.Connection


def stored(connection: Connection) -> tuple[models.FlowDetail, models.FlowDetail]:
    """Return a parent and its child."""
    parent, child = models.FlowDetail("parent"), models.FlowDetail("child")
    child.meta[models.PARENT] = {"flow": parent.uuid, "step": "any"}
    for flow in (parent, child):
        book = models.LogBook(flow.name)
        book.add(flow)
        connection.save_logbook(book)
    return parent, child


def ends(connection: Connection, flow: models.FlowDetail) -> list[str | None]:
    received = connection.signals([flow.uuid]).get(flow.uuid, ())
    return [signals.child_of(signal) for signal in received]


@places.dialects
@pytest.mark.parametrize("state", sorted(states.FLOW_ENDED))
def test_end_of_child_is_reported_once(connection: Connection, state: str) -> None:
    parent, child = stored(connection)
    lease = connection.acquire_lease(child.uuid, "engine", 60.0)
    child.epoch = lease.epoch
    child.enter(states.RUNNING, 1.0)
    connection.save_changes(child, (), lease=lease)
    assert ends(connection, parent) == []
    child.enter(state, 2.0)
    for _ in range(2):  # A repeated write.
        connection.save_changes(child, (), lease=lease)
    assert ends(connection, parent) == [child.uuid]


@places.dialects
def test_second_end_of_child_is_reported_again(connection: Connection) -> None:
    parent, child = stored(connection)
    for _ in range(2):
        lease = connection.acquire_lease(child.uuid, "engine", 60.0)
        child.epoch = lease.epoch
        child.enter(states.FAILURE, 2.0)
        connection.save_changes(child, (), lease=lease)
        connection.release_lease(lease)
    assert ends(connection, parent) == [child.uuid] * 2


@places.dialects
def test_deletion_of_unfinished_child_is_reported(connection: Connection) -> None:
    parent, child = stored(connection)
    connection.destroy_flow(child.uuid)
    assert ends(connection, parent) == [child.uuid]


@places.dialects
def test_end_of_child_without_parent_is_stored(connection: Connection) -> None:
    parent, child = stored(connection)
    connection.destroy_flow(parent.uuid)
    child.enter(states.SUCCESS, 2.0)
    connection.save_changes(child, ())
    assert connection.get_flow_details(child.uuid).state == states.SUCCESS
