"""Functions that write records. Each one runs inside its caller's transaction.

A transaction that changes the contents of a flow locks the flow's row first, so that no other
process can acquire the lease before the commit.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions, states
from wbengine._security import VARIABLE, sealing
from wbengine.persistence import (
    _child_ends,
    _commands,
    _history,
    _leases,
    _pauses,
    _sealed_fields,
    _trees,
    base,
    models,
)
from wbengine.persistence._debounce_keys import DebounceKey
from wbengine.persistence._unique_keys import UniqueKey
from wbengine.persistence.backends._sql import reading, rows, turns
from wbengine.persistence.backends._sql.statements import Statements
from wbengine.signals import Signal, child_of
from wbengine.types import _tags, codec

__all__ = [
    "NewBook", "Batch", "add_signal", "as_statement", "batch_of", "destroy_book", "destroy_flow",
    "destroy_flows", "ensure_job", "lease_conditions", "lock", "lock_debounce_key", "lock_new_flow",
    "make_job_due", "make_paused_jobs_due", "notify_job", "release_fork", "replace_new_flow",
    "report_end", "settle_command", "take_debounce_key", "write_on_driver",
]  # fmt: skip

#: Range of batch numbers for each lease. A process never writes that many batches, and a 64-bit
#: column has room for 2**27 leases of a flow.
_BATCHES_PER_LEASE: Final = 1 << 36
_MAX_STATEMENT_CHARACTERS: Final = 200_000
#: Shared by all flows of this process; it only increases.
_batch_counter: Final = itertools.count(1)


@dataclass(slots=True)
class Batch:
    """Rows of one flow, its atoms and their items, to be written in one transaction."""

    flow_uuid: str
    flow: rows.Row | None = None
    atoms: list[rows.Row] = field(default_factory=list)
    items: list[rows.Row] = field(default_factory=list)
    #: Attempts that have just started; the items of other attempts are deleted.
    begun: list[rows.Row] = field(default_factory=list)
    logs: list[rows.Row] = field(default_factory=list)
    #: Tags for the index. Those of the submission are written only with a new flow.
    tags: list[rows.Row] = field(default_factory=list)
    #: The flow if its run has set tags, which `tags` replace.
    tagged: list[rows.Row] = field(default_factory=list)
    #: Atoms to delete.
    dropped: list[rows.Row] = field(default_factory=list)

    def number_rows(self, number: int) -> list[rows.Row]:
        """Set the number of the batch in all rows. Return the atoms of which only items changed."""
        for row in (*self.atoms, *self.items):
            row["changed"] = number
        touched = {row["atom_uuid"] for row in self.items} - {row["uuid"] for row in self.atoms}
        return [{"uuid": uuid, "changed": number} for uuid in sorted(touched)]

    def parts(
        self, statements: Statements, number: int
    ) -> Iterator[tuple[sa.TextClause, list[rows.Row]]]:
        """Yield the statements and their rows in order, except the flow's row."""
        touched = self.number_rows(number)
        parts = (
            (statements.put_atoms, self.atoms),
            (statements.delete_items, self.begun),
            (statements.put_items, self.items),
            (statements.touch_atoms, touched),
            (statements.delete_logs, [row for row in self.logs if row["oldest"] > 0]),
            (statements.put_logs, self.logs),
            (statements.delete_run_tags, self.tagged),
            (statements.put_tags, self.tags),
            (statements.drop_atom, self.dropped),
        )
        return ((statement, part_rows) for statement, part_rows in parts if part_rows)

    def write(
        self, connection: sa.Connection, statements: Statements, lease: _leases.Lease | None = None
    ) -> None:
        """Write the contents of a locked flow with one statement for each kind of row."""
        if not (self.atoms or self.items or self.logs or self.tags or self.tagged or self.dropped):
            return
        if lease is not None:
            number = _batch_number(lease)
        else:
            number = 1 + reading.latest_batch(connection, self.flow_uuid)
        for statement, part_rows in self.parts(statements, number):
            connection.execute(statement, part_rows)


