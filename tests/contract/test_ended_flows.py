"""Ended flows by the time of their end, their deletion, and duties."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.stored_flows import make
from wbengine import operations, states
from wbengine.persistence import _commands, base, models
from wbengine.persistence._listing import Removable
from wbengine.signals import Signal

from . import places

Connection = base.Connection
FAR = 1e12


def ended(
    connection: Connection, state: str, *, shared_book: bool = False, parent: str | None = None
) -> str:
    """Store a flow that an engine ended in a state. Return its uuid."""
    task = models.TaskDetail("t")
    book, flow = make(task)
    if parent is not None:
        flow.meta[models.PARENT] = {"flow": parent, "step": "1"}
    if not shared_book:
        book.meta[models.MADE_BY] = "wbengine"
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "somebody", 60)
    flow.state = state
    chunk = models.LogChunk(task.uuid, 1, -1, [(1.0, 20, "log", "text")])
    connection.save_changes(flow, [task], lease=lease, logs=[chunk])
    connection.put_signal(flow.uuid, Signal("paid", "1", 1.0))
    connection.end_lease(lease, None)
    return str(flow.uuid)


def listed(connection: Connection, *among: str, before: float = FAR, limit: int = 9) -> list[str]:
    return [flow.uuid for flow in connection.ended_flows(dict.fromkeys(among, before), limit)]


@places.dialects
def test_ended_flows_are_listed_by_the_time_of_their_end(connection: Connection) -> None:
    slow = models.FlowDetail("slow")
    book = models.LogBook("b")
    book.add(slow)
    connection.save_logbook(book)
    first, second = ended(connection, states.SUCCESS), ended(connection, states.FAILURE)
    slow.state = states.SUCCESS  # It began first and ended last.
    connection.save_changes(slow, [])
    assert listed(connection, *states.FLOW_ENDED) == [first, second, slow.uuid]
    assert listed(connection, states.SUCCESS) == [first, slow.uuid]
    assert listed(connection, states.SUCCESS, limit=1) == [first]
    (*_, latest) = connection.ended_flows({states.SUCCESS: FAR}, 9)
    assert connection.ended_flows({states.SUCCESS: FAR}, 9, latest.ended) == [latest]
    assert connection.ended_flows({states.SUCCESS: FAR}, 9, latest.ended + 1) == []
    assert listed(connection) == listed(connection, *states.FLOW_ENDED, before=1.0) == []
    slow.state = states.RUNNING
    connection.save_changes(slow, [])
    assert listed(connection, *states.FLOW_ENDED) == [first, second]
    assert connection.count_flows() == 3
    assert connection.oldest_flow() == min(
        row.created or 0.0 for row in connection.list_flows().flows
    )


@places.dialects
def test_flows_with_a_command_or_an_engine_are_kept(connection: Connection) -> None:
    requested, owned, free = (ended(connection, states.FAILURE) for _ in range(3))
    connection.put_command(requested, _commands.FlowCommand(_commands.RETRY))
    connection.acquire_lease(owned, "somebody", 60)
    assert listed(connection, states.FAILURE) == [free]
    flows = {
        base.EndedFlow(uuid, states.FAILURE, operation_book(connection, uuid)): Removable(
            (states.FAILURE,), FAR
        )
        for uuid in (requested, owned, free)
    }
    assert connection.destroy_flows(flows) == [free]
    assert {row.uuid for row in connection.list_flows().flows} == {requested, owned}


@places.dialects
@pytest.mark.parametrize("late", [_commands.SUSPEND, _commands.CANCEL])
def test_command_that_came_too_late_does_not_keep_an_ended_flow(
    connection: Connection, late: str
) -> None:
    """The process of the engine died after the end of the flow, before it read the command."""
    book, flow = make(models.TaskDetail("t"))
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "somebody", 60)
    flow.state = states.RUNNING
    connection.save_changes(flow, [], lease=lease)
    connection.put_command(flow.uuid, _commands.FlowCommand(late, '"what":"retry"'))
    assert connection.list_flows(commanded=True).flows[0].command == late
    flow.state = states.SUCCESS
    connection.save_changes(flow, [], lease=lease)
    connection.release_lease(lease)
    (row,) = connection.list_flows().flows
    assert row.command is None and connection.list_flows(commanded=True).flows == []
    (ended_flow,) = connection.ended_flows({states.SUCCESS: FAR}, 9)
    only = Removable((states.SUCCESS,), FAR)
    assert connection.destroy_flows({ended_flow: only}) == [flow.uuid]


def operation_book(connection: Connection, uuid: str) -> str:
    return connection.list_flows(uuid=uuid).flows[0].book_uuid


@places.dialects
def test_deletion_checks_that_the_flow_was_not_written_since(connection: Connection) -> None:
    uuid = ended(connection, states.SUCCESS)
    (flow,) = connection.ended_flows({states.SUCCESS: FAR}, 1)
    assert connection.destroy_flows({flow: Removable((states.FAILURE,), FAR)}) == []
    assert connection.destroy_flows({flow: Removable((states.SUCCESS,), 1.0)}) == []
    assert connection.destroy_flows({flow: Removable((states.SUCCESS,), FAR)}) == [uuid]
    assert connection.destroy_flows({flow: Removable((states.SUCCESS,), FAR)}) == []


@places.dialects
def test_deletion_includes_contents_and_logbooks_of_one_flow(connection: Connection) -> None:
    ended(connection, states.SUCCESS)
    shared = ended(connection, states.SUCCESS, shared_book=True)
    book = operation_book(connection, shared)
    flows = connection.ended_flows({states.SUCCESS: FAR}, 9)
    only = Removable((states.SUCCESS,), FAR)
    assert len(connection.destroy_flows(dict.fromkeys(flows, only))) == 2
    assert [each.uuid for each in connection.get_logbooks(lazy=True)] == [book]
    assert rows_left(connection) == {"wbe_logbooks": 1}


def rows_left(connection: Connection) -> dict[str, int]:
    """Return the number of rows about flows by table. Stores without tables have a logbook."""
    engine: Any = getattr(connection.backend, "engine", None)
    if engine is None:
        return {"wbe_logbooks": 1}
    names = ("logbooks", "flowdetails", "atomdetails", "logs", "signals", "outlines", "jobs")
    with engine.connect() as raw:
        counts = {
            f"wbe_{name}": raw.exec_driver_sql(f"SELECT COUNT(*) FROM wbe_{name}").scalar()
            for name in names
        }
    return {name: count for name, count in counts.items() if count}


@places.durable_dialects
def test_duty_has_one_owner_until_it_ends_or_expires(connection: Connection) -> None:
    assert connection.duty_note("sweep") == {}
    assert connection.claim_duty("sweep", "a", 60)
    assert connection.claim_duty("sweep", "a", 60)  # renewed
    assert not connection.claim_duty("sweep", "b", 60)
    assert connection.claim_duty("other", "b", 0)
    assert connection.claim_duty("other", "a", 60)  # the claim of `b` has expired
    connection.end_duty("sweep", "b", 0, {"by": "b"})  # not the owner
    assert connection.duty_note("sweep") == {}
    connection.end_duty("sweep", "a", 60, {"by": "a"})
    assert connection.duty_note("sweep") == {"by": "a"}
    assert not connection.claim_duty("sweep", "a", 60)  # not due
    assert connection.claim_duty("other", "a", 60)
    connection.end_duty("other", "a", 0, {})
    assert connection.claim_duty("other", "b", 60)


def end(flow: models.FlowDetail, at: float, undo_seconds: float | None = None) -> None:
    """Put a flow that is not stored yet into SUCCESS at a time in Unix seconds."""
    flow.enter(states.SUCCESS, at)
    if undo_seconds is not None:
        flow.meta[models.UNDO_UNTIL] = undo_seconds


def pruned(backend: base.Backend, **options: Any) -> tuple[set[str], dict[str, str]]:
    """Delete all ended flows, old and new. Return the deleted ones, and the reasons of others."""
    kept: dict[str, str] = {}
    deleted = operations.prune(
        backend, before=FAR, on_kept=lambda row, why: kept.update({row.uuid: why}), **options
    )
    return {row.uuid for row in deleted}, kept


@places.everywhere
def test_children_are_kept_as_long_as_their_parent(backend: base.Backend) -> None:
    connection = backend.get_connection()
    book, parent = make(models.TaskDetail("t"))
    connection.save_logbook(book)
    child = ended(connection, states.SUCCESS, parent=parent.uuid)
    grandchild = ended(connection, states.SUCCESS, parent=child)
    orphan = ended(connection, states.SUCCESS, parent=models.LogBook("b").uuid)
    assert listed(connection, *states.FLOW_ENDED) == [orphan]
    deleted, kept = pruned(backend)
    assert deleted == {orphan} and kept.keys() == {child, grandchild}
    assert kept[child] == f"the undo of flow {parent.uuid} may need it"
    end(parent, connection.now())
    connection.save_changes(parent, [])
    assert listed(connection, *states.FLOW_ENDED) == [parent.uuid]
    assert pruned(backend, dry_run=True)[0] == {child, grandchild, parent.uuid}
    assert pruned(backend)[0] == {child, grandchild, parent.uuid}


@places.everywhere
def test_originals_are_kept_as_long_as_forks_that_own_their_results(backend: base.Backend) -> None:
    connection = backend.get_connection()
    flows = {}
    for owns in (True, False):
        (_, original), (_, fork) = make(models.TaskDetail("t")), make(models.TaskDetail("t"))
        note = {"start": "t", "own": owns}
        fork.meta[models.FORKED_FROM] = {**note, "flow": original.uuid}
        original.meta[models.FORKS] = [{**note, "flow": fork.uuid}]
        end(original, connection.now())
        for flow in (original, fork):
            book = models.LogBook("b")
            book.add(flow)
            connection.save_logbook(book)
        flows[owns] = original.uuid, fork.uuid
    assert listed(connection, states.SUCCESS) == [flows[False][0]]
    deleted, kept = pruned(backend)
    assert deleted == {flows[False][0]}
    assert kept == {flows[True][0]: f"the undo of flow {flows[True][1]} may need it"}
    connection.destroy_flow(flows[True][1])
    assert listed(connection, states.SUCCESS) == [flows[True][0]]
    assert pruned(backend)[0] == {flows[True][0]}


@places.everywhere
def test_complete_flow_is_kept_until_it_cannot_be_undone(backend: base.Backend) -> None:
    connection = backend.get_connection()
    now = connection.now()
    flows, books = {}, {}
    for name, ago, seconds in (("copy", 100.0, 1e6), ("over", 100.0, 50.0), ("free", 100.0, None)):
        book, flow = make(models.TaskDetail("t"))
        end(flow, now - ago, seconds)
        connection.save_logbook(book)
        flows[name], books[name] = flow, book
    book, written = make(models.TaskDetail("t"))
    written.meta[models.UNDO_UNTIL] = 1e6
    connection.save_logbook(book)
    end(written, now)
    connection.save_changes(written, [])
    written.add_note(now, "a later write", None)
    connection.save_changes(written, [])
    undoable = {flows["copy"].uuid, written.uuid}
    others = {flows["over"].uuid, flows["free"].uuid}
    assert set(listed(connection, states.SUCCESS, before=now + 1e5)) == others
    # The copy ended 100 s earlier.
    between = others | {flows["copy"].uuid}
    assert set(listed(connection, states.SUCCESS, before=now + 1e6 - 50.0)) == between
    connection.save_logbook(books["copy"])
    assert set(listed(connection, states.SUCCESS, before=now + 1e6 - 50.0)) == between
    assert set(listed(connection, states.SUCCESS, before=now + 2e6)) == others | undoable
    deleted, kept = pruned(backend)
    assert deleted == others and kept.keys() == undoable
    assert kept[written.uuid].startswith("it can be undone until 20")
    assert pruned(backend, undoable=True)[0] == undoable


@places.everywhere
def test_flow_in_another_state_has_no_time_for_its_undo(backend: base.Backend) -> None:
    connection = backend.get_connection()
    book, flow = make(models.TaskDetail("t"))
    flow.meta[models.UNDO_UNTIL] = 1e6
    flow.enter(states.FAILURE, connection.now())
    connection.save_logbook(book)
    assert listed(connection, states.FAILURE, before=connection.now() + 1e5) == [flow.uuid]
    assert pruned(backend)[0] == {flow.uuid}
