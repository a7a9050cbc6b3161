"""Changes of a flow since a cursor."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.stored_flows import Turns, few, make
from tests.seams import stores
from wbengine import exceptions, states
from wbengine.persistence import _commands, backends, base, models

from . import places, records

Connection = base.Connection


def names(changes: base.Changes) -> set[str]:
    return {atom.name for atom in changes.atoms}


def test_changes_without_valid_cursor_contain_whole_flow(connection: Connection) -> None:
    """A cursor that the store does not recognize is ignored."""
    atom = models.TaskDetail("m")
    atom.items = models.Items(0, ["a", "b"])
    book, flow = make(atom, models.RetryDetail("r"))
    flow.enter(states.RUNNING, 1.0, "why")
    connection.save_logbook(book)
    cursors = [None, "", "x", "0", "1.2", "é", "-1", "99999999999999999999.5.7", "a" * 1000]
    own = connection.get_changes(flow.uuid).cursor
    for cursor in [*cursors, own + "9", own + "9" * 5000]:
        changes = connection.get_changes(flow.uuid, cursor)
        assert changes.whole, cursor
        assert len(changes.flow) == 0 and not changes.items
        assert records.of_flow(changes.put_into(None)) == records.of_flow(flow)


def test_changes_of_missing_flow_raise_not_found(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    connection.save_logbook(book)
    for cursor in (None, connection.get_changes(flow.uuid).cursor):
        for odd in ("11111111-2222-4333-8444-555555555555", "", "../x", "x" * 300):
            with pytest.raises(exceptions.NotFound):
                connection.get_changes(odd, cursor)


def test_records_of_flows_are_read_together(connection: Connection) -> None:
    (one, parked), (other, still) = (make(models.TaskDetail("t")) for _ in range(2))
    parked.enter(states.SUSPENDED, 1.0, "parked")
    parked.meta[models.PERMIT_UNITS] = 2.5
    connection.save_logbook(one)
    connection.save_logbook(other)
    uuids = [parked.uuid, still.uuid, "11111111-2222-4333-8444-555555555555"]
    read = connection.flow_records(uuids)
    assert {uuid: (len(each), each.permit_units) for uuid, each in read.items()} == {
        parked.uuid: (0, 2.5),
        still.uuid: (0, 1.0),
    }
    assert read[parked.uuid].history == parked.history
    assert connection.flow_records([]) == {}


def test_mark_of_flow_changes_with_each_write(connection: Connection) -> None:
    """Marks are read for many flows at once."""
    (one, changed), (other, still) = (make(models.TaskDetail("t")) for _ in range(2))
    connection.save_logbook(one)
    connection.save_logbook(other)
    uuids = [changed.uuid, still.uuid, "11111111-2222-4333-8444-555555555555"]
    seen = [connection.marks(uuids)]
    assert set(seen[0]) == {changed.uuid, still.uuid}
    (task,) = changed
    task.state = states.RUNNING
    connection.save_changes(changed, [task], flow_row=False)
    seen.append(connection.marks(uuids))
    changed.enter(states.RUNNING, 1.0, None)
    connection.save_changes(changed, [])
    seen.append(connection.marks(uuids))
    task.state = states.SUCCESS
    connection.update_atom_details(task)
    seen.append(connection.marks(uuids))
    assert connection.marks(uuids) == seen[-1], "nothing was written"
    assert len({mark[changed.uuid] for mark in seen}) == len(seen)
    assert len({mark[still.uuid] for mark in seen}) == 1
    connection.destroy_flow(changed.uuid)
    assert set(connection.marks(uuids)) == {still.uuid}
    assert connection.marks([]) == {}


@places.dialects
def test_changes_contain_only_changed_records(connection: Connection) -> None:
    atoms = [models.TaskDetail(name) for name in "abcd"]
    book, flow = make(*atoms)
    connection.save_logbook(book)
    first = connection.get_changes(flow.uuid).cursor
    again = connection.get_changes(flow.uuid, first)
    assert (names(again), again.whole) == (set(), False)

    flow.enter(states.RUNNING, 5.0)
    connection.save_changes(flow, [])
    changes = connection.get_changes(flow.uuid, again.cursor)
    assert (names(changes), changes.flow.state) == (set(), states.RUNNING)
    assert changes.flow.history == (models.Change(states.RUNNING, 5.0),)

    lease = connection.acquire_lease(flow.uuid, "me", 60)
    connection.renew_lease(lease, 60)
    changes = connection.get_changes(flow.uuid, changes.cursor)
    assert (names(changes), changes.flow.epoch) == (set(), lease.epoch)
    connection.save_changes(flow, [atoms[1]], flow_row=False, lease=lease)
    second = connection.get_changes(flow.uuid, changes.cursor)
    assert (names(second), second.whole) == ({"b"}, False)
    atoms[2].results = "new"
    connection.save_changes(flow, [atoms[2], models.TaskDetail("e")], lease=lease)
    changes = connection.get_changes(flow.uuid, second.cursor)
    assert names(changes) == {"c", "e"}
    assert {atom.results for atom in changes.atoms} == {"new", None}
    assert names(connection.get_changes(flow.uuid, first)) == {"b", "c", "e"}
    connection.release_lease(lease)
    changes = connection.get_changes(flow.uuid, changes.cursor)
    assert names(changes) == (names(connection.get_changes(flow.uuid)) if changes.whole else set())
    connection.update_atom_details(atoms[3])
    assert names(connection.get_changes(flow.uuid, changes.cursor)) == {"d"}


@pytest.mark.parametrize("owner", [None, "engine"])
def test_changes_contain_only_changed_items(connection: Connection, owner: str | None) -> None:
    """The row of their atom is returned without items."""
    atom, other = models.TaskDetail("m"), models.TaskDetail("t")
    atom.attempt = 1
    atom.items = models.Items(1, range(5))
    book, flow = make(atom, other)
    connection.save_logbook(book)
    known = connection.get_changes(flow.uuid)
    items = atom.items
    items[3].put(states.SUCCESS, "done")
    lease = None if owner is None else connection.acquire_lease(flow.uuid, owner, 60)
    changed = {atom.uuid: [items[3]]}
    connection.save_changes(flow, [], flow_row=False, items=changed, lease=lease)
    changes = connection.get_changes(flow.uuid, known.cursor)
    assert names(changes) <= {"m"}
    assert all(each.items is not None and len(each.items) == 0 for each in changes.atoms)
    assert {uuid: [item.index for item in each] for uuid, each in changes.items.items()} == {
        atom.uuid: [3]
    }
    atom.attempt = 2
    atom.items = models.Items(2, ["x"])
    connection.save_changes(
        flow, [atom], flow_row=False, items={atom.uuid: list(atom.items)}, lease=lease
    )
    later = connection.get_changes(flow.uuid, changes.cursor)
    assert [item.value for item in later.items[atom.uuid]] == ["x"]
    followed = later.put_into(changes.put_into(known.put_into(None)))
    assert records.of_flow(followed) == records.of_flow(connection.get_flow_details(flow.uuid))


def test_changes_exclude_items_of_earlier_attempts(connection: Connection) -> None:
    atom = models.TaskDetail("m")
    book, flow = make(atom)
    connection.save_logbook(book)
    cursor = connection.get_changes(flow.uuid).cursor
    for attempt, values in ((1, "abc"), (2, "x")):
        atom.attempt = attempt
        atom.items = models.Items(attempt, values)
        connection.save_changes(flow, [atom], flow_row=False, items={atom.uuid: list(atom.items)})
    (items,) = connection.get_changes(flow.uuid, cursor).items.values()
    assert [(item.attempt, item.value) for item in items] == [(2, "x")]


@pytest.mark.slow
@places.dialects
@few
@given(data=st.data())
def test_applied_changes_equal_stored_flow_after_random_writes(
    kind: str, conf: stores.Conf, connection: Connection, data: Any
) -> None:
    """A reader that polls now and then, also in another process, has the stored flow."""
    turns = Turns(data.draw, connection)
    with contextlib.ExitStack() as opened:
        reader = connection
        if "memory" not in kind:
            later = opened.enter_context(contextlib.closing(backends.fetch(conf)))
            reader = opened.enter_context(later.get_connection())
        known: models.FlowDetail | None = None
        cursor = None
        for _ in range(data.draw(st.integers(1, 6))):
            turns.step()
            if data.draw(st.booleans()):
                changes = reader.get_changes(turns.flow.uuid, cursor)
                assert changes.whole == (cursor is None)
                known, cursor = changes.put_into(known), changes.cursor
                flow_detail = reader.get_flow_details(turns.flow.uuid)
                assert not records.differences(records.of_flow(known), records.of_flow(flow_detail))
                assert known.epoch == flow_detail.epoch


def test_recreated_flow_is_read_as_a_whole(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    connection.save_logbook(book)
    for _ in range(3):
        connection.save_changes(flow, flow)
    cursor = connection.get_changes(flow.uuid).cursor
    for destroy in (
        lambda: connection.destroy_flow(flow.uuid),
        lambda: connection.destroy_logbook(book.uuid),
    ):
        destroy()
        with pytest.raises(exceptions.NotFound):
            connection.get_changes(flow.uuid, cursor)
        connection.save_logbook(book)
        assert connection.get_changes(flow.uuid, cursor).whole
        cursor = connection.get_changes(flow.uuid).cursor


def test_conditional_deletion_checks_owner_state_and_last_write(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    connection.save_logbook(book)
    listed = connection.list_flows().flows[0].updated
    assert listed is not None
    for only in (base.Removable((states.SUCCESS, states.FAILURE)), base.Removable(before=listed)):
        with pytest.raises(exceptions.InvalidState, match="it was not deleted"):
            connection.destroy_flow(flow.uuid, only)
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    later = base.Removable(frozenset((states.PENDING,)), listed + 60)
    with pytest.raises(exceptions.FlowBusy) as caught:
        connection.destroy_flow(flow.uuid, later)
    assert (caught.value.owner, caught.value.epoch) == ("me", lease.epoch)
    with pytest.raises(exceptions.FlowBusy):
        connection.destroy_flow(flow.uuid, later._replace(dead=lease.epoch - 1))
    connection.destroy_flow(flow.uuid, later._replace(dead=lease.epoch))
    with pytest.raises(exceptions.NotFound):
        connection.destroy_flow(flow.uuid, later)


def test_conditional_deletion_keeps_a_flow_with_a_pending_request(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    flow.state = states.FAILURE
    connection.save_logbook(book)
    connection.put_command(flow.uuid, _commands.FlowCommand(_commands.RETRY))
    with pytest.raises(exceptions.InvalidState, match="without a pending command"):
        connection.destroy_flow(flow.uuid, base.Removable())
    connection.put_command(flow.uuid, _commands.FlowCommand(_commands.SUSPEND))  # withdraws it
    connection.destroy_flow(flow.uuid, base.Removable())


def test_destroy_logbook_keeps_used_and_named_books_on_request(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    book.meta[models.MADE_BY] = "wbengine"
    named = models.LogBook("named")
    connection.save_logbook(book)
    connection.save_logbook(named)
    for each in (book, named):
        connection.destroy_logbook(each.uuid, unused_only=True)
    assert {each.uuid for each in connection.get_logbooks()} == {book.uuid, named.uuid}
    connection.destroy_flow(flow.uuid)
    connection.destroy_logbook(book.uuid, unused_only=True)
    assert [each.uuid for each in connection.get_logbooks()] == [named.uuid]


def test_destroy_flow_keeps_its_book_and_other_flows(connection: Connection) -> None:
    """The owner of the flow loses its lease."""
    book, flow = make(models.TaskDetail("t"))
    other = models.FlowDetail("other")
    book.add(other)
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    connection.destroy_flow(flow.uuid)
    assert [each.uuid for each in connection.get_logbook(book.uuid)] == [other.uuid]
    assert [row.uuid for row in connection.list_flows().flows] == [other.uuid]
    (atom,) = flow
    for look in (
        lambda: connection.get_flow_details(flow.uuid),
        lambda: connection.get_atom_details(atom.uuid),
        lambda: connection.destroy_flow(flow.uuid),
    ):
        with pytest.raises(exceptions.NotFound):
            look()
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, flow, lease=lease)
    connection.release_lease(lease)
    connection.save_logbook(book)
    assert {each.uuid for each in connection.get_logbook(book.uuid)} == {flow.uuid, other.uuid}


def test_dropped_atoms_are_deleted_with_the_other_changes(connection: Connection) -> None:
    workflow, kept = models.TaskDetail("w"), models.TaskDetail("kept")
    steps = [models.TaskDetail(f"w/1.{number}-step") for number in range(3)]
    for step in steps:
        step.meta[models.STEP] = {"workflow": workflow.uuid, "attempt": 1}
    steps[0].items = models.Items(0, ["a", "b"])
    book, flow = make(workflow, kept, *steps)
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    chunk = models.LogChunk(steps[1].uuid, 1, -1, ())
    connection.save_changes(flow, [], flow_row=False, logs=[chunk], lease=lease)
    before = connection.get_changes(flow.uuid)
    known = before.put_into(None)

    workflow.meta[models.CONTINUED] = {"attempt": 2}
    new = models.TaskDetail("w/2.0-step")
    new.meta[models.STEP] = {"workflow": workflow.uuid, "attempt": 2}
    dropped = [step.uuid for step in steps]
    for flow_row in (False, True):  # A repetition changes nothing.
        connection.save_changes(
            flow, [workflow, new], flow_row=flow_row, lease=lease, dropped=dropped
        )
    stored = connection.get_flow_details(flow.uuid)
    assert {atom.name for atom in stored} == {"w", "kept", "w/2.0-step"}
    assert connection.get_logs(flow.uuid) == []
    with pytest.raises(exceptions.NotFound):
        connection.get_atom_details(steps[0].uuid)
    changes = connection.get_changes(flow.uuid, before.cursor)
    assert (names(changes), changes.whole) == ({"w", "w/2.0-step"}, False)
    assert {atom.name for atom in changes.put_into(known)} == {"w", "kept", "w/2.0-step"}


def test_write_under_a_lost_lease_drops_no_atom(connection: Connection) -> None:
    atom = models.TaskDetail("t")
    book, flow = make(atom)
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    connection.release_lease(lease)
    connection.acquire_lease(flow.uuid, "other", 60)
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, [], lease=lease, dropped=[atom.uuid])
    assert len(connection.get_flow_details(flow.uuid)) == 1
