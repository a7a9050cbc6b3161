"""Transactions of databases."""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._sql import database_errors, dialects, sqlalchemy_engines

__all__ = ["check_file", "transact_statement", "transact", "transact_batched"]

_T = TypeVar("_T")

LOG: Final = logging.getLogger(__name__)

#: Maximum attempts for a transaction that conflicts with others or loses its connection.
_MAX_ATTEMPTS: Final = 8
_NO_SYNC: Final = sa.text("SET LOCAL synchronous_commit = off")


def transact(
    engine: sa.Engine,
    what: str,
    work: Callable[[sa.Connection], _T],
    *,
    write: bool = True,
    durable: bool = True,
    idempotent: bool = False,
    kind: type[exceptions.StorageFailure] = exceptions.StorageFailure,
) -> _T:
    """Run `work` in a transaction and commit. If `work` raises, the transaction is rolled back.

    A reading transaction sees one snapshot of the database. If the server rolls the transaction
    back because of another one, or the connection is lost, `work` is called again.

    :param what: the activity, with which error messages begin.
    :param durable: if False, SQLite and PostgreSQL do not wait for the disk. If the host of the
        database crashes before the next durable transaction, the changes may be lost.
    :param idempotent: whether `work` has the same result after its changes were committed. If not,
        a connection that is lost during the commit raises an error; the changes may be written.
    :param kind: the exception to raise instead of `StorageFailure`.
    :raises StorageFailure: if the database is unreachable or reports an error.
    :raises CorruptRecord: if the file of a SQLite database is damaged.
    """
    place = engine.url.database if engine.dialect.name == dialects.SQLITE else None
    idempotent = idempotent or not write
    is_autocommit = sqlalchemy_engines.is_autocommit(engine)

    def can_repeat(error: BaseException) -> bool:
        if not isinstance(error, sa.exc.DBAPIError):
            return False
        # Only errors of a commit have no statement.
        may_be_committed = is_autocommit or error.statement is None
        is_safe = idempotent or not may_be_committed
        return database_errors.is_conflict(error) or (error.connection_invalidated and is_safe)

    with database_errors.convert_errors(what, kind, place=place), sqlalchemy_engines.using(engine):
        try:
            return _once(engine, work, write, durable)
        except sa.exc.DBAPIError as error:
            if not can_repeat(error):
                raise
        import tenacity  # Imported here, because it is slow and rarely needed.

        retrying: tenacity.Retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(can_repeat),
            stop=tenacity.stop_after_attempt(_MAX_ATTEMPTS - 1),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.2),
            reraise=True,
        )
        result: _T = retrying(_once, engine, work, write, durable)
        return result


def transact_batched(
    engine: sa.Engine,
    what: str,
    work: Callable[[sqlite3.Connection], _T],
    *,
    is_statement: bool = False,
) -> _T:
    """Run `work` on the driver's connection, in a transaction shared with other threads.

    This is for frequent transactions on a database with a writer (`writer_of`). `work` may run in
    other threads, and more than once.

    :param is_statement: whether `work` executes a single statement.
    :raises StorageFailure: as `transact` does.
    """
    writer = sqlalchemy_engines.writer_of(engine)
    assert writer is not None
    with database_errors.convert_errors(what, place=engine.url.database), writer.file:
        return writer.transact_batched(functools.partial(_connect, engine), work, is_statement)


def check_file(engine: sa.Engine) -> None:
    """Check that a SQLite file was neither deleted nor replaced since this process opened it.

    :raises StorageFailure: if it was.
    """
    writer = sqlalchemy_engines.writer_of(engine)
    if writer is not None:
        with database_errors.convert_errors("Checking the database"):
            writer.file.check()


def transact_statement(
    engine: sa.Engine, what: str, statement: sa.TextClause, values: Mapping[str, Any]
) -> Sequence[sa.Row[Any]] | None:
    """Execute a statement that is a whole transaction, in one round trip. Return its rows.

    This is for frequent transactions, with an engine from `statement_engine`.

    :returns: None if the statement failed, or if the connection was lost, so that it may have been
        executed. The caller then does the same with `transact`, which reports errors.
    :raises StorageFailure: if the database is unreachable.
    """
    with database_errors.convert_errors(what), _connect(engine) as connection:
        try:
            return connection.execute(statement, values).all()
        except sa.exc.DBAPIError as error:
            LOG.debug("%s in one statement failed: %s", what, error.orig)
            return None


def _once(engine: sa.Engine, work: Callable[[sa.Connection], _T], write: bool, durable: bool) -> _T:
    writer = sqlalchemy_engines.writer_of(engine) if write else None
    if writer is not None:
        return writer.transact(functools.partial(_connect, engine), work, durable)
    with _connect(engine) as connection:
        if not write and (level := sqlalchemy_engines.read_level(engine)):
            connection.execution_options(isolation_level=level)
        transaction = connection.begin()
        try:
            if not durable and engine.dialect.name == dialects.POSTGRESQL:
                connection.execute(_NO_SYNC)
            result = work(connection)
            transaction.commit()
        except BaseException:
            _roll_back(connection, transaction)
            raise
        return result


def _roll_back(connection: sa.Connection, transaction: sa.RootTransaction) -> None:
    try:
        transaction.rollback()
    except sa.exc.DBAPIError:
        # The first error is reported. Without a connection the server rolls back.
        connection.invalidate()


def _connect(engine: sa.Engine) -> sa.Connection:
    try:
        return engine.connect()
    except sa.exc.DBAPIError as error:
        retries = sqlalchemy_engines.retries_of(engine)
        if not retries or not database_errors.is_unreachable(error):
            raise
    import tenacity  # Imported here, because it is slow and rarely needed.

    retrying: tenacity.Retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(database_errors.is_unreachable),
        stop=tenacity.stop_after_attempt(retries),
        wait=tenacity.wait_exponential(multiplier=0.1, max=2),
        reraise=True,
    )
    return retrying(engine.connect)
