"""SQLAlchemy engines, made ready for their kind of database."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sqlite3
import weakref
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import pool

from wbengine import _sqlite_files, logging
from wbengine._sql import dialects, options, writers

__all__ = ["dispose", "make_engine", "read_level", "retries_of", "turn_engine", "writer_of"]

_LOG: Final = logging.getLogger(__name__)

_READ_LEVEL: Final = "wbe_read_level"
_RETRIES: Final = "wbe_max_retries"

#: So long sqlite waits for others' transactions.
_BUSY_SECONDS: Final = 30.0
#: So long a server waits for who is in a transaction and says nothing, before it undoes it (a
#: process that is frozen must not keep others from taking over); and so long others wait for it.
_IDLE_SECONDS: Final = 30
_LOCK_SECONDS: Final = 45
#: So long a server may take to answer when a connection is made.
_CONNECT_SECONDS: Final = 10

#: What to install for a driver.
_EXTRAS: Final[Mapping[str, str]] = {dialects.MYSQL: "mysql", dialects.POSTGRESQL: "postgresql"}

#: Arguments of drivers.  A host that vanished is noticed, rather than waited for.
_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "psycopg": {
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    },
    "pymysql": {"connect_timeout": _CONNECT_SECONDS, "charset": "utf8mb4"},
    "mysqldb": {"connect_timeout": _CONNECT_SECONDS, "charset": "utf8mb4"},
    "pysqlite": {"check_same_thread": False, "timeout": _BUSY_SECONDS},
}

#: Levels at which who reads sees one moment of the database.
_MOMENT: Final = ("REPEATABLE READ", "SERIALIZABLE")
#: Those of transactions that write; MySQL's own default may be set to anything.
_LEVELS: Final = {dialects.MYSQL: _MOMENT[0]}

_LENIENT: Final = functools.partial(str, encoding="utf-8", errors="surrogateescape")

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_inherited: list[Any] = []


def make_engine(url: str | options.Options, wanted: Mapping[str, Any] | None = None) -> sa.Engine:
    """Make the engine for a database; nothing is connected yet.

    It may be used by any thread, and goes on to work in a child process after a fork (a database
    in memory is a copy there).  `dispose` closes it.  Transactions are best run by `transact`.

    :raises ValueError: the URL or an option is wrong.
    :raises ImportError: the driver is not installed; the text says how to.
    """
    told = url if isinstance(url, options.Options) else options.parse(url, wanted)
    driver = told.url.get_driver_name()
    arguments: dict[str, Any] = {
        "hide_parameters": True,
        "pool_pre_ping": told.checkout_ping and told.dialect != dialects.SQLITE,
        **_pool(told),
    }
    given = dict(told.engine_args)
    connecting = {
        key: value for key, value in _ARGUMENTS.get(driver, {}).items() if key not in told.url.query
    }
    arguments["connect_args"] = {**connecting, **given.pop("connect_args", {})}
    level = told.isolation_level or _LEVELS.get(told.dialect)
    if level and told.dialect != dialects.SQLITE:  # that has only one that makes sense
        arguments["isolation_level"] = level
    try:
        engine = sa.create_engine(told.url, **{**arguments, **given})
    except ImportError as error:
        usual = options.DRIVERS[told.dialect] == driver
        advice = f': pip install "wbengine[{_EXTRAS[told.dialect]}]"' if usual else ""
        raise ImportError(
            f"{told.url.drivername!r} needs a driver that is not installed"
            f" ({error.name or error}){advice}"
        ) from error
    except (sa.exc.NoSuchModuleError, sa.exc.ArgumentError, TypeError) as error:
        raise ValueError(f"No database can be used like this: {error}") from None
    if engine.dialect.is_async:
        raise ValueError(
            f"{told.url.drivername!r} is a driver for asyncio, which is of no use here"
        )
    reading = None if told.dialect == dialects.SQLITE or level in _MOMENT else _MOMENT[0]
    writer = None
    if told.dialect == dialects.SQLITE and not told.in_memory:
        writer = writers.Writer(str(told.url.database))
    engine.update_execution_options(
        **{_RETRIES: told.max_retries, _READ_LEVEL: reading, writers.WRITER: writer}
    )
    _listen(engine, told)
    if not told.in_memory:
        _engines.add(engine)
    return engine


def dispose(engine: sa.Engine) -> None:
    """Close all its connections: idle ones now, those that threads use when they are returned.

    Of SQLAlchemy's own `dispose` the latter would stay open until they are collected.
    """
    pool, writer = engine.pool, writer_of(engine)
    if writer is not None:
        writer.close()
    engine.dispose()
    sa.event.listen(pool, "checkin", _close_returned)


def _close_returned(_connection: Any, record: Any) -> None:
    record.invalidate()


def retries_of(engine: sa.Engine) -> int:
    """How often a connection that cannot be made is to be tried again."""
    return int(engine.get_execution_options().get(_RETRIES, 0))


def writer_of(engine: sa.Engine) -> writers.Writer | None:
    """What writes the file of an sqlite database; None: it is in memory, or another database."""
    writer: writers.Writer | None = engine.get_execution_options().get(writers.WRITER)
    return writer


def turn_engine(told: options.Options) -> sa.Engine | None:
    """An engine for `at_once`: each statement is a transaction, and connections are not asked
    beforehand whether they live.  None: no statement of this database can be a whole turn.
    """
    if told.dialect != dialects.POSTGRESQL:
        return None
    given = {key: value for key, value in told.engine_args.items() if key != "isolation_level"}
    return make_engine(
        dataclasses.replace(
            told, isolation_level="AUTOCOMMIT", checkout_ping=False, engine_args=given
        )
    )


def read_level(engine: sa.Engine) -> str | None:
    """The isolation level to ask for before reading, None: it is what connections have."""
    level: str | None = engine.get_execution_options().get(_READ_LEVEL)
    return level


def _pool(told: options.Options) -> dict[str, Any]:
    if told.in_memory:  # it ends with its connection: there is one, and it is never made anew
        return {
            "poolclass": pool.QueuePool,
            "pool_size": 1,
            "max_overflow": 0,
            "pool_timeout": told.pool_timeout,
        }
    return {
        "poolclass": pool.QueuePool,
        "pool_size": told.max_pool_size,
        "max_overflow": told.max_overflow,
        "pool_timeout": told.pool_timeout,
        "pool_recycle": -1 if told.idle_timeout is None else told.idle_timeout,
    }


def _listen(engine: sa.Engine, told: options.Options) -> None:
    if told.dialect == dialects.SQLITE:
        if not told.in_memory:
            sa.event.listen(engine, "do_connect", _make_private)
            sa.event.listen(engine, "first_connect", _refuse_network)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        statement = _prepare(told)

        def prepare(connection: Any, record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(statement)
            cursor.close()
            connection.commit()

        sa.event.listen(engine, "connect", prepare)
    if told.log_statements:
        sa.event.listen(engine, "before_cursor_execute", _log)


def _prepare(told: options.Options) -> str:
    """What to tell a server about a new connection."""
    if told.dialect == dialects.POSTGRESQL:
        return (
            f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s';"
            f" SET lock_timeout = '{_LOCK_SECONDS}s'"
        )
    parts = [f"SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}"]
    if told.mysql_sql_mode is not None:
        parts.append(f"SESSION sql_mode = '{told.mysql_sql_mode}'")
    # A comment to all but MariaDB: MySQL has nothing like it.
    return (
        f"SET {', '.join(parts)} /*M!100300 , SESSION idle_transaction_timeout = {_IDLE_SECONDS} */"
    )


def _make_private(dialect: Any, record: Any, arguments: Any, options: Any) -> None:
    """Make the file for its owner only: what sqlite writes beside it has the mode of the file.

    One that is there is left as it is; what cannot be made sqlite tells of.
    """
    path = str(arguments[0]) if arguments else ""
    if not path.startswith("file:") and os.path.isdir(os.path.dirname(path) or "."):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _refuse_network(connection: Any, record: Any) -> None:
    ((_, _, path),) = connection.execute("PRAGMA database_list").fetchall()
    kind = _sqlite_files.network_kind(path)
    if kind is not None:
        raise sa.exc.OperationalError(
            "connect",
            None,
            sqlite3.OperationalError(
                f"{path} is on a network file system ({kind}), on which sqlite is not safe:"
                " take a folder of this host, or a server"
            ),
        )


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # The driver would begin transactions by itself, and never ones that write from the start.
    connection.isolation_level = None
    # Damaged text is to be found by who reads the row, not to fail the whole statement.
    connection.text_factory = _LENIENT
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writer = connection.get_execution_options().get(writers.WRITER)
    if writer is not None and writer.owns(connection):
        writer.begin(connection)
    else:
        connection.exec_driver_sql("BEGIN")


def _log(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
    _LOG.debug("%s", statement)


def _forget_connections() -> None:
    """In a child process: the connections are the parent's; neither use nor close them."""
    for engine in list(_engines):
        if (writer := writer_of(engine)) is not None:
            _inherited.append(writer.forget())
        _inherited.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)