def batch_of(
    flow: models.FlowDetail | str,
    atoms: Iterable[models.AtomDetail],
    items: base.ItemChanges = base.NO_ITEMS,
    book_uuid: str | None = None,
    logs: Iterable[models.LogChunk] = (),
    dropped: Iterable[str] = (),
) -> Batch:
    """Create the rows of a batch.

    Call this before the transaction: it takes most of the time and may fail.

    :param flow: the flow, or only its uuid if its own row did not change.
    :param book_uuid: the logbook of the flow, if the flow's row may be new.
    :raises NotEncodable: if a value cannot be encoded.
    :raises InvalidFormat: if a uuid cannot be stored.
    """
    seals = VARIABLE in os.environ  # Without a call of `sealing`, for each batch.
    if isinstance(flow, str):
        batch = Batch(flow)
    else:
        batch = Batch(flow.uuid, _flow_row(flow, book_uuid))
        batch.tags = rows.tag_rows(flow.uuid, flow.own_meta, given=book_uuid is not None)
        if flow.meta_value(_tags.CHANGED) is not None:
            batch.tagged = [{"flow_uuid": flow.uuid}]
    batch.dropped = [{"uuid": uuid, "flow_uuid": batch.flow_uuid} for uuid in dropped]
    for atom in atoms:
        tree = _trees.tree_of(atom)
        batch.atoms.append(rows.ATOM.row(tree, seals, flow_uuid=batch.flow_uuid, kind=atom.kind))
        if atom.items is not None and items.get(atom.uuid):
            batch.begun.append({"atom_uuid": atom.uuid, "attempt": atom.items.attempt})
    for atom_uuid, changed in items.items():
        for item in changed:
            tree = _trees.tree_of(item)
            index = tree.pop("index")
            batch.items.append(rows.ITEM.row(tree, seals, atom_uuid=atom_uuid, item=index))
    for chunk in logs:
        batch.logs.append(
            {
                "atom_uuid": chunk.atom_uuid,
                "attempt": chunk.attempt,
                "oldest": chunk.attempt - base.LOGGED_ATTEMPTS,
                "item": chunk.item,
                "logged": _logged(chunk),
            }
        )
    return batch


def _logged(chunk: models.LogChunk) -> str:
    place = _sealed_fields.place_of_log(chunk.atom_uuid, chunk.attempt, chunk.item)
    return sealing.sealed(json.dumps(chunk.lines), *place)


def write_on_driver(
    driver: sqlite3.Connection, statements: Statements, batch: Batch, lease: _leases.Lease
) -> bool:
    """Write a batch with the SQLite driver, which takes a third of SQLAlchemy's time.

    Return False without writing if `lease` is not the latest lease of the flow.
    """
    parameters = lease_conditions(lease)
    if is_statement(statements, batch):
        number, values = _batch_number(lease), list[Any]()
        for row in batch.atoms:
            values += [row[name] for name in statements.atom_columns]
            values += [row[name] or "" for name in statements.atom_texts]
            values.append(number)
        text = statements.atom_batches[len(batch.atoms)]
        return driver.execute(text, (*values, *parameters.values())).rowcount > 0
    if batch.flow is not None:
        if not driver.execute(statements.write_ours.text, {**batch.flow, **parameters}).rowcount:
            return False
    elif driver.execute(statements.lock_ours.text, parameters).fetchone() is None:
        return False
    for statement, part_rows in batch.parts(statements, _batch_number(lease)):
        driver.executemany(statement.text, part_rows)
    return True


def is_statement(statements: Statements, batch: Batch) -> bool:
    """Return True if the driver writes the batch with a single statement."""
    other_rows = batch.flow or batch.items or batch.begun or batch.logs or batch.dropped
    return len(batch.atoms) in statements.atom_batches and not other_rows


def as_statement(
    statements: Statements, batch: Batch, lease: _leases.Lease
) -> tuple[sa.TextClause, dict[str, Any]] | None:
    """Return a batch as one PostgreSQL statement with its parameters, or None.

    The statement can be repeated, because it writes complete rows. The result is None if the batch
    contains logs, tags or deletions, or is so large that passing rows as JSON would be slower.
    """
    if batch.logs or batch.tags or batch.tagged or batch.dropped:
        return None
    number = _batch_number(lease)
    touched = [row["uuid"] for row in batch.number_rows(number)]
    parts = {"atoms": batch.atoms, "items": batch.items, "begun": batch.begun}
    texts = {name: rows.text_of(part_rows) for name, part_rows in parts.items()}
    if sum(map(len, texts.values())) > _MAX_STATEMENT_CHARACTERS:
        return None
    statement = statements.batches[batch.flow is not None, bool(batch.items or batch.begun)]
    others = {"touched": touched, "number": number}
    return statement, {**(batch.flow or {}), **lease_conditions(lease), **texts, **others}


