"""Operations on many flows in the database of the flows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions, states
from wbengine._concurrency.crash_points import crashpoint
from wbengine._sql import dialects
from wbengine.persistence import _bulk_records, _sealed_fields, base
from wbengine.persistence._bulk_records import Bulk, BulkFlow, Skipped
from wbengine.persistence.backends._sql import rows, tables

__all__ = ["SQLBulkStore"]

_BULKS: Final = tables.BULKS.name
_BULK_FLOWS: Final = tables.BULK_FLOWS.name
_FLOWS: Final = tables.FLOWS.name
_ROWS_PER_STATEMENT: Final = 1000


class _Statements:
    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        one = "WHERE uuid = :uuid"
        bulk = tables.select(tables.BULKS, f"owner_until > {now} AS is_claimed")
        names = (
            "uuid", "operation", "arguments", "filter", "reason", "sender", "rate", "total",
            "created", "state",
        )  # fmt: skip
        values = [f":{name}" for name in names]
        self.add = sa.text(
            f"INSERT INTO {_BULKS} ({', '.join(names)}) VALUES ({', '.join(values)})"
        )
        self.add_flows = sa.text(
            f"INSERT INTO {_BULK_FLOWS} (bulk_uuid, position, flow_uuid, state, arguments)"
            " VALUES (:uuid, :position, :flow_uuid, :state, :arguments)"
        )
        self.get = sa.text(f"{bulk} {one}")
        self.get_for_update = sa.text(f"{bulk} {one}{lock}")
        self.latest = sa.text(
            f"{bulk} WHERE state IN :states ORDER BY created DESC, id DESC LIMIT :limit"
        ).bindparams(sa.bindparam("states", expanding=True))
        # This also locks the row until the transaction ends.
        self.claim = sa.text(
            f"UPDATE {_BULKS} SET owner = :owner, owner_until = {now} + :seconds {one}"
            f" AND state = '{_bulk_records.RUNNING}'"
            f" AND (owner IS NULL OR owner_until <= {now} OR owner = :owner)"
        )
        self.release = sa.text(
            f"UPDATE {_BULKS} SET owner = NULL, owner_until = NULL {one} AND owner = :owner"
        )
        self.next_flows = sa.text(
            "SELECT b.position, b.flow_uuid, b.state, b.arguments, CASE WHEN f.uuid IS NOT NULL"
            f" THEN COALESCE(f.state, '{states.PENDING}') END AS current_state"
            f" FROM {_BULK_FLOWS} b LEFT JOIN {_FLOWS} f ON f.uuid = b.flow_uuid"
            " WHERE b.bulk_uuid = :uuid AND b.position >= :start ORDER BY b.position LIMIT :limit"
        )
        self.skip = sa.text(
            f"UPDATE {_BULK_FLOWS} SET reason = :reason"
            " WHERE bulk_uuid = :uuid AND position = :position"
        )
        self.settle = sa.text(
            f"UPDATE {_BULKS} SET done = :done, skipped = :skipped, state = :state,"
            f" ended = CASE WHEN :is_over = 1 THEN {now} END {one}"
        )
        self.change_state = sa.text(
            f"UPDATE {_BULKS} SET state = :state, owner = NULL, owner_until = NULL,"
            f" ended = CASE WHEN :is_over = 1 THEN {now} END {one}"
        )
        self.reasons = sa.text(
            "SELECT REPLACE(reason, flow_uuid, 'ID') AS label, COUNT(*) AS number,"
            f" MIN(flow_uuid) AS example FROM {_BULK_FLOWS}"
            " WHERE bulk_uuid = :uuid AND reason IS NOT NULL"
            " GROUP BY label ORDER BY number DESC, label"
        )
        self.flows = sa.text(
            f"SELECT flow_uuid, reason FROM {_BULK_FLOWS}"
            " WHERE bulk_uuid = :uuid AND position >= :start ORDER BY position LIMIT :limit"
        )
        self.own_arguments = sa.text(
            f"SELECT 1 FROM {_BULK_FLOWS} WHERE bulk_uuid = :uuid AND arguments IS NOT NULL LIMIT 1"
        )
        self.ended = sa.text(f"SELECT uuid FROM {_BULKS} WHERE ended < :before")
        self.delete = sa.text(f"DELETE FROM {_BULKS} {one} AND ended < :before")
        self.delete_flows = sa.text(f"DELETE FROM {_BULK_FLOWS} WHERE bulk_uuid = :uuid")


_statements: Final = functools.cache(_Statements)


class SQLBulkStore(_bulk_records.BulkStore):
    """The operations on many flows in a database.

    :param transact: carries work out in a transaction (see `SQLConnection`).
    :param has_tables: returns whether the database contains tables.
    :param in_transaction: returns the store of a transaction.
    """

    def __init__(
        self,
        dialect: str,
        transact: Callable[..., Any],
        has_tables: Callable[[], bool],
        in_transaction: Callable[[sa.Connection], base.Backend],
    ) -> None:
        self._sql = _statements(dialect)
        self._transact = transact
        self._has_tables = has_tables
        self._in_transaction = in_transaction

    def add(self, bulk: Bulk, flows: Sequence[BulkFlow]) -> None:
        row = {
            **bulk._asdict(),
            "sender": bulk.by,
            "reason": bulk.reason and rows.storable_text(bulk.reason),
            "arguments": _sealed(bulk.arguments, bulk.uuid),
            "filter": rows.text_of(bulk.filter),
        }
        flow_rows = [
            {
                "uuid": bulk.uuid,
                "position": position,
                "flow_uuid": flow.uuid,
                "state": flow.state,
                "arguments": _sealed(flow.arguments, bulk.uuid, flow.uuid),
            }
            for position, flow in enumerate(flows)
        ]

        def work(connection: sa.Connection) -> None:
            connection.execute(self._sql.add, row)
            for start in range(0, len(flow_rows), _ROWS_PER_STATEMENT):
                batch = flow_rows[start : start + _ROWS_PER_STATEMENT]
                connection.execute(self._sql.add_flows, batch)
            crashpoint("sql.before-bulk-commit")

        self._transact(f"Saving operation {bulk.uuid}", work)
        crashpoint("sql.after-bulk-commit")

    def get(self, uuid: str) -> Bulk:
        found = self._read(f"Reading operation {uuid}", self._sql.get, uuid=uuid)
        if not found:
            raise _missing(uuid)
        return _bulk_of(found[0])

    def latest(self, states: Sequence[str] = _bulk_records.STATES, limit: int = 100) -> list[Bulk]:
        found = self._read("Listing operations", self._sql.latest, states=list(states), limit=limit)
        return [_bulk_of(row) for row in found]

    def advance(
        self, uuid: str, owner: str, seconds: float, limit: int, work: _bulk_records.Work
    ) -> Bulk | None:
        claim = {"uuid": uuid, "owner": owner, "seconds": seconds}

        def step(connection: sa.Connection) -> Bulk | None:
            if not connection.execute(self._sql.claim, claim).rowcount:
                return None
            row = connection.execute(self._sql.get, {"uuid": uuid}).mappings().one()
            bulk = _bulk_of(row, _opened)
            position = {"uuid": uuid, "start": bulk.settled, "limit": limit}
            found = connection.execute(self._sql.next_flows, position).all()
            flows = [
                BulkFlow(
                    row.flow_uuid,
                    row.state,
                    _opened(row.arguments, uuid, row.flow_uuid),
                    row.current_state,
                )
                for row in found
            ]
            reasons = work(self._in_transaction(connection), bulk, flows)
            skipped = [
                {
                    "uuid": uuid,
                    "position": row.position,
                    "reason": rows.storable_text(reasons[row.flow_uuid]),
                }
                for row in found
                if row.flow_uuid in reasons
            ]
            if skipped:
                connection.execute(self._sql.skip, skipped)
            bulk = _bulk_records.after(bulk, len(flows), len(skipped))
            is_over = int(bulk.state == _bulk_records.COMPLETE)
            connection.execute(self._sql.settle, {**bulk._asdict(), "is_over": is_over})
            if is_over:
                bulk = _bulk_of(connection.execute(self._sql.get, {"uuid": uuid}).mappings().one())
            crashpoint("sql.before-advance-commit")
            return bulk

        advanced: Bulk | None = self._transact(f"Carrying out operation {uuid}", step)
        crashpoint("sql.after-advance-commit")
        return advanced

    def release(self, uuid: str, owner: str) -> None:
        parameters = {"uuid": uuid, "owner": owner}
        self._transact(
            f"Releasing operation {uuid}", lambda it: it.execute(self._sql.release, parameters)
        )

    def change_state(self, uuid: str, state: str) -> Bulk:
        def work(connection: sa.Connection) -> Bulk:
            row = connection.execute(self._sql.get_for_update, {"uuid": uuid}).mappings().first()
            if row is None:
                raise _missing(uuid)
            _bulk_records.check_change(_bulk_of(row), state)
            if row["state"] != state:
                is_over = int(state != _bulk_records.RUNNING)
                parameters = {"uuid": uuid, "state": state, "is_over": is_over}
                connection.execute(self._sql.change_state, parameters)
            return _bulk_of(connection.execute(self._sql.get, {"uuid": uuid}).mappings().one())

        changed: Bulk = self._transact(f"Changing operation {uuid}", work)
        return changed

    def skipped(self, uuid: str) -> list[Skipped]:
        found = self._read("Reading reasons", self._sql.reasons, uuid=uuid)
        return [Skipped(row["label"], row["number"], row["example"]) for row in found]

    def flows(self, uuid: str, limit: int = 1000, start: int = 0) -> list[tuple[str, str | None]]:
        found = self._read("Reading flows", self._sql.flows, uuid=uuid, limit=limit, start=start)
        return [(row["flow_uuid"], row["reason"]) for row in found]

    def has_own_arguments(self, uuid: str) -> bool:
        return bool(self._read("Reading arguments", self._sql.own_arguments, uuid=uuid))

    def delete_ended(self, before: float) -> None:
        for row in self._read("Listing ended operations", self._sql.ended, before=before):
            parameters = {"uuid": row["uuid"], "before": before}

            def work(connection: sa.Connection, parameters: dict[str, Any] = parameters) -> None:
                # A user may have resumed it meanwhile.
                if connection.execute(self._sql.delete, parameters).rowcount:
                    connection.execute(self._sql.delete_flows, parameters)

            self._transact(f"Removing operation {row['uuid']}", work)

    def _read(
        self, what: str, statement: sa.TextClause, **parameters: Any
    ) -> Sequence[Mapping[str, Any]]:
        if not self._has_tables():
            return []

        def work(connection: sa.Connection) -> Sequence[Any]:
            return connection.execute(statement, parameters).mappings().all()

        found: Sequence[Mapping[str, Any]] = self._transact(what, work, write=False)
        return found


def _sealed(arguments: Mapping[str, Any] | None, *place: str) -> str | None:
    if arguments is None:
        return None
    place = _sealed_fields.place_of_arguments(*place)
    return rows.text_of(_sealed_fields.sealed_parts(dict(arguments), arguments, *place))


def _opened(text: str | None, *place: str) -> dict[str, Any] | None:
    """Return arguments.

    :raises StorageFailure: if they are encrypted, and this process has not the key.
    """
    if text is None:
        return None
    try:
        place = _sealed_fields.place_of_arguments(*place)
        return _sealed_fields.opened_parts(rows.object_of(text), *place)
    except exceptions.NotTrusted as error:
        raise exceptions.StorageFailure(str(error)) from error


def _shown(text: str | None, *place: str) -> dict[str, Any] | None:
    """Return arguments for display. Without the key, their values are hidden."""
    try:
        return _opened(text, *place)
    except exceptions.StorageFailure:
        arguments = rows.object_of(text)
        del arguments[_sealed_fields.SEALED]
        return arguments


def _bulk_of(
    row: Mapping[Any, Any], arguments: Callable[..., dict[str, Any] | None] = _shown
) -> Bulk:
    return Bulk(
        row["uuid"],
        row["operation"],
        arguments(row["arguments"], row["uuid"]) or {},
        rows.object_of(row["filter"]),
        row["reason"],
        row["sender"],
        row["rate"],
        row["created"],
        row["total"],
        row["state"],
        row["done"],
        row["skipped"],
        row["ended"],
        row["owner"] if row["is_claimed"] else None,
    )


def _missing(uuid: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"Unknown operation {uuid!r:.80}")
