"""Connections of callers, in whose transactions statements are executed.

Nothing here begins, commits or rolls back a transaction of the caller.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import pool
from sqlalchemy.util import concurrency

from wbengine._sql import dialects

__all__ = [
    "ASYNC_KINDS", "KINDS", "after_commit", "borrowed", "dialect_of", "limited_waits", "run",
]  # fmt: skip

_T = TypeVar("_T")

#: Text about the possible arguments.
KINDS: Final = (
    "a Connection or Session of SQLAlchemy, or a connection of psycopg, sqlite3 or Django"
)

ASYNC_KINDS: Final = "an AsyncConnection or AsyncSession of SQLAlchemy, or a connection of asyncpg"

#: Key in the `info` of a Session.
_HOOKS: Final = "wbengine.after_commit"
#: Drivers by the package of their connections.
_ASYNCPG: Final = "asyncpg"
_ASYNCPG_DIALECT: Final = "postgresql+asyncpg"
_ASYNC_EXTENSION: Final = "sqlalchemy.ext.asyncio"
_DJANGO: Final = "django"
_DRIVERS: Final[Mapping[str, str]] = {
    "psycopg": "postgresql+psycopg",
    "sqlite3": "sqlite+pysqlite",
}
#: Statements that read and set the maximum wait, and the number of its units in a second.
_LOCK_TIMEOUTS: Final[Mapping[str, tuple[str, str, int]]] = {
    dialects.POSTGRESQL: (
        "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'",
        "SELECT set_config('lock_timeout', '{}', true)",
        1000,
    ),
    dialects.MYSQL: (
        "SELECT @@innodb_lock_wait_timeout",
        "SET SESSION innodb_lock_wait_timeout = {}",
        1,
    ),
}
_MARIADB: Final = "mariadb"
_FAILED_SQLSTATE: Final = "25P02"
#: Transaction status of libpq.
_IDLE: Final = 0
_FAILED: Final = 3
#: Maximum time that a statement waits for another transaction.
LOCK_TIMEOUT_SECONDS: Final = 10


@contextlib.contextmanager
def borrowed(source: Any) -> Iterator[sa.Connection]:
    """Yield a connection that executes statements in the present transaction of the caller.

    Errors of statements leave the `with` block unchanged.

    :param source: see `KINDS`. If no transaction has begun, the first statement begins one, as
        other statements of the caller would.
    :raises TypeError: if `source` has another type.
    :raises ValueError: if each statement of the connection is a transaction of its own, or if its
        transaction has failed.
    """
    with contextlib.ExitStack() as stack:
        connection = _connection_of(source)
        if connection is None:
            if _package_of(source, [_DJANGO]):
                source = _driver_of_django(source)
            connection = stack.enter_context(_wrapped(source))
        try:
            driver = connection.connection.driver_connection
            if _status(driver) == _FAILED:
                raise _failed()
            # The drivers begin a transaction with its first statement.
            connection.scalar(sa.text("SELECT 1"))
        except (sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
            raise _failed() from error
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _FAILED_SQLSTATE:
                raise _failed() from error
            raise
        if not _is_in_transaction(connection, driver):
            raise _autocommit()
        yield connection


async def run(source: Any, work: Callable[[Any], _T]) -> _T:
    """Call `work` with an argument for `borrowed`, for an asynchronous connection.

    The statements of `work` do not block the event loop.

    :param source: see `ASYNC_KINDS`.
    :raises TypeError: if `source` has another type.
    """
    extension = sys.modules.get(_ASYNC_EXTENSION)
    if extension is not None:
        if isinstance(source, extension.async_scoped_session):
            source = source()
        if isinstance(source, extension.AsyncConnection | extension.AsyncSession):
            result: _T = await source.run_sync(work)
            return result
    if _package_of(source, [_ASYNCPG]) and hasattr(source, "is_in_transaction"):
        return await concurrency.greenlet_spawn(lambda: work(_adapted(source)))
    raise TypeError(f"connection must be {ASYNC_KINDS}, got {type(source).__qualname__}")


@contextlib.contextmanager
def limited_waits(connection: sa.Connection) -> Iterator[None]:
    """Limit the time for which statements of the `with` block wait for other transactions.

    If the block raises an error, its changes are rolled back, and the transaction can continue. In
    SQLite, only the beginning of a transaction waits, for which the caller has a timeout.
    """
    dialect = dialect_of(connection)
    if dialect not in _LOCK_TIMEOUTS:
        yield
        return
    read, write, unit = _LOCK_TIMEOUTS[dialect]
    with _savepoint(connection):
        present = int(connection.scalar(sa.text(read)) or 0)
        limit = LOCK_TIMEOUT_SECONDS * unit
        connection.execute(sa.text(write.format(min(present or limit, limit))))
        restore = sa.text(write.format(present))
        try:
            yield
        finally:
            if dialect == dialects.MYSQL:  # A rollback does not restore it.
                connection.execute(restore)
        if dialect == dialects.POSTGRESQL:
            connection.execute(restore)


@contextlib.contextmanager
def _savepoint(connection: sa.Connection) -> Iterator[None]:
    """Undo the changes of a block that raises an error."""
    savepoint = connection.begin_nested()
    try:
        yield
    except BaseException:
        # A deadlock in MySQL has ended the whole transaction, so that the savepoint is missing.
        with contextlib.suppress(sa.exc.DBAPIError):
            savepoint.rollback()
        raise
    savepoint.commit()


def after_commit(source: Any, function: Callable[[], object]) -> None:
    """Call a function after the commit of the present transaction, and not after its rollback.

    A savepoint that is rolled back removes the functions that were added in it. Nothing is called
    if `source` is neither a Session of SQLAlchemy nor a connection of Django in an atomic block, or
    if the Session has joined a transaction that it does not end: these have no hook after the
    commit.
    """
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(source, orm.scoped_session):
        source = source()
    if orm is not None and isinstance(source, orm.Session):
        hooks: _SessionHooks = source.info.get(_HOOKS) or _SessionHooks(source)
        hooks.add(source, function)
    elif _package_of(source, [_DJANGO]) and source.in_atomic_block:
        source.on_commit(function)


class _SessionHooks:
    """Functions to call after the commit of a Session, each with its innermost transaction.

    It belongs to the Session, whose listeners it adds once.
    """

    def __init__(self, session: Any) -> None:
        self._added: list[tuple[Any, sa.Connection, Callable[[], object]]] = []
        session.info[_HOOKS] = self
        for name in ("after_commit", "after_soft_rollback", "after_transaction_end"):
            sa.event.listen(session, name, getattr(self, f"_{name}"))

    def add(self, session: Any, function: Callable[[], object]) -> None:
        transaction = session.get_nested_transaction() or session.get_transaction()
        self._added.append((transaction, session.connection(), function))

    def _after_commit(self, session: Any) -> None:
        if not session.in_nested_transaction():  # otherwise a savepoint has ended
            added, self._added = self._added, []
            for _, connection, function in added:
                # Otherwise the Session has only left the transaction of its creator, which may
                # still be rolled back (`join_transaction_mode`).
                if not connection.in_transaction():
                    function()

    def _after_soft_rollback(self, session: Any, ended: Any) -> None:
        self._added = [each for each in self._added if not _is_within(each[0], ended)]

    def _after_transaction_end(self, session: Any, ended: Any) -> None:
        if ended.parent is None:  # A Session that is closed reports no rollback.
            self._added = []


def _is_within(transaction: Any, outer: Any) -> bool:
    """Return whether a transaction of a Session is another one, or a savepoint in it."""
    while transaction is not None and transaction is not outer:
        transaction = transaction.parent
    return transaction is outer


def dialect_of(connection: sa.Connection) -> str:
    """Return the kind of database: one of `dialects`, or another name of SQLAlchemy."""
    name = connection.dialect.name
    return dialects.MYSQL if name == _MARIADB else name


def _connection_of(source: Any) -> sa.Connection | None:
    """Return the connection of an object of SQLAlchemy, or None."""
    if isinstance(source, sa.Connection):
        return source
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is None or not isinstance(source, orm.Session | orm.scoped_session):
        return None
    try:
        connection: sa.Connection = source.connection()
    except (sa.exc.PendingRollbackError, sa.exc.InvalidRequestError) as error:
        if isinstance(error, sa.exc.UnboundExecutionError):
            raise ValueError(
                "connection= requires a Session with one database: pass"
                " session.connection(bind_arguments=...) instead"
            ) from error
        raise _failed() from error
    return connection


def _package_of(value: object, packages: Collection[str]) -> str | None:
    """Return the one of these packages that defines the class of a value or a base of it."""
    modules = (kind.__module__ for kind in type(value).__mro__)
    return next((name for each in modules if (name := each.partition(".")[0]) in packages), None)


def _driver_of_django(source: Any) -> Any:
    """Return the connection of the driver of `django.db.connection`."""
    source.validate_thread_sharing()
    source.ensure_connection()
    if source.needs_rollback:
        raise _failed()
    if not source.in_atomic_block and source.get_autocommit():
        raise _autocommit()
    return source.connection


def _wrapped(driver: Any) -> sa.Connection:
    """Return a connection of SQLAlchemy around one of a driver, which stays as it is."""
    if isinstance(driver, _BorrowedDriver):
        return _around(driver, _ASYNCPG_DIALECT)
    package = _package_of(driver, _DRIVERS)
    if package is None or inspect.iscoroutinefunction(getattr(driver, "commit", None)):
        is_async = type(driver).__module__.startswith(_ASYNC_EXTENSION)
        hint = ": pass the argument of a function in its `run_sync`" if is_async else ""
        raise TypeError(f"connection must be {KINDS}, got {type(driver).__qualname__}{hint}")
    borrowed_driver = _BorrowedDriver(driver, functools.partial(_plain_cursor, driver))
    return _around(borrowed_driver, _DRIVERS[package])


def _around(driver: _BorrowedDriver, name: str) -> sa.Connection:
    """Return a connection of SQLAlchemy with a dialect, without the events of its engines."""
    dialect = _dialect(name)
    one_connection = pool.StaticPool(lambda: driver, reset_on_return=None, dialect=dialect)
    return sa.Engine(one_connection, dialect, sa.make_url(f"{name}://")).connect()


@functools.cache
def _dialect(name: str) -> sa.Dialect:
    dialect_class: Any = sa.make_url(f"{name}://").get_dialect()
    dialect: sa.Dialect = dialect_class(dbapi=dialect_class.import_dbapi())
    return dialect


class _BorrowedDriver:
    """A connection of a driver that its user can neither commit, roll back nor close."""

    def __init__(self, driver: Any, cursor: Callable[[], Any]) -> None:
        self._driver = driver
        self.cursor = cursor

    def commit(self) -> None:
        """Do nothing: the caller commits."""

    def rollback(self) -> None:
        """Do nothing: the caller rolls back."""

    def close(self) -> None:
        """Do nothing: the caller closes the connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def _adapted(driver: Any) -> _BorrowedDriver:
    """Return a connection of asyncpg as SQLAlchemy expects it; it begins no transactions.

    Call this within a greenlet of SQLAlchemy.
    """

    async def connect() -> Any:
        return driver

    dialect = _dialect(_ASYNCPG_DIALECT)
    adapted: Any = dialect.connect(async_creator_fn=connect)
    dialect.set_isolation_level(adapted, "AUTOCOMMIT")
    return _BorrowedDriver(adapted, adapted.cursor)