def lock(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    row: Mapping[str, Any] | None,
    lease: _leases.Lease | None,
) -> None:
    """Lock the flow's row until the transaction ends, check the lease, and write `row` if given.

    :raises LeaseLost: if `lease` is not the latest lease.
    :raises FlowBusy: if an engine runs the flow and no lease was given.
    :raises NotFound: if the flow does not exist and no lease was given.
    """
    parameters = {"flow_uuid": flow_uuid} if lease is None else lease_conditions(lease)
    if row is not None:
        statement = statements.write_free if lease is None else statements.write_ours
        is_locked = connection.execute(statement, {**row, **parameters}).rowcount
    else:
        statement = statements.lock_free if lease is None else statements.lock_ours
        is_locked = connection.execute(statement, parameters).first() is not None
    if not is_locked:
        raise rejection(connection, statements, flow_uuid, lease)


def rejection(
    connection: sa.Connection, statements: Statements, flow_uuid: str, lease: _leases.Lease | None
) -> exceptions.WbengineException:
    try:
        row = reading.lease(connection, statements, flow_uuid)
    except exceptions.NotFound as error:
        return error if lease is None else _leases.lost_error(lease, flow_exists=False)
    if lease is not None:
        return _leases.lost_error(lease, row.lease_owner)
    # The lease may have expired after the check; the error still names its owner.
    current_lease = _leases.Lease(flow_uuid, row.lease_owner or "", row.lease_epoch)
    return _leases.busy_error(current_lease, max(0.0, row.remaining or 0.0))


def lease_conditions(lease: _leases.Lease) -> dict[str, object]:
    """Return the parameters that identify the lease in the row of its flow."""
    return {"flow_uuid": lease.flow, "lease_owner": lease.owner, "lease_epoch": lease.epoch}


def destroy_flow(
    connection: sa.Connection, statements: Statements, uuid: str, only: base.Removable | None
) -> None:
    """Delete a flow and its job.

    :raises Exception: as `Connection.destroy_flow`.
    """
    _report_deletion(connection, statements, uuid)
    parameters: dict[str, Any] = {"flow_uuid": uuid}
    statement = statements.destroy_flow
    if only is not None:
        parameters |= {**only._asdict(), "states": tuple(only.states)}
        statement = statements.destroy_removable
    if not connection.execute(statement, parameters).rowcount:
        row = reading.lease(connection, statements, uuid)
        if only is None or ((row.remaining or 0) > 0 and row.lease_epoch != only.dead):
            raise rejection(connection, statements, uuid, None)
        raise only.refusal(uuid)
    connection.execute(statements.destroy_job, parameters)


def destroy_flows(
    connection: sa.Connection,
    statements: Statements,
    flows: Mapping[base.EndedFlow, base.Removable],
) -> list[str]:
    """Delete flows that still meet their conditions (see `Connection.destroy_flows`)."""
    deleted = []
    for flow, only in flows.items():
        # First the logbook and then the flow, as in all transactions that lock both.
        connection.execute(statements.book_for_update, {"uuid": flow.book_uuid}).all()
        parameters = {"flow_uuid": flow.uuid, **only._asdict(), "states": tuple(only.states)}
        if connection.execute(statements.destroy_removable, parameters).rowcount:
            connection.execute(statements.destroy_job, parameters)
            destroy_book(connection, statements, flow.book_uuid, unused_only=True)
            deleted.append(flow.uuid)
    return deleted


