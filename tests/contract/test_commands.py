"""Commands and outlines of flows."""

from __future__ import annotations

import pytest

from tests.contract.stored_flows import make
from tests.seams import stores
from wbengine import exceptions
from wbengine.persistence import base, models
from wbengine.types.outline import Outline, OutlineNode

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


@places.everywhere
def test_command_is_readable_until_run_ends(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """The command contains the epoch of the run."""
    assert connection.commands([flow.uuid]) == {}
    connection.send_command(flow.uuid, SUSPEND)
    command = SUSPEND._replace(epoch=lease.epoch)
    for asked in ([flow.uuid], ["other", flow.uuid, flow.uuid]):
        assert connection.commands(asked) == {flow.uuid: command}
    assert connection.commands(["other"]) == connection.commands([]) == {}
    connection.release_lease(lease)
    assert connection.commands([flow.uuid]) == {}


def test_latest_command_replaces_earlier_one(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    connection.send_command(flow.uuid, SUSPEND)
    cancel = base.FlowCommand("cancel", at=2.0)
    connection.send_command(flow.uuid, cancel)
    assert connection.commands([flow.uuid]) == {flow.uuid: cancel._replace(epoch=lease.epoch)}


def test_command_for_flow_that_does_not_run_is_refused(
    connection: Connection, flow: models.FlowDetail
) -> None:
    """Before a run, after a run, and with a dead owner."""

    def refused() -> None:
        with pytest.raises(exceptions.InvalidState, match=f"Flow {flow.uuid} is not running"):
            connection.send_command(flow.uuid, SUSPEND)
        assert connection.commands([flow.uuid]) == {}

    refused()
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    connection.release_lease(lease)
    refused()
    connection.acquire_lease(flow.uuid, "me", -1)
    refused()
    dead = stores.owner()
    connection.acquire_lease(flow.uuid, str(dead), 60)
    dead.end_run()
    refused()


def test_command_is_not_delivered_to_later_run(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    connection.send_command(flow.uuid, SUSPEND)
    connection.release_lease(lease)
    assert connection.commands([flow.uuid]) == {}
    later = connection.acquire_lease(flow.uuid, "me", 60)
    assert connection.commands([flow.uuid]) == {}
    connection.send_command(flow.uuid, SUSPEND)
    assert connection.commands([flow.uuid]) == {flow.uuid: SUSPEND._replace(epoch=later.epoch)}
    connection.acquire_lease(flow.uuid, "you", 60, dead=later.epoch)
    assert connection.commands([flow.uuid]) == {}


def test_invalid_command_is_rejected(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    with pytest.raises(ValueError, match="suspend, cancel, got 'explode'"):
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