def _plain_cursor(driver: Any) -> Any:
    """Return a cursor whose rows are tuples, whatever the caller has configured."""
    if isinstance(driver, sqlite3.Connection):
        cursor = sqlite3.Cursor(driver)
        cursor.row_factory = None
        return cursor
    psycopg: Any = sys.modules["psycopg"]
    return psycopg.Cursor(driver, row_factory=psycopg.rows.tuple_row)


def _status(driver: Any) -> int | None:
    """Return the transaction status of libpq, or None for other drivers."""
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else int(status)


def _is_in_transaction(connection: sa.Connection, driver: Any) -> bool:
    """Return True if a transaction has begun, or the next write begins one."""
    if (status := _status(driver)) is not None:
        return status != _IDLE
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:
        return bool(is_in_transaction())
    dialect = dialect_of(connection)
    if dialect == dialects.SQLITE:
        # The driver begins a transaction before a write if it has an isolation level.
        is_autocommit = getattr(driver, "autocommit", None) is True
        begins = driver.isolation_level is not None and not is_autocommit
        return bool(driver.in_transaction) or begins
    if dialect == dialects.MYSQL:
        return not connection.scalar(sa.text("SELECT @@autocommit"))
    return True


def _autocommit() -> ValueError:
    return ValueError(
        "connection must be in a transaction, but each of its statements is committed at once"
        " (autocommit): begin a transaction first"
    )


def _failed() -> ValueError:
    return ValueError(
        "connection must be usable, but its transaction has failed or is closed: roll it back"
    )