def destroy_book(
    connection: sa.Connection, statements: Statements, uuid: str, unused_only: bool
) -> None:
    """Delete a logbook, its flows and their jobs (see `Connection.destroy_logbook`).

    The logbook is locked first, so that no other process can add a flow.
    """
    row = reading.first(connection, statements.book_for_update, uuid=uuid)
    if row is None:
        raise reading.missing("logbook", uuid)
    if unused_only:
        book: models.LogBook = rows.BOOK.record(_trees.BOOK, row)
        if book.meta_value(models.MADE_BY) is None:
            return
    flows = connection.scalars(statements.flows_of_book, {"uuid": uuid}).all()
    if flows and unused_only:
        return
    if flows:
        for flow in flows:
            _report_deletion(connection, statements, flow)
        jobs = [{"flow_uuid": flow} for flow in flows]
        connection.execute(statements.destroy_job, jobs)
    connection.execute(statements.destroy_book, {"uuid": uuid})


def make_job_due(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    claims: int = 0,
    *,
    is_first: bool = False,
    is_end: bool = False,
) -> None:
    """Make the job of a flow due now if it was claimed at least this number of times.

    With 1, it must not wait for its first permit either: only what a begun flow waits for ends.

    :param is_first: let it go before others, although the flow has not begun.
    :param is_end: whether a child flow has ended: a job that is parked for children is due after
        its delay.
    """
    parameters = {"flow_uuid": flow_uuid, "claims": claims, "first": int(is_first)}
    statement = statements.make_parent_due if is_end else statements.make_job_due
    if connection.execute(statement, parameters).rowcount:
        notify_job(connection, statements, flow_uuid)


def add_signal(
    connection: sa.Connection, statements: Statements, flow_uuid: str, signal: Signal
) -> rows.Row:
    """Add a signal unless one with its name is stored, and make the job of the flow due.

    :returns: the columns that the signal has if it was added.
    """
    name = signal.stored_name
    value = sealing.sealed(signal.text, *_sealed_fields.place_of_signal(flow_uuid, name))
    parameters = {"flow_uuid": flow_uuid, "name": name, "value": value, "at": signal.at}
    connection.execute(statements.add_signal, parameters)
    # A job that was never claimed waits for its `eta`. A signal must not start it earlier.
    is_end = child_of(signal) is not None
    make_job_due(connection, statements, flow_uuid, claims=1, is_end=is_end)
    return parameters


def report_end(
    connection: sa.Connection, statements: Statements, end: _child_ends.ChildEnd | None
) -> None:
    """Report the end of a child flow to its parent, if this exists."""
    if end is None:
        return
    if connection.execute(statements.flow_state, {"flow_uuid": end.parent}).first() is not None:
        add_signal(connection, statements, end.parent, end.signal)


def _report_deletion(connection: sa.Connection, statements: Statements, flow_uuid: str) -> None:
    row = reading.first(connection, statements.flow_for_update, flow_uuid=flow_uuid)
    if row is not None:
        meta, epoch = rows.object_of(row["meta"]), row["lease_epoch"]
        end = _child_ends.deletion_of(flow_uuid, row["state"], meta, epoch)
        report_end(connection, statements, end)


def make_paused_jobs_due(connection: sa.Connection, statements: Statements, pattern: str) -> None:
    """Make the jobs of flows due that are parked for a pause of task types.

    Call this after the pause was written in the same transaction: a flow that is being parked
    either waits for that write (`SQLJobBoard.park`), or is found here.
    """
    parameters = {"mark": f'%"{models.PAUSED_BY}"%'}
    for uuid, meta in connection.execute(statements.flows_parked_for_pauses, parameters).all():
        if pattern in _pauses.patterns_of(rows.object_of(meta).get(models.PAUSED_BY)):
            make_job_due(connection, statements, uuid, claims=1)


