"""The table `wbe_steps` in a database of the user: one row for each task with a transaction.

A committed row says which execution or reversion of the task took effect last, and contains its
result. Rows are never deleted while their flow exists, so that an older process cannot take effect
any more.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._sql import database_errors, dialects

__all__ = ["Key", "Row", "claim", "create", "delete", "dialect_of", "finish", "flows"]

TABLE: Final = "wbe_steps"

_CREATION_LOCK: Final = 7_760_269_180_343

_metadata: Final = sa.MetaData()
_table: Final = sa.Table(
    TABLE,
    _metadata,
    # The uuid of the atom, and of an item of a Map also its index: "UUID[7]".
    sa.Column("step", dialects.KEY, primary_key=True),
    sa.Column("flow", dialects.KEY, nullable=False, index=True),
    sa.Column("name", dialects.TEXT, nullable=False),
    # The attempt of the atom that took effect.
    sa.Column("execution", sa.BigInteger, nullable=False),
    # Its action. NULL is only visible to other transactions if the function committed by itself.
    sa.Column("action", dialects.exact_text(20)),
    # Digest of its arguments, if they can be encoded.
    sa.Column("arguments", dialects.exact_text(64)),
    # The encoded result; in an open transaction its token.
    sa.Column("result", dialects.BYTES),
    sa.Column("changed", sa.Double, nullable=False),
    **dialects.TABLE,
)

_SELECT: Final = sa.select(
    _table.c.execution, _table.c.action, _table.c.arguments, _table.c.result
).where(_table.c.step == sa.bindparam("step"))


class Key(NamedTuple):
    """The task, or item of a Map, of a row."""

    step: str
    flow: str
    name: str


class Row(NamedTuple):
    """A committed row."""

    execution: int
    action: str | None
    arguments: str | None
    result: bytes | None


def dialect_of(engine: sa.Engine) -> str:
    """Return 'sqlite', 'mysql' or 'postgresql'."""
    return dialects.MYSQL if engine.dialect.name == "mariadb" else engine.dialect.name


def create(engine: sa.Engine, name: str) -> None:
    """Create the table, unless it exists.

    :raises StorageFailure: if it cannot be created.
    """
    what = f"Opening database {name!r}"
    with database_errors.convert_errors(what), engine.connect() as connection:
        if sa.inspect(connection).has_table(TABLE):
            return
    what = f"Creating table {TABLE} in database {name!r}"
    with database_errors.convert_errors(what), engine.begin() as connection:
        # In PostgreSQL, one of two concurrent creations of a table fails.
        if dialect_of(engine) == dialects.POSTGRESQL:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
        connection.execute(sa.schema.CreateTable(_table, if_not_exists=True))
        if not sa.inspect(connection).get_indexes(TABLE):
            for index in _table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))


def claim(
    connection: sa.Connection, dialect: str, key: Key, execution: int, token: bytes
) -> Row | None:
    """Lock the row of a task in the open transaction; insert it if it is missing.

    The database blocks this call while another transaction has the row.

    :returns: the committed row, or None if this call inserted it.
    """
    insert = dialects.upsert(
        dialect,
        TABLE,
        ("step", "flow", "name", "execution", "result", "changed"),
        ["step"],
        keep=("flow", "name", "execution", "result", "changed"),
        given={"changed": dialects.now(dialect)},
    )
    values = {**key._asdict(), "execution": execution, "result": token}
    select = _SELECT if dialect == dialects.SQLITE else _SELECT.with_for_update()
    while True:
        connection.execute(insert, values)
        found = connection.execute(select, {"step": key.step}).one_or_none()
        if found is not None:  # Otherwise another transaction has deleted it meanwhile.
            row = Row(found.execution, found.action, found.arguments, found.result)
            return None if row.action is None and row.result == token else row


def take_over(connection: sa.Connection, key: Key, execution: int, token: bytes) -> None:
    """Replace a locked, committed row by one of this open transaction."""
    connection.execute(
        sa.update(_table).where(_table.c.step == key.step),
        {"execution": execution, "action": None, "arguments": None, "result": token},
    )


def finish(
    connection: sa.Connection,
    dialect: str,
    key: Key,
    token: bytes,
    *,
    action: str,
    arguments: str | None,
    result: bytes,
) -> bool:
    """Store a result in the row of the open transaction; return False if the row is another one."""
    now: Any = sa.literal_column(dialects.now(dialect))
    statement = (
        sa.update(_table)
        .where(_table.c.step == key.step, _table.c.action.is_(None), _table.c.result == token)
        .values(action=action, arguments=arguments, result=result, changed=now)
    )
    return connection.execute(statement).rowcount == 1


def renumber(connection: sa.Connection, key: Key, execution: int) -> None:
    """Let a later execution adopt a locked, committed row."""
    connection.execute(sa.update(_table).where(_table.c.step == key.step), {"execution": execution})


def flows(engine: sa.Engine, name: str, older_than: float, after: str) -> list[str]:
    """Return flows whose latest row is older than some seconds, ordered, at most 500.

    :param after: return only uuids after this one.
    :raises StorageFailure: if the database reports an error.
    """
    now: Any = sa.literal_column(dialects.now(dialect_of(engine)))
    statement = (
        sa.select(_table.c.flow)
        .where(_table.c.flow > after)
        .group_by(_table.c.flow)
        .having(sa.func.max(_table.c.changed) <= now - older_than)
        .order_by(_table.c.flow)
        .limit(500)
    )
    what = f"Reading table {TABLE} in database {name!r}"
    with database_errors.convert_errors(what), engine.connect() as connection:
        return list(connection.execute(statement).scalars())


def delete(engine: sa.Engine, name: str, flow_uuids: list[str]) -> int:
    """Delete the rows of flows; return their number.

    :raises StorageFailure: if the database reports an error.
    """
    statement = sa.delete(_table).where(_table.c.flow.in_(flow_uuids))
    what = f"Deleting from table {TABLE} in database {name!r}"
    with database_errors.convert_errors(what), engine.begin() as connection:
        return connection.execute(statement).rowcount


def explain_conflict(row: Row, key: Key) -> exceptions.InvalidState:
    """Return the error about a row whose function committed the transaction by itself."""
    return exceptions.InvalidState(
        f"Task {key.name!r} has an incomplete row in {TABLE} (execution {row.execution}): its"
        " function ended the transaction by itself, so its effect is unknown; check it, and delete"
        f" the row with step {key.step!r}"
    )
