"""Sessions of PostgreSQL: their settings and encoding, directly and behind a pooler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from wbengine._sql import dialects

__all__ = ["connect", "is_pooled", "listen"]

#: Mark of connections to a pooler.
_POOLED: Final = "wbe_pooled"


def listen(
    engine: sa.Engine,
    is_autocommit: Callable[[sa.Connection], bool],
    is_threshold_set: bool,
) -> None:
    """Configure all connections and transactions of the engine.

    :param is_autocommit: returns whether each statement of a connection is a transaction.
    :param is_threshold_set: whether the user specified when psycopg prepares statements.
    """

    def on_connect(connection: Any, record: Any) -> None:
        # A pooler and its server have different process ids.
        pid = connection.info.backend_pid if engine.driver == "psycopg" else "pg_backend_pid()"
        try:
            is_direct = _configure(connection, pid)
        except BaseException:  # also an interrupt
            connection.close()  # SQLAlchemy leaves it open.
            raise
        if not is_direct:
            record.info[_POOLED] = True
            if not is_threshold_set:
                connection.prepare_threshold = None

    def on_begin(connection: sa.Connection) -> None:
        if is_pooled(connection) and not is_autocommit(connection):
            connection.exec_driver_sql(f"SELECT {_set_timeouts(is_local=True)}")

    # First, because SQLAlchemy's own listener expects an encoding for texts.
    sa.event.listen(engine, "connect", on_connect, insert=True)
    sa.event.listen(engine, "begin", on_begin)


def connect(engine: sa.Engine) -> tuple[sa.Connection, Any, bool]:
    """Connect outside the pool, with a transaction for each statement.

    :returns: the connection, which must be closed by the caller, the connection of psycopg behind
        it, and whether a pooler is in between.
    """
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    pooled = is_pooled(connection)
    connection.detach()
    return connection, connection.connection.dbapi_connection, pooled


def is_pooled(connection: sa.Connection) -> bool:
    """Return True if a pooler, such as PgBouncer, may use another session for each transaction.

    Other clients use the same sessions, and are affected by their settings.
    """
    return _POOLED in connection.info


def _configure(connection: Any, pid: int | str) -> bool:
    """Check the encoding, and set timeouts if the connection is direct.

    :param pid: the process id that the other side has sent, or SQL for it.
    :returns: whether the connection is direct: no pooler is in between.
    :raises sqlalchemy.exc.NotSupportedError: if the encoding is wrong.
    """
    cursor = connection.cursor()
    cursor.execute(
        f"SELECT current_setting('server_encoding'), pg_backend_pid() = {pid},"
        f" CASE WHEN pg_backend_pid() = {pid} THEN ROW({_set_timeouts(is_local=False)}) END"
    )
    encoding, is_direct, _ = cursor.fetchone()
    cursor.close()
    connection.commit()
    if encoding != "UTF8":
        description = (
            f"The encoding of the database must be UTF8, got {encoding}: create another one with"
            " CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
        raise sa.exc.NotSupportedError("connect", None, ValueError(description))
    return bool(is_direct)


def _set_timeouts(is_local: bool) -> str:
    """Return SQL expressions that set timeouts, if `is_local` only until the transaction ends."""
    timeouts = {
        "idle_in_transaction_session_timeout": dialects.IDLE_SECONDS,
        "lock_timeout": dialects.LOCK_TIMEOUT_SECONDS,
    }
    return ", ".join(
        f"set_config('{name}', '{seconds}s', {is_local})" for name, seconds in timeouts.items()
    )