def ensure_job(connection: sa.Connection, statements: Statements, flow: models.FlowDetail) -> None:
    """Post the job of a flow if it was submitted to a board in this store and has no job.

    If its run is over, a claim on the job ends, because its owner is about to delete the job.
    """
    note = flow.meta_value(models.SUBMITTED)
    if (
        not isinstance(note, Mapping)
        or "namespace" not in note
        or "at" in note
        or flow.awaits_reversion
    ):
        return
    ends_claim = flow.state in states.FLOW_ENDED or flow.is_suspended_by_command
    parameters = {"flow_uuid": flow.uuid, "ends_claim": int(ends_claim)}
    if not connection.execute(statements.restore_job, parameters).rowcount:
        details = rows.text_of(codec.pack({"flow_uuid": flow.uuid}, "details"))
        fair_key, fair_weight = note.get("fair") or ("", 1.0)
        job = {
            "board": note["namespace"],
            "rank": note["rank"],
            "details": details,
            "queue": note.get("queue", "default"),
            "fair_key": fair_key,
            "fair_weight": fair_weight,
        }
        turns.assign(connection, [job])
        connection.execute(statements.post_job, {**job, "flow_uuid": flow.uuid})
    notify_job(connection, statements, flow.uuid)


def release_fork(connection: sa.Connection, statements: Statements, flow_uuid: str) -> None:
    """Let conductors run a fork, if it is held and was not deleted."""
    found = reading.locked_flow(connection, statements, flow_uuid)
    if found is None:
        return
    flow, _ = found
    if flow.meta.pop(models.AWAITS_REVERSION, None) is not None:
        lock(connection, statements, flow_uuid, batch_of(flow, ()).flow, None)
        ensure_job(connection, statements, flow)


def settle_command(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    settled: _commands.FlowCommand,
) -> None:
    """Delete a command that is carried out.

    :raises InvalidState: if the flow has another command.
    """
    parameters = {"flow_uuid": flow_uuid, "wish": rows.command_text(settled)}
    if not connection.execute(statements.settle_command, parameters).rowcount:
        raise settled.withdrawn_error(flow_uuid)


def notify_job(connection: sa.Connection, statements: Statements, flow_uuid: str) -> None:
    if statements.notify_job is not None:
        connection.execute(statements.notify_job, {"flow_uuid": flow_uuid})


class NewBook:
    def __init__(self, book: models.LogBook) -> None:
        self._book = book
        # Before the transaction, so that a value that cannot be encoded fails early.
        self.row = rows.BOOK.row(_trees.tree_of(book))
        self.batches_of_flows = [
            batch_of(flow, flow, base.items_of(flow), book.uuid) for flow in book
        ]

    def put(self, connection: sa.Connection, statements: Statements) -> None:
        """Write the logbook, except flows that an engine runs or has run since they were read."""
        book = self._book
        stored = reading.first(connection, statements.book_for_update, uuid=book.uuid)
        row = self.row
        if stored is not None:
            merged: models.LogBook = rows.BOOK.record(_trees.BOOK, stored)
            merged.merge(book.copy(retain_contents=False))
            row = rows.BOOK.row(_trees.tree_of(merged))
        connection.execute(statements.put_book, row)
        for flow, batch in zip(book, self.batches_of_flows, strict=True):
            found = reading.locked_flow(connection, statements, flow.uuid)
            if found is not None:
                of_flow, stored = found
                if stored["lease_epoch"] != flow.epoch or (stored["remaining"] or 0) > 0:
                    continue
                of_flow.merge(flow.copy(retain_contents=False))
                batch.flow = _flow_row(of_flow, stored["book_uuid"])
                if stored["state"] == of_flow.state:
                    batch.flow["entered"] = stored["ended"]
                batch.tags = rows.tag_rows(flow.uuid, of_flow.own_meta, given=True)
                batch.tagged = []
                connection.execute(statements.delete_tags, {"flow_uuid": flow.uuid})
            connection.execute(statements.put_flow, batch.flow)
            batch.write(connection, statements)


def claim_key(
    connection: sa.Connection, statements: Statements, key: UniqueKey, flow_uuid: str
) -> str:
    """Return the uuid of the flow that has a unique key: `flow_uuid` if the key was free.

    The key is locked until the transaction ends.

    :raises UniqueKeyConflict: if its flow was submitted with other contents.
    """
    parameters = {**key._asdict(), "flow_uuid": flow_uuid}
    row = None
    while row is None:  # another process may delete it between the two statements
        connection.execute(statements.add_key, [parameters])
        row = reading.first(connection, statements.key_for_update, name=key.name)
    owner = str(row["flow_uuid"])
    if owner == flow_uuid:
        return flow_uuid
    if (row["remaining"] or 0) <= 0:
        flow = reading.first(connection, statements.flow_state, flow_uuid=owner)
        request = None if flow is None else rows.command_of(flow["wish"])
        is_requested = request is not None and request.reruns_flow
        if flow is None or (flow["state"] in states.FLOW_ENDED and not is_requested):
            connection.execute(statements.replace_key, parameters)
            return flow_uuid
    key.check(owner, row["digest"])
    if row["remaining"] is None and key.seconds is not None:
        connection.execute(statements.prolong_key, parameters)
    return owner


