"""Commands reach the run they are about, and no other; and outlines are kept."""

from __future__ import annotations

import pytest

from tests.contract.kept_flows import make
from tests.seams import stores
from wbengine import exceptions
from wbengine.persistence import base, models
from wbengine.types.outline import Outline, OutlineNode

Connection = base.Connection
SUSPEND = base.FlowCommand("suspend", "reason Ä\0\ud800 '", "somebody", 1.5)


@pytest.fixture
def flow(connection: Connection) -> models.FlowDetail:
    book, made = make(models.TaskDetail("t"))
    book.add(models.FlowDetail("other"))
    connection.save_logbook(book)
    return made


@pytest.fixture
def lease(connection: Connection, flow: models.FlowDetail) -> stores.Lease:
    return connection.take_lease(flow.uuid, "me", 60)


def test_a_command_is_there_until_it_is_cleared(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """For who asks for that flow; it says for which run it is."""
    assert connection.commands([flow.uuid]) == {}
    connection.send_command(flow.uuid, SUSPEND)
    told = SUSPEND._replace(epoch=lease.epoch)
    for asked in ([flow.uuid], ["other", flow.uuid, flow.uuid]):
        assert connection.commands(asked) == {flow.uuid: told}
    assert connection.commands(["other"]) == connection.commands([]) == {}
    connection.clear_command(lease, told)
    connection.clear_command(lease, told)
    assert connection.commands([flow.uuid]) == {}


def test_the_latest_command_counts(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """Whoever did an earlier one does not clear it."""
    connection.send_command(flow.uuid, SUSPEND)
    (seen,) = connection.commands([flow.uuid]).values()
    cancel = base.FlowCommand("cancel", at=2.0)
    connection.send_command(flow.uuid, cancel)
    connection.clear_command(lease, seen)
    assert connection.commands([flow.uuid]) == {flow.uuid: cancel._replace(epoch=lease.epoch)}


def test_nobody_runs_it(connection: Connection, flow: models.FlowDetail) -> None:
    """Not yet, not any more, or only a dead one."""

    def refused() -> None:
        with pytest.raises(exceptions.InvalidState, match=f"Nobody runs flow {flow.uuid}"):
            connection.send_command(flow.uuid, SUSPEND)
        assert connection.commands([flow.uuid]) == {}

    refused()
    lease = connection.take_lease(flow.uuid, "me", 60)
    connection.give_back_lease(lease)
    refused()
    connection.take_lease(flow.uuid, "me", -1)
    refused()
    dead = stores.owner()
    connection.take_lease(flow.uuid, str(dead), 60)
    dead.let_go()
    refused()


def test_a_later_run_does_not_hear_of_it(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """However the one before ended; and who lost the flow clears no command of the next."""
    connection.send_command(flow.uuid, SUSPEND)
    connection.give_back_lease(lease)
    assert connection.commands([flow.uuid]) == {}
    later = connection.take_lease(flow.uuid, "me", 60)
    assert connection.commands([flow.uuid]) == {}
    connection.send_command(flow.uuid, SUSPEND)
    connection.clear_command(lease, SUSPEND._replace(epoch=lease.epoch))
    connection.clear_command(lease, SUSPEND._replace(epoch=later.epoch))
    assert connection.commands([flow.uuid]) == {flow.uuid: SUSPEND._replace(epoch=later.epoch)}
    last = connection.take_lease(flow.uuid, "you", 60, dead=later.epoch)
    assert connection.commands([flow.uuid]) == {}
    connection.clear_command(last, SUSPEND)


def test_wrong_commands(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    with pytest.raises(ValueError, match="suspend, cancel, not 'explode'"):
        connection.send_command(flow.uuid, base.FlowCommand("explode"))
    with pytest.raises(TypeError, match="reason of a command is a text"):
        connection.send_command(flow.uuid, base.FlowCommand("cancel", 7))  # type: ignore[arg-type]
    for odd in ("11111111-2222-4333-8444-555555555555", "", "../x", "x" * 300):
        with pytest.raises(exceptions.NotFound):
            connection.send_command(odd, SUSPEND)
        assert connection.commands([odd, flow.uuid]) == {}


def test_commands_for_many_flows(connection: Connection) -> None:
    """For more than are asked for at a time."""
    book = models.LogBook("b")
    flows = [models.FlowDetail(f"f{number}") for number in range(300)]
    for flow in flows:
        book.add(flow)
    connection.save_logbook(book)
    uuids = [*map(str, range(900)), *(flow.uuid for flow in flows)]
    for flow in flows[::100]:
        connection.take_lease(flow.uuid, "me", 60)
        connection.send_command(flow.uuid, SUSPEND)
    assert connection.commands(uuids).keys() == {flow.uuid for flow in flows[::100]}


OUTLINE = Outline(
    (OutlineNode("f Ä\ud800", "flow", None), OutlineNode("t", "task", 0, "T", "any of 2")),
    ((1, 1),),
)


def test_an_outline_is_kept(
    connection: Connection, flow: models.FlowDetail, lease: stores.Lease
) -> None:
    """The latest one; by who may write."""
    assert connection.get_outline(flow.uuid) is None
    connection.save_outline(flow.uuid, OUTLINE, lease=lease)
    assert connection.get_outline(flow.uuid) == OUTLINE
    less = Outline(OUTLINE.nodes[:1], ())
    connection.save_outline(flow.uuid, less)
    assert connection.get_outline(flow.uuid) == less
    connection.give_back_lease(lease)
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
