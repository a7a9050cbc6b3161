"""Commands and outlines of flows."""

from __future__ import annotations

import pytest

from tests.contract.stored_flows import make
from tests.seams import stores
from wbengine import exceptions, states
from wbengine.operations import _flow_results
from wbengine.persistence import base, models
from wbengine.types._outline import Outline, OutlineNode

from . import places

Connection = base.Connection
SUSPEND = base.FlowCommand("suspend", "reason Ä\0\ud800 '", "somebody", 1.5)


@pytest.fixture
def flow(connection: Connection) -> models.FlowDetail:
    book, flow_detail = make(models.TaskDetail("t"))
    book.add(models.FlowDetail("other"))
    connection.save_logbook(book)
    return flow_detail


@pytest.fixture
def lease(connection: Connection, flow: models.FlowDetail) -> stores.Lease:
    return connection.acquire_lease(flow.uuid, "me", 60)


CANCEL = base.FlowCommand("cancel", at=2.0)


@places.everywhere
def test_command_is_stored_until_the_run_that_handled_it_ends(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    assert connection.commands([flow.uuid]) == {} and lease.command is None
    connection.send_command(flow.uuid, SUSPEND)
    for asked in ([flow.uuid], ["other", flow.uuid, flow.uuid]):
        assert connection.commands(asked) == {flow.uuid: SUSPEND}
    assert connection.commands(["other"]) == connection.commands([]) == {}
    assert connection.end_lease(lease, SUSPEND) is None
    assert connection.commands([flow.uuid]) == {} and connection.get_lease(flow.uuid) is None


@places.everywhere
def test_run_with_unread_command_does_not_release_its_lease(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    connection.send_command(flow.uuid, SUSPEND)
    for handled in (None, CANCEL):
        assert connection.end_lease(lease, handled) == SUSPEND
        assert connection.get_lease(flow.uuid) == lease
    assert connection.end_lease(lease, SUSPEND, keep=True) is None
    assert connection.get_lease(flow.uuid) is None
    assert connection.commands([flow.uuid]) == {flow.uuid: SUSPEND}
    connection.acquire_lease(flow.uuid, "later", 60)
    assert connection.end_lease(lease, SUSPEND) is None  # A lost lease deletes nothing.
    assert connection.commands([flow.uuid]) == {flow.uuid: SUSPEND}


def test_latest_command_replaces_earlier_one(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    connection.send_command(flow.uuid, SUSPEND)
    connection.send_command(flow.uuid, CANCEL)
    assert connection.commands([flow.uuid]) == {flow.uuid: CANCEL}


def test_suspend_replaces_cancel_only_if_the_cancellation_is_recorded(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    connection.send_command(flow.uuid, CANCEL)
    with pytest.raises(exceptions.InvalidState, match="is about to be cancelled"):
        connection.send_command(flow.uuid, SUSPEND)
    assert connection.commands([flow.uuid]) == {flow.uuid: CANCEL}
    flow.cancel(1.0, "not wanted")
    connection.save_changes(flow, (), lease=lease)
    connection.send_command(flow.uuid, SUSPEND)
    assert connection.commands([flow.uuid]) == {flow.uuid: SUSPEND}


def test_next_lease_has_the_command_that_no_engine_handled(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """The command was sent before a run, or its engine died or released the lease."""
    connection.send_command(flow.uuid, CANCEL)
    (row,) = connection.list_flows(commanded=True).flows
    assert (row.uuid, row.command) == (flow.uuid, "cancel")
    dead = connection.acquire_lease(flow.uuid, "me", 60)
    assert dead.command == CANCEL
    lease = connection.acquire_lease(flow.uuid, "you", 60, dead=dead.epoch)
    assert lease.command == CANCEL
    connection.release_lease(lease)
    assert connection.acquire_lease(flow.uuid, "me", 60).command == CANCEL


def test_command_to_ended_flow_is_refused(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """A command that no engine handled before the end is deleted with the next lease."""
    connection.send_command(flow.uuid, CANCEL)
    flow.enter(states.SUCCESS, 1.0)
    connection.save_changes(flow, (), lease=lease)
    for _ in range(2):
        with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS: there is nothing"):
            connection.send_command(flow.uuid, SUSPEND)
        connection.release_lease(lease)
    assert connection.acquire_lease(flow.uuid, "me", 60).command is None
    assert connection.commands([flow.uuid]) == {}


@places.everywhere
def test_command_that_an_engine_left_at_the_end_of_its_run_is_not_pending(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """The engine died, or lost the store, between its last write and the end of its lease."""
    connection.send_command(flow.uuid, SUSPEND)
    flow.enter(states.FAILURE, 1.0)
    connection.save_changes(flow, (), lease=lease)
    connection.release_lease(lease)
    assert connection.commands([flow.uuid]) == {}
    result = _flow_results.read(connection, flow.uuid)
    assert (result.state, result.has_ended) == (states.FAILURE, True)
    retry = base.FlowCommand("retry", at=2.0)
    connection.send_command(flow.uuid, retry)
    assert connection.commands([flow.uuid]) == {flow.uuid: retry}


@places.everywhere
def test_request_of_ended_flow_is_settled_by_one_write_or_not_at_all(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    flow.enter(states.FAILURE, 1.0)
    connection.save_changes(flow, (), lease=lease)
    connection.release_lease(lease)
    retry = base.FlowCommand("retry", "reason Ä\0\ud800 '", "Ann", 1.1, {"inputs": {"n": "é"}})
    revert = base.FlowCommand("revert", at=2.0)
    assert connection.send_command(flow.uuid, retry) == retry
    assert connection.send_command(flow.uuid, retry._replace(at=7.0, edits=None)) == retry
    for other in (revert, retry._replace(edits={"inputs": {"n": "other"}})):
        with pytest.raises(exceptions.InvalidState, match=r"since 1970-01-01 .*, with edits: "):
            connection.send_command(flow.uuid, other)
    assert connection.commands([flow.uuid]) == {flow.uuid: retry}
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    assert lease.command == retry
    flow.enter(states.PENDING, 2.0)
    with pytest.raises(exceptions.InvalidState, match="withdrawn or replaced"):
        connection.save_changes(flow, (), lease=lease, settled=revert)
    assert connection.get_flow_details(flow.uuid).state == states.FAILURE
    assert connection.send_command(flow.uuid, CANCEL) is None
    assert connection.send_command(flow.uuid, revert) == revert
    connection.save_changes(flow, (), lease=lease, settled=revert)
    assert connection.get_flow_details(flow.uuid).state == states.PENDING
    assert connection.commands([flow.uuid]) == {}


def test_command_to_cancel_withdraws_request_of_ended_flow(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    flow.enter(states.REVERTED, 1.0)
    connection.save_changes(flow, (), lease=lease)
    for what, refused in (("resume", "to run it again, use retry"), ("revert", "no task can be")):
        with pytest.raises(exceptions.InvalidState, match=refused):
            connection.send_command(flow.uuid, base.FlowCommand(what))
    connection.send_command(flow.uuid, base.FlowCommand("retry", at=1.0))
    assert connection.send_command(flow.uuid, CANCEL) is None
    assert connection.commands([flow.uuid]) == {}


def test_request_to_revert_cancels_flow_that_has_not_ended(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    flow.enter(states.SUSPENDED, 1.0)
    connection.save_changes(flow, (), lease=lease)
    sent = connection.send_command(flow.uuid, base.FlowCommand("revert", at=2.0))
    assert sent == CANCEL
    with pytest.raises(exceptions.InvalidState, match="is about to be cancelled"):
        connection.send_command(flow.uuid, base.FlowCommand("resume"))


def test_invalid_command_is_rejected(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    with pytest.raises(ValueError, match="retry, revert, got 'explode'"):
        connection.send_command(flow.uuid, base.FlowCommand("explode"))
    with pytest.raises(TypeError, match="reason of a command must be a str"):
        connection.send_command(flow.uuid, base.FlowCommand("cancel", 7))  # type: ignore[arg-type]
    for odd in ("11111111-2222-4333-8444-555555555555", "", "../x", "x" * 300):
        with pytest.raises(exceptions.NotFound):
            connection.send_command(odd, SUSPEND)
        assert connection.commands([odd, flow.uuid]) == {}


def test_commands_are_read_for_many_flows(connection: Connection) -> None:
    """This includes more flows than one query contains."""
    book = models.LogBook("b")
    flows = [models.FlowDetail(f"f{number}") for number in range(300)]
    for flow in flows:
        book.add(flow)
    connection.save_logbook(book)
    uuids = [*map(str, range(900)), *(flow.uuid for flow in flows)]
    for flow in flows[::100]:
        connection.acquire_lease(flow.uuid, "me", 60)
        connection.send_command(flow.uuid, SUSPEND)
    assert connection.commands(uuids).keys() == {flow.uuid for flow in flows[::100]}


OUTLINE = Outline(
    (OutlineNode("f Ä\ud800", "flow", None), OutlineNode("t", "task", 0, "T", "any of 2")),
    ((1, 1),),
)


def test_latest_outline_is_stored(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """An owner that lost its lease cannot write it."""
    assert connection.get_outline(flow.uuid) is None
    connection.save_outline(flow.uuid, OUTLINE, lease=lease)
    assert connection.get_outline(flow.uuid) == OUTLINE
    less = Outline(OUTLINE.nodes[:1], ())
    connection.save_outline(flow.uuid, less)
    assert connection.get_outline(flow.uuid) == less
    connection.release_lease(lease)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_outline(flow.uuid, OUTLINE, lease=lease)
    assert connection.get_outline(flow.uuid) == less
    connection.destroy_flow(flow.uuid)
    with pytest.raises(exceptions.NotFound):
        connection.get_outline(flow.uuid)
    with pytest.raises(exceptions.NotFound):
        connection.save_outline(flow.uuid, less)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_outline(flow.uuid, less, lease=lease)