def lock_debounce_key(
    connection: sa.Connection, statements: Statements, key: DebounceKey, flow_uuid: str
) -> tuple[str, float]:
    """Lock a key, which `flow_uuid` gets if no flow has it, until the transaction ends.

    :returns: the uuid of the flow that has the key, and the seconds from now to its start.
    """
    row = None
    while row is None:  # another process may delete it between the two statements
        connection.execute(statements.add_key, [_key_row(key, flow_uuid)])
        row = reading.first(connection, statements.key_for_update, name=key.name)
    return str(row["flow_uuid"]), key.delay(row["remaining"])


def take_debounce_key(
    connection: sa.Connection, statements: Statements, key: DebounceKey, flow_uuid: str
) -> None:
    """Give a locked key to a new flow, whose time begins now."""
    connection.execute(statements.replace_key, _key_row(key, flow_uuid))


def _key_row(key: DebounceKey, flow_uuid: str) -> rows.Row:
    return {"name": key.name, "digest": "", "seconds": key.max_seconds, "flow_uuid": flow_uuid}


def lock_new_flow(
    connection: sa.Connection, statements: Statements, flow_uuid: str
) -> Mapping[str, Any] | None:
    """Lock and return the row of a flow, or None if it has begun, has a command or is deleted."""
    row = reading.first(connection, statements.flow_for_update, flow_uuid=flow_uuid)
    if row is None or row["lease_epoch"] > 0 or row["wish"] is not None:
        return None
    return row if row["state"] in (None, states.PENDING) else None


def replace_new_flow(
    connection: sa.Connection, statements: Statements, book: NewBook, stored: Mapping[str, Any]
) -> None:
    """Replace the records of a locked flow by those of a new book. It stays in its logbook."""
    (batch,) = book.batches_of_flows
    assert batch.flow is not None
    batch.flow["created"] = stored["created"]
    connection.execute(statements.delete_atoms, {"flow_uuid": batch.flow_uuid})
    connection.execute(statements.delete_tags, {"flow_uuid": batch.flow_uuid})
    connection.execute(statements.put_flow, [batch.flow])
    batch.tagged = []
    batch.write(connection, statements)


def write_new_books(
    connection: sa.Connection, statements: Statements, books: Iterable[NewBook]
) -> None:
    new_books = list(books)
    connection.execute(statements.put_book, [book.row for book in new_books])
    batches = [batch for book in new_books for batch in book.batches_of_flows]
    connection.execute(
        statements.put_flow, [batch.flow for batch in batches if batch.flow is not None]
    )
    if tag_rows := [row for batch in batches for row in batch.tags]:
        connection.execute(statements.put_tags, tag_rows)
    for batch in batches:
        batch.number_rows(1)
    if atom_rows := [row for batch in batches for row in batch.atoms]:
        connection.execute(statements.put_atoms, atom_rows)
    if item_rows := [row for batch in batches for row in batch.items]:
        connection.execute(statements.put_items, item_rows)


def _flow_row(flow: models.FlowDetail, book_uuid: str | None) -> rows.Row:
    row = rows.FLOW.row(_trees.tree_of(flow))
    insert_only = {"book_uuid": book_uuid, "birth": secrets.randbits(62), "lease_epoch": flow.epoch}
    entered, until = _history.entered_at(flow.history), flow.undo_until
    seconds = 0.0 if until is None or entered is None else until - entered
    times = {"created": flow.created or 0.0, "entered": until or entered, "undo_seconds": seconds}
    return {**row, **times, **insert_only}


def _batch_number(lease: _leases.Lease) -> int:
    """Return a number above those of all earlier leases. Only the owner of the lease writes."""
    return lease.epoch * _BATCHES_PER_LEASE + next(_batch_counter)
