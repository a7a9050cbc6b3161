"""The SQL statements of a backend for its kind of database."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from wbengine import states
from wbengine._sql import dialects
from wbengine.persistence.backends._sql import rows, tables, turns
from wbengine.types import _tags

__all__ = ["Statements", "put_tags"]

_BOOKS: Final = tables.BOOKS.name
_FLOWS: Final = tables.FLOWS.name
_ATOMS: Final = tables.ATOMS.name
_ITEMS: Final = tables.ITEMS.name
_LOGS: Final = tables.LOGS.name
_OUTLINES: Final = tables.OUTLINES.name
_SIGNALS: Final = tables.SIGNALS.name
_TAGS: Final = tables.TAGS.name
_PAUSES: Final = tables.PAUSES.name
_CODES: Final = tables.CODES.name
_JOBS: Final = tables.JOBS.name
_KEYS: Final = tables.UNIQUE_KEYS.name
_DUTIES: Final = tables.DUTIES.name
_ACCESS_KEYS: Final = tables.ACCESS_KEYS.name

#: Columns that only the first insertion sets.
_INSERT_ONLY_COLUMNS: Final = ("book_uuid", "flow_uuid", "kind", "birth", "lease_epoch")

_UNFINISHED: Final = frozenset(states.FLOW_STATES) - states.FLOW_ENDED

#: Numbers of atoms for which SQLite writes a batch with one statement.
_SINGLE_STATEMENT_ATOM_COUNTS: Final = range(1, 5)


class Statements:
    """SQL statements for one kind of database.

    A transaction that changes a flow or its contents first locks the flow's row and checks the
    lease. The lock ensures that the lease cannot change until the transaction ends.
    """

    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        flow = "WHERE uuid = :flow_uuid"
        owned_flow = f"{flow} AND (lease_owner = :lease_owner AND lease_epoch = :lease_epoch)"
        free = f"(lease_owner IS NULL OR lease_until <= {now})"
        ended_states = ", ".join(f"'{state}'" for state in sorted(states.FLOW_ENDED))
        has_ended = f":state IN ({ended_states})"

        self.put_book = _upsert(dialect, rows.BOOK)
        #: Insert the logbook unless it exists; in both cases its row is locked.
        self.add_book = dialects.upsert(
            dialect, _BOOKS, rows.BOOK.columns, rows.BOOK.keys, keep=rows.BOOK.columns
        )
        key_columns = ("name", "flow_uuid", "digest", "expires")
        #: Insert the key unless it exists; in both cases its row is locked.
        self.add_key = dialects.upsert(
            dialect, _KEYS, key_columns, ["name"], keep=key_columns,
            given={"expires": f"{now} + :seconds"},
        )  # fmt: skip
        self.key_for_update = sa.text(
            f"SELECT flow_uuid, digest, expires - {now} AS remaining FROM {_KEYS}"
            f" WHERE name = :name{lock}"
        )
        self.replace_key = sa.text(
            f"UPDATE {_KEYS} SET flow_uuid = :flow_uuid, digest = :digest,"
            f" expires = {now} + :seconds WHERE name = :name"
        )
        self.move_keys = sa.text(
            f"UPDATE {_KEYS} SET flow_uuid = :flow_uuid WHERE flow_uuid = :old_uuid"
        )
        self.prolong_key = sa.text(
            f"UPDATE {_KEYS} SET expires = {now} + :seconds WHERE name = :name"
        )
        is_over = f"(expires IS NULL OR expires <= {now})"
        self.expired_keys = sa.text(
            f"SELECT name, flow_uuid FROM {_KEYS} WHERE {is_over}"
            f" AND NOT EXISTS (SELECT 1 FROM {_FLOWS} f WHERE f.uuid = {_KEYS}.flow_uuid)"
        )
        # The flow is compared, because a submission may give the key to a new flow meanwhile, which
        # a subquery in this statement would not find: PostgreSQL waits for the key, and then reads
        # other tables as they were at the start of the statement.
        self.delete_expired_key = sa.text(
            f"DELETE FROM {_KEYS} WHERE name = :name AND flow_uuid = :flow_uuid AND {is_over}"
        )
        # The snapshot of a transaction with several keys is older than the last of their flows.
        latest = " LOCK IN SHARE MODE" if dialect == dialects.MYSQL else ""
        self.flow_state = sa.text(f"SELECT state, wish FROM {_FLOWS} {flow}{latest}")
        end = f"{now} + :undo_seconds"
        self.put_flow = _upsert(
            dialect,
            rows.FLOW,
            *("book_uuid", "created", "birth", "lease_epoch", "updated", "ended"),
            updated=now,
            # A copy of a flow that ended earlier keeps this time.
            ended=f"CASE WHEN {has_ended} AND :entered < {end} THEN :entered"
            f" WHEN {has_ended} THEN {end} END",
        )
        self.put_tags = put_tags(dialect)
        self.delete_tags = sa.text(
            f"DELETE FROM {_TAGS} WHERE flow_id IN"
            f" (SELECT id FROM {_FLOWS} WHERE uuid = :flow_uuid)"
        )
        self.delete_run_tags = sa.text(f"{self.delete_tags.text} AND given = 0")
        self.put_atoms = _upsert(dialect, rows.ATOM, "changed")
        self.put_items = _upsert(dialect, rows.ITEM, "changed")
        self.touch_atoms = sa.text(f"UPDATE {_ATOMS} SET changed = :changed WHERE uuid = :uuid")
        self.put_logs = sa.text(
            f"INSERT INTO {_LOGS} (atom_uuid, attempt, item, logged)"
            " VALUES (:atom_uuid, :attempt, :item, :logged)"
        )
        self.delete_logs = sa.text(
            f"DELETE FROM {_LOGS} WHERE atom_uuid = :atom_uuid AND attempt <= :oldest"
        )
        self.delete_atoms = sa.text(f"DELETE FROM {_ATOMS} WHERE flow_uuid = :flow_uuid")
        self.drop_atom = sa.text(
            f"DELETE FROM {_ATOMS} WHERE uuid = :uuid AND flow_uuid = :flow_uuid"
        )
        self.delete_items = sa.text(
            f"DELETE FROM {_ITEMS} WHERE atom_uuid = :atom_uuid AND attempt <> :attempt"
        )
        assignments = [
            f"{name} = :{name}" for name in rows.FLOW.columns if name not in rows.FLOW.keys
        ]
        # First, because MySQL compares with the new `state` after its assignment. A write without a
        # change of the state, such as that of a note, is not another end.
        ended = (
            f"ended = CASE WHEN {has_ended} AND state = :state THEN COALESCE(ended, {end})"
            f" WHEN {has_ended} THEN {end} END"
        )
        write = f"UPDATE {_FLOWS} SET {ended}, {', '.join(assignments)}, updated = {now}"
        self.write_ours = sa.text(f"{write} {owned_flow}")
        self.write_free = sa.text(f"{write} {flow} AND {free}")
        self.lock_ours = sa.text(f"SELECT 1 FROM {_FLOWS} {owned_flow}{lock}")
        #: Batches under a lease as one PostgreSQL statement, by (with flow row, with items).
        #: The statement returns 1, or 0 if the lease is not the latest one.
        self.batches = {
            (with_flow, with_items): _batch_statement(
                f"{write} {owned_flow} RETURNING 1" if with_flow else self.lock_ours.text,
                with_items,
            )
            for with_flow in (False, True)
            for with_items in (False, True)
            if dialect == dialects.POSTGRESQL
        }
        #: SQLite statements that write only atoms under a lease, by the number of atoms. A missing
        #: text is the parameter '', because the driver searches an adapter for each None.
        self.atom_columns: Final = (*rows.ATOM.keys, *rows.ATOM.plain)
        self.atom_texts: Final = (*rows.ATOM.packed, "more")
        marks = ", ".join(
            [*("?" for _ in self.atom_columns), *("NULLIF(?, '')" for _ in self.atom_texts), "?"]
        )
        self.atom_batches = {
            count: _upsert(
                dialect,
                rows.ATOM,
                "changed",
                source=f"SELECT * FROM (VALUES {', '.join([f'({marks})'] * count)}) WHERE EXISTS"
                f" (SELECT 1 FROM {_FLOWS} WHERE uuid = ? AND lease_owner = ? AND lease_epoch = ?)",
            ).text
            for count in _SINGLE_STATEMENT_ATOM_COUNTS
            if dialect == dialects.SQLITE
        }
        self.lock_free = sa.text(f"SELECT 1 FROM {_FLOWS} {flow} AND {free}{lock}")
        self.book_for_update = sa.text(f"{tables.select(tables.BOOKS)} WHERE uuid = :uuid{lock}")
        self.flow_for_update = sa.text(
            f"{tables.select(tables.FLOWS, f'lease_until - {now} AS remaining')} {flow}{lock}"
        )
        self.destroy_book = sa.text(f"DELETE FROM {_BOOKS} WHERE uuid = :uuid")
        self.destroy_flow = sa.text(f"DELETE FROM {_FLOWS} {flow}")
        self.destroy_removable = sa.text(
            f"DELETE FROM {_FLOWS} {flow} AND ({free} OR lease_epoch = :dead)"
            f" AND COALESCE(state, '{states.PENDING}') IN :states"
            f" AND COALESCE(updated, created) < :before AND NOT {rows.has_command()}"
        ).bindparams(sa.bindparam("states", expanding=True))
        is_child = (
            f"EXISTS (SELECT 1 FROM {_TAGS} t JOIN {_FLOWS} p ON p.uuid = t.text"
            f" WHERE t.flow_id = {_FLOWS}.id AND t.name = '{_tags.PARENT}')"
        )
        is_forked = (
            f"EXISTS (SELECT 1 FROM {_TAGS} t"
            f" WHERE t.name = '{_tags.OWNED}' AND t.text = {_FLOWS}.uuid)"
        )
        #: Deletable flows by state and time of their end. The reversion of parents needs their
        #: children, and that of forks the children of their originals.
        self.expired = {
            state: f"SELECT uuid, state, book_uuid, ended FROM {_FLOWS} WHERE state = '{state}'"
            f" AND ended >= :since AND ended < :{state}"
            f" AND COALESCE(updated, created) < :{state} AND NOT {rows.has_command()}"
            f" AND {free} AND NOT {is_child} AND NOT {is_forked} ORDER BY ended LIMIT :most"
            for state in states.FLOW_ENDED
        }
        self.destroy_job = sa.text(f"DELETE FROM {_JOBS} WHERE uuid = :flow_uuid")
        self.clear_jobs = sa.text(f"DELETE FROM {_JOBS} WHERE uuid IN (SELECT uuid FROM {_FLOWS})")
        self.clear = sa.text(f"DELETE FROM {_BOOKS}")
        self.flows_of_book = sa.text(f"SELECT uuid FROM {_FLOWS} WHERE book_uuid = :uuid")

        self.now = sa.text(f"SELECT {now}")
        # `remaining` is NULL if there is no owner, and 0 or less if the lease has expired.
        self.lease = sa.text(
            "SELECT lease_owner, lease_epoch, wish, state,"
            f" lease_until - {now} AS remaining, {now} AS now"
            f" FROM {_FLOWS} {flow}"
        )
        self.acquire_lease = sa.text(
            f"UPDATE {_FLOWS} SET lease_owner = :owner, lease_until = {now} + :seconds,"
            f" lease_epoch = lease_epoch + 1, updated = {now}"
            f" {flow} AND ({free} OR lease_epoch = :dead)"
        )
        self.renew_lease = sa.text(
            f"UPDATE {_FLOWS} SET lease_until = {now} + :seconds, updated = {now} {owned_flow}"
        )
        release = f"UPDATE {_FLOWS} SET lease_owner = NULL, lease_until = NULL, updated = {now}"
        self.release_lease = sa.text(f"{release} {owned_flow}")
        self.end_lease = sa.text(f"{release} {owned_flow} AND wish IS NULL")
        self.end_lease_and_command = sa.text(f"{release}, wish = NULL {owned_flow}")
        self.command_ours = sa.text(f"SELECT wish FROM {_FLOWS} {owned_flow}{lock}")
        self.has_command = sa.text(f"SELECT 1 FROM {_FLOWS} {flow} AND wish IS NOT NULL")

        self.put_command = sa.text(f"UPDATE {_FLOWS} SET wish = :wish {flow}")
        self.settle_command = sa.text(f"UPDATE {_FLOWS} SET wish = NULL {flow} AND wish = :wish")
        self.commands = sa.text(
            f"SELECT uuid, wish, state FROM {_FLOWS} WHERE uuid IN :uuids AND wish IS NOT NULL"
        ).bindparams(sa.bindparam("uuids", expanding=True))

        self.flows = sa.text(f"{tables.select(tables.FLOWS)} WHERE uuid IN :uuids").bindparams(
            sa.bindparam("uuids", expanding=True)
        )
        self.marks = sa.text(
            "SELECT f.uuid, f.id, f.birth, f.updated, f.state, LENGTH(f.more), f.wish,"
            f" (SELECT MAX(changed) FROM {_ATOMS} WHERE flow_uuid = f.uuid) AS changed"
            f" FROM {_FLOWS} f WHERE f.uuid IN :uuids"
        ).bindparams(sa.bindparam("uuids", expanding=True))

        columns = ("flow_uuid", "name", "value", "at")
        self.add_signal = dialects.upsert(
            dialect, _SIGNALS, columns, ("flow_uuid", "name"), keep=columns
        )
        # FOR UPDATE reads the latest version of the row instead of the snapshot of the transaction.
        self.signal = sa.text(
            f"SELECT value, at FROM {_SIGNALS} WHERE flow_uuid = :flow_uuid AND name = :name{lock}"
        )
        # Also update jobs that do not wait: such a job may be about to wait. In PostgreSQL, the
        # statement waits for another transaction's write only if the old version of the row matches
        # the condition.
        self.make_job_due = sa.text(
            f"UPDATE {_JOBS} SET not_before = 0, flow_limit = NULL,"
            f" turn = CASE WHEN :first = 1 OR turn IS NULL THEN {turns.FIRST} ELSE turn END"
            " WHERE uuid = :flow_uuid AND trashed = 0 AND claims >= :claims"
            # A flow that waits for its first permit has not begun.
            " AND (:claims = 0 OR flow_limit IS NULL OR turn IS NOT NULL)"
        )
        # The end of a child flow does not delay a job that is due, or that is about to be parked.
        end_due = f"{now} + end_delay"
        self.make_parent_due = sa.text(
            f"UPDATE {_JOBS} SET flow_limit = NULL, turn = {turns.FIRST}, not_before = CASE"
            " WHEN end_delay = 0 OR owner IS NOT NULL THEN 0"
            f" WHEN not_before > {end_due} THEN {end_due} ELSE not_before END"
            " WHERE uuid = :flow_uuid AND trashed = 0 AND claims >= :claims"
        )
        # The conductor of a run that is over is about to delete the job: the claim ends.
        self.restore_job = sa.text(
            f"UPDATE {_JOBS} SET trashed = 0, not_before = 0, flow_limit = NULL,"
            f" turn = {turns.FIRST}, claims = claims + :ends_claim,"
            " owner = CASE WHEN :ends_claim = 1 THEN NULL ELSE owner END,"
            " owner_until = CASE WHEN :ends_claim = 1 THEN NULL ELSE owner_until END"
            " WHERE uuid = :flow_uuid"
        )
        job_columns = (
            "uuid", "board", "name", "priority", "details", "book_uuid", "book_name", "created",
            "updated", "queue", "fair_key", "fair_weight", "turn",
        )  # fmt: skip
        self.post_job = dialects.upsert(
            dialect, _JOBS, job_columns, ("uuid",), keep=job_columns,
            source=f"SELECT f.uuid, :board, f.name, :rank, :details, b.uuid, b.name, {now}, {now},"
            " :queue, :fair_key, :fair_weight, :turn"
            f" FROM {_FLOWS} f JOIN {_BOOKS} b ON b.uuid = f.book_uuid WHERE f.uuid = :flow_uuid",
        )  # fmt: skip
        self.drop_job = sa.text(f"DELETE FROM {_JOBS} WHERE uuid = :flow_uuid AND trashed = 0")
        #: Statement that wakes conductors at the commit; None if conductors must poll.
        self.notify_job = (
            sa.text(f"SELECT pg_notify('{_JOBS}', board) FROM {_JOBS} WHERE uuid = :flow_uuid")
            if dialect == dialects.POSTGRESQL
            else None
        )
        self.signals = sa.text(
            f"SELECT flow_uuid, name, value, at FROM {_SIGNALS} WHERE flow_uuid IN :uuids"
        ).bindparams(sa.bindparam("uuids", expanding=True))

        pause_columns = ("pattern", "reason", "sender", "paused_at", "ends_at")
        self.put_pause = dialects.upsert(dialect, _PAUSES, pause_columns, ("pattern",))
        self.remove_pause = sa.text(f"DELETE FROM {_PAUSES} WHERE pattern = :pattern")
        self.remove_ended_pause = sa.text(
            f"DELETE FROM {_PAUSES} WHERE pattern = :pattern AND ends_at <= {now}"
        )
        self.pauses = sa.text(f"SELECT {', '.join(pause_columns)} FROM {_PAUSES} ORDER BY pattern")
        # `mark` narrows the rows to flows that may have been parked for a pause.
        self.flows_parked_for_pauses = sa.text(
            f"SELECT uuid, meta FROM {_FLOWS} WHERE state = '{states.SUSPENDED}'"
            " AND meta LIKE :mark ORDER BY uuid"
        )

        # A pause of the queue itself comes before that of all queues, '*'. Flows that have begun
        # have the turn -1, or none without a limit.
        self.queue_pause = sa.text(
            f"SELECT q.name, q.paused_at, q.sender, q.reason FROM {tables.JOBS.name} j"
            f" JOIN {tables.JOB_QUEUES.name} q ON q.board = j.board"
            " AND (q.name = j.queue OR q.name = '*') AND q.paused_at IS NOT NULL"
            " WHERE j.uuid = :uuid AND j.trashed = 0 AND j.owner IS NULL"
            " AND (j.turn >= 0 OR j.turn IS NULL AND j.flow_limit IS NOT NULL)"
            " ORDER BY CASE WHEN q.name = '*' THEN 1 ELSE 0 END LIMIT 1"
        )

        access_columns = [column.name for column in tables.ACCESS_KEYS.columns]
        read_keys = f"SELECT {', '.join(access_columns)} FROM {_ACCESS_KEYS}"
        of_key = "WHERE key_id = :key_id"
        self.access_keys = sa.text(f"{read_keys} ORDER BY name, created, key_id")
        self.access_key = sa.text(f"{read_keys} {of_key}")
        self.add_access_key = sa.text(
            f"INSERT INTO {_ACCESS_KEYS} ({', '.join(access_columns)})"
            f" VALUES (:{', :'.join(access_columns)})"
        )
        self.revoke_access_key = sa.text(
            f"UPDATE {_ACCESS_KEYS} SET revoked = :at {of_key} AND revoked IS NULL"
        )
        self.limit_access_key = sa.text(
            f"UPDATE {_ACCESS_KEYS} SET expires = :at {of_key}"
            " AND (expires IS NULL OR expires > :at)"
        )
        self.note_use_of_access_key = sa.text(f"UPDATE {_ACCESS_KEYS} SET used = :at {of_key}")

        self.add_code = dialects.upsert(dialect, _CODES, ("app", "version"), ("app", "version"))
        self.report_code = sa.text(f"UPDATE {_CODES} SET seen = {now} WHERE version = :version")
        self.withdraw_code = sa.text(f"UPDATE {_CODES} SET seen = 0 WHERE version = :version")
        self.codes = sa.text(
            f"SELECT id, app, version, {now} - seen AS age FROM {_CODES} ORDER BY id"
        )
        # A list of states, because an index finds their flows: most flows have ended.
        unfinished = ", ".join(f"'{state}'" for state in sorted(_UNFINISHED))
        idle = f"code IS NOT NULL AND (state IS NULL OR state IN ({unfinished})) AND {free}"
        self.flows_by_code = sa.text(
            f"SELECT code, COUNT(*) FROM {_FLOWS} WHERE {idle} GROUP BY code ORDER BY code"
        )
        self.make_jobs_of_code_due = sa.text(
            f"UPDATE {_JOBS} SET not_before = 0, flow_limit = NULL, turn = {turns.FIRST}"
            " WHERE trashed = 0 AND claims >= 1 AND uuid IN"
            f" (SELECT uuid FROM {_FLOWS} WHERE {idle} AND code = :old)"
        )
        self.assign_code = sa.text(
            f"UPDATE {_FLOWS} SET code = :new, updated = {now} WHERE {idle} AND code = :old"
        )

        duty_columns = ("name", "until")
        #: Insert the duty unless it exists; in both cases its row is locked.
        self.add_duty = dialects.upsert(
            dialect, _DUTIES, duty_columns, ["name"], keep=duty_columns, given={"until": "0"}
        )
        self.claim_duty = sa.text(
            f"UPDATE {_DUTIES} SET owner = :owner, until = {now} + :seconds"
            f" WHERE name = :name AND (until <= {now} OR owner = :owner)"
        )
        self.end_duty = sa.text(
            f"UPDATE {_DUTIES} SET owner = NULL, until = {now} + :seconds, note = :note"
            " WHERE name = :name AND owner = :owner"
        )
        self.duty_note = sa.text(f"SELECT note FROM {_DUTIES} WHERE name = :name")
        self.position = sa.text(f"SELECT created, id FROM {_FLOWS} WHERE uuid = :flow_uuid")
        self.count_flows = sa.text(f"SELECT COUNT(*) FROM {_FLOWS}")
        self.oldest_flow = sa.text(f"SELECT MIN(created) FROM {_FLOWS}")

        self.outline = sa.text(
            f"SELECT o.outline FROM {_FLOWS} f LEFT JOIN {_OUTLINES} o ON o.flow_uuid = f.uuid"
            " WHERE f.uuid = :flow_uuid"
        )
        self.put_outline = dialects.upsert(
            dialect, _OUTLINES, ["flow_uuid", "outline"], ["flow_uuid"]
        )


def put_tags(dialect: str) -> sa.TextClause:
    """Return the statement that adds tags of a flow to their index, or replaces them."""
    values = ("name", "kind", "text", "number", "given")
    return dialects.upsert(
        dialect, _TAGS, ("flow_id", *values, "created"), ("flow_id", "name"),
        source=f"SELECT id, :{', :'.join(values)}, created FROM {_FLOWS} WHERE uuid = :flow_uuid",
    )  # fmt: skip


def _batch_statement(owned_flow: str, with_items: bool) -> sa.TextClause:
    """Return a statement that writes a batch. Each kind of row is one JSON parameter."""

    def rows_of(name: str, *columns: sa.Column[Any]) -> str:
        numbers = (isinstance(column.type, sa.Integer) for column in columns)
        definitions = ", ".join(
            f"{column.name} {'bigint' if is_number else 'text'}"
            for column, is_number in zip(columns, numbers, strict=True)
        )
        return f"json_to_recordset(CAST(:{name} AS json)) AS given_rows({definitions})"

    def put(name: str, shape: rows.Shape, table: sa.Table) -> str:
        columns = [table.c[column] for column in (*shape.columns, "changed")]
        names = ", ".join(column.name for column in columns)
        source = f"SELECT {names} FROM {rows_of(name, *columns)} WHERE {is_locked}"
        return _upsert(dialects.POSTGRESQL, shape, "changed", source=source).text

    is_locked = "EXISTS (SELECT 1 FROM ours)"
    parts = [owned_flow, put("atoms", rows.ATOM, tables.ATOMS)]
    if with_items:
        items = tables.ITEMS.c
        parts += [
            (
                f"DELETE FROM {_ITEMS} stored_items USING"
                f" {rows_of('begun', items.atom_uuid, items.attempt)}"
                " WHERE stored_items.atom_uuid = given_rows.atom_uuid"
                " AND stored_items.attempt <> given_rows.attempt"
                f" AND {is_locked}"
            ),
            put("items", rows.ITEM, tables.ITEMS),
            (
                f"UPDATE {_ATOMS} SET changed = :number"
                f" WHERE uuid = ANY(CAST(:touched AS text[])) AND {is_locked}"
            ),
        ]
    names = ("ours", *(f"part{number}" for number in range(1, len(parts))))
    text = ", ".join(f"{name} AS ({part})" for name, part in zip(names, parts, strict=True))
    return sa.text(f"WITH {text} SELECT count(*) FROM ours")


def _upsert(
    dialect: str, shape: rows.Shape, *beside: str, source: str | None = None, **given: str
) -> sa.TextClause:
    columns = (*shape.columns, *beside)
    keys = [name for name in shape.keys if name not in _INSERT_ONLY_COLUMNS]
    return dialects.upsert(
        dialect, shape.table, columns, keys, keep=_INSERT_ONLY_COLUMNS, given=given, source=source
    )
