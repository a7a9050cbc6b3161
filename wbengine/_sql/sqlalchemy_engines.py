"""SQLAlchemy engines, configured for their kind of database."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import sqlite3
import weakref
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import pool

from wbengine import logging
from wbengine._configuration import named_options, process_names
from wbengine._imports import installing
from wbengine._sql import connection_options, dialects, open_sqlite_files, writers
from wbengine._sqlite import sqlite_files
from wbengine._sqlite.fork_gate import ForkGate

__all__ = [
    "create", "dispose", "is_autocommit", "make_engine", "read_level", "retries_of",
    "statement_engine", "using", "writer_of",
]  # fmt: skip

_LOG: Final = logging.getLogger(__name__)

_LEVEL: Final = "wbe_level"
_READ_LEVEL: Final = "wbe_read_level"
_RETRIES: Final = "wbe_max_retries"

#: Time that SQLite waits for another transaction.
_BUSY_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 10

#: Options of `sqlite3.connect`, and of URIs that SQLite reads.
_SQLITE_OPTIONS: Final = frozenset({
    "autocommit", "cached_statements", "check_same_thread", "detect_types", "factory",
    "isolation_level", "timeout", "uri",
    "cache", "immutable", "mode", "modeof", "nolock", "psow", "vfs",
})  # fmt: skip
_MYSQL_OPTIONS: Final = frozenset({"ssl_capath", "ssl_check_hostname", "ssl_cipher"})
#: Arguments of `psycopg.connect` that are not options of its connection strings.
_PSYCOPG_OPTIONS: Final = frozenset({"context", "cursor_factory", "prepare_threshold"})
_EXTRAS: Final[Mapping[str, installing.Extra]] = {
    dialects.MYSQL: "mysql",
    dialects.POSTGRESQL: "postgresql",
}

#: The timeouts detect a lost host.
_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "psycopg": {
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    },
    "pymysql": {"connect_timeout": _CONNECT_SECONDS},
    "mysqldb": {"connect_timeout": _CONNECT_SECONDS},
    "pysqlite": {"check_same_thread": False, "timeout": _BUSY_SECONDS},
}

#: All texts are stored as UTF-8, whatever the URL, the environment or the account specify.
_ENCODINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "psycopg": {"client_encoding": "utf8"},
    "pymysql": {"charset": "utf8mb4"},
    "mysqldb": {"charset": "utf8mb4"},
}

#: Levels at which all reads of a transaction see the same snapshot.
_SNAPSHOT_LEVELS: Final = ("REPEATABLE READ", "SERIALIZABLE")
#: Levels of writing transactions. MySQL's own default can be configured to any level.
_LEVELS: Final = {dialects.MYSQL: _SNAPSHOT_LEVELS[0]}

_LENIENT: Final = functools.partial(str, encoding="utf-8", errors="surrogateescape")

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_inherited: list[Any] = []
_NO_FILE: Final = contextlib.nullcontext()


def _check_driver_options(settings: connection_options.DatabaseOptions) -> None:
    """Check names of options for the driver, from the URL and `connect_args`.

    SQLite would ignore unknown options. Other drivers raise an error without a hint when they
    connect.

    :raises ValueError: if an option is unknown. The message contains the first one.
    """
    known = _driver_options(settings.url.get_driver_name())
    arguments = settings.engine_args.get("connect_args", {})
    names = {*settings.url.query, *(set(arguments) - _PSYCOPG_OPTIONS)}
    if known:
        named_options.check_known("A database", names - known, connection_options.OPTIONS, known)


def _driver_options(driver: str) -> frozenset[str]:
    try:
        if driver == "pysqlite":
            return _SQLITE_OPTIONS
        if driver == "pymysql":
            connection_class = importlib.import_module("pymysql.connections").Connection
            return _MYSQL_OPTIONS.union(inspect.signature(connection_class).parameters)
        if driver == "psycopg":
            import psycopg

            return frozenset(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())
    except ImportError:
        pass  # `create_engine` reports the missing driver.
    return frozenset()


def make_engine(settings: connection_options.DatabaseOptions) -> sa.Engine:
    """Create the engine for a database, without connecting.

    The engine is thread-safe, and works in a child process after a fork (where a database in memory
    is a copy). `dispose` closes it.

    :raises ValueError: if an option of the driver is invalid.
    :raises ImportError: if the driver is not installed. The message contains how to install it.
    """
    driver = settings.url.get_driver_name()
    _check_driver_options(settings)
    arguments: dict[str, Any] = {
        "hide_parameters": True,
        "pool_pre_ping": settings.checkout_ping and settings.dialect != dialects.SQLITE,
        **_pool(settings),
    }
    extra_arguments = dict(settings.engine_args)
    connecting = {
        key: value
        for key, value in _ARGUMENTS.get(driver, {}).items()
        if key not in settings.url.query
    }
    if driver == "psycopg":  # The option `application_name` and $PGAPPNAME have precedence.
        connecting["fallback_application_name"] = process_names.shown()
    if driver == "psycopg" and settings.prepare_threshold != connection_options.AUTO:
        connecting["prepare_threshold"] = settings.prepare_threshold
    arguments["connect_args"] = {
        **connecting, **_ENCODINGS.get(driver, {}), **extra_arguments.pop("connect_args", {}),
    }  # fmt: skip
    level = settings.isolation_level or _LEVELS.get(settings.dialect)
    if level and settings.dialect != dialects.SQLITE:  # SQLite has only one useful level.
        arguments["isolation_level"] = level
    arguments |= extra_arguments
    engine = create(settings, arguments)
    read_level_option = (
        None
        if settings.dialect == dialects.SQLITE or level in _SNAPSHOT_LEVELS
        else _SNAPSHOT_LEVELS[0]
    )
    writer = None
    if settings.dialect == dialects.SQLITE and not settings.in_memory:
        writer = writers.Writer(str(settings.url.database), open_sqlite_files.OpenFile(_fork_gate))
    engine.update_execution_options(
        **{
            _LEVEL: arguments.get("isolation_level"),
            _READ_LEVEL: read_level_option,
            _RETRIES: settings.max_retries,
            writers.WRITER: writer,
        }
    )
    _listen(engine, settings, "prepare_threshold" in arguments["connect_args"])
    if not settings.in_memory:
        _engines.add(engine)
    return engine


def create(settings: connection_options.DatabaseOptions, arguments: Mapping[str, Any]) -> sa.Engine:
    """Create an engine with these arguments of `create_engine`, without any listener.

    :raises ValueError: if an argument is invalid, or the driver is one for asyncio.
    :raises ImportError: if the driver is not installed. The message contains how to install it.
    """
    driver = settings.url.get_driver_name()
    try:
        engine = sa.create_engine(settings.url, **arguments)
    except ImportError as error:
        is_default_driver = connection_options.DRIVERS[settings.dialect] == driver
        advice = f": {installing.advice(_EXTRAS[settings.dialect])}" if is_default_driver else ""
        raise ImportError(
            f"{settings.url.drivername!r} needs a driver that is not installed"
            f" ({error.name or error}){advice}"
            # Hides frames of SQLAlchemy, which would be reported as frames of a user's factory.
        ) from None
    except (sa.exc.NoSuchModuleError, sa.exc.ArgumentError, TypeError) as error:
        raise ValueError(f"The database cannot be opened: {error}") from None
    if engine.dialect.is_async:
        raise ValueError(
            f"{settings.url.drivername!r} is a driver for asyncio: use a synchronous driver"
        )
    return engine


def dispose(engine: sa.Engine) -> None:
    """Close all connections: idle ones now, others when threads return them.

    Threads can continue to use the engine, for example to release a lease. It then connects for
    each use, unless the database is in memory.
    """
    pool, is_in_memory = engine.pool, engine not in _engines
    if not is_in_memory:
        sa.event.listen(pool, "checkin", _close_returned)  # The next pool inherits the listener.
    if writer_of(engine) is None:
        engine.dispose()
    else:
        with _fork_gate:
            _close_file(engine)
    if is_in_memory:
        sa.event.listen(pool, "checkin", _close_returned)  # The next pool keeps its connection.


def _close_file(engine: sa.Engine) -> None:
    """Close the writer and the idle connections of a SQLite file."""
    writer = writer_of(engine)
    assert writer is not None
    writer.close()
    engine.dispose()
    writer.file.on_close()


def using(engine: sa.Engine) -> contextlib.AbstractContextManager[None]:
    """Return a context manager for the use of connections. For SQLite, see `OpenFile`."""
    writer = writer_of(engine)
    return _NO_FILE if writer is None else writer.file


def _close_returned(_connection: Any, record: Any) -> None:
    record.invalidate()


def retries_of(engine: sa.Engine) -> int:
    return int(engine.get_execution_options().get(_RETRIES, 0))


def writer_of(engine: sa.Engine) -> writers.Writer | None:
    """Return the writer of a SQLite file, or None for other databases."""
    writer: writers.Writer | None = engine.get_execution_options().get(writers.WRITER)
    return writer


def statement_engine(settings: connection_options.DatabaseOptions) -> sa.Engine | None:
    """Create an engine for `transact_statement`, whose statements are transactions.

    It does not check connections before use.

    :returns: None if the database does not support such statements.
    """
    if settings.dialect != dialects.POSTGRESQL:
        return None
    engine_args = {
        key: value for key, value in settings.engine_args.items() if key != "isolation_level"
    }
    return make_engine(
        dataclasses.replace(
            settings, isolation_level="AUTOCOMMIT", checkout_ping=False, engine_args=engine_args
        )
    )


def read_level(engine: sa.Engine) -> str | None:
    """Return the isolation level to set before reading, or None."""
    level: str | None = engine.get_execution_options().get(_READ_LEVEL)
    return level


def is_autocommit(source: sa.Engine | sa.Connection) -> bool:
    """Return True if each statement is a transaction of its own."""
    options = source.get_execution_options()
    return bool(options.get("isolation_level", options.get(_LEVEL)) == "AUTOCOMMIT")


def _pool(settings: connection_options.DatabaseOptions) -> dict[str, Any]:
    # A database in memory ends with its connection: there is exactly one, which is never replaced.
    if settings.in_memory:
        return {
            "poolclass": pool.QueuePool,
            "pool_size": 1,
            "max_overflow": 0,
            "pool_timeout": settings.pool_timeout,
        }
    if not settings.max_pool_size:
        return {"poolclass": pool.NullPool}
    return {
        "poolclass": pool.QueuePool,
        "pool_size": settings.max_pool_size,
        "max_overflow": settings.max_overflow,
        "pool_timeout": settings.pool_timeout,
        "pool_recycle": -1 if settings.idle_timeout is None else settings.idle_timeout,
        **({} if settings.dialect == dialects.SQLITE else {"pool_reset_on_return": None}),
    }


def _listen(
    engine: sa.Engine, settings: connection_options.DatabaseOptions, is_threshold_set: bool
) -> None:
    if settings.dialect == dialects.SQLITE:
        if not settings.in_memory:
            sa.event.listen(engine, "do_connect", _make_private)
            sa.event.listen(engine, "first_connect", _reject_network_file)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        if (writer := writer_of(engine)) is not None:
            file = writer.file
            sa.event.listen(engine, "connect", lambda driver, record: file.on_connect(driver))
    elif settings.dialect == dialects.POSTGRESQL:
        from wbengine._sql import postgresql_sessions

        postgresql_sessions.listen(engine, is_autocommit, is_threshold_set)
    else:
        from wbengine._sql import mysql_sessions

        mysql_sessions.listen(engine, settings.mysql_sql_mode)
    if settings.dialect != dialects.SQLITE and "pool_reset_on_return" not in settings.engine_args:
        sa.event.listen(engine, "reset", _reset)
    if settings.log_statements:
        sa.event.listen(engine, "before_cursor_execute", _log)


def _reset(connection: Any, record: Any, state: pool.PoolResetState) -> None:
    """Roll back when a connection returns to the pool, which would log the error of a lost one."""
    if not state.transaction_was_reset:
        try:
            connection.rollback()
        except Exception:
            if record is not None:  # It is None if the connection does not belong to the pool.
                record.invalidate()


def _make_private(dialect: Any, record: Any, arguments: Any, options: Any) -> None:
    """Create the file with access for its owner only. SQLite uses its mode for the files beside it.

    An existing file is unchanged. If it cannot be created, SQLite reports the error.
    """
    path = str(arguments[0]) if arguments else ""
    if not path.startswith("file:") and os.path.isdir(os.path.dirname(path) or "."):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _reject_network_file(connection: Any, record: Any) -> None:
    ((_, _, path),) = connection.execute("PRAGMA database_list").fetchall()
    kind = sqlite_files.network_kind(path)
    if kind is not None:
        raise sa.exc.OperationalError(
            "connect",
            None,
            sqlite3.OperationalError(
                f"{path} is on a network file system ({kind}), where sqlite is not safe:"
                " use a local folder, or a database server"
            ),
        )


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # Otherwise the driver begins transactions itself, and always as readers.
    connection.isolation_level = None
    # The code that reads a row detects damaged text; it must not fail the whole statement.
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


def _close_files() -> None:
    for engine in list(_engines):
        if writer_of(engine) is not None:
            _close_file(engine)


_fork_gate: Final = ForkGate(_close_files)


def _forget_connections() -> None:
    """Forget the parent's connections in a child process, without using or closing them.

    Of SQLite files, there are none unless the process was forked without `os.fork`.
    """
    for engine in list(_engines):
        if (writer := writer_of(engine)) is not None:
            _inherited.append(writer.forget())
        _inherited.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)
