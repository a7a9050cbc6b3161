"""One transaction: all of it happens, or nothing."""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import sqlalchemy as sa
import tenacity

from wbengine import exceptions
from wbengine._sql import dialects, engines, errors

__all__ = ["at_once", "transact", "turn"]

_T = TypeVar("_T")

LOG: Final = logging.getLogger(__name__)

#: How often a transaction is tried that the server undid because of another one.
_TRIES: Final = 8
_WAIT: Final = tenacity.wait_exponential(multiplier=0.1, max=2)
_NO_SYNC: Final = sa.text("SET LOCAL synchronous_commit = off")
_CONFLICT_WAIT: Final = tenacity.wait_random_exponential(multiplier=0.005, max=0.2)


def transact(
    engine: sa.Engine,
    what: str,
    work: Callable[[sa.Connection], _T],
    *,
    write: bool = True,
    durable: bool = True,
    kind: type[exceptions.StorageFailure] = exceptions.StorageFailure,
) -> _T:
    """Run `work` in a transaction, and commit; what it raises undoes it, and goes through.

    One that only reads sees one moment of the database.  One that need not be `durable` may be lost
    when the database's host dies, as long as nothing else was written after it: sqlite and
    PostgreSQL do not wait for the disk then.  `work` is called again when the server undid the
    transaction because of another one.  When the connection is lost while the commit is under way,
    the failure does not say whether it took place: `work` should be such that doing it again does
    no harm.

    :raises StorageFailure: (or `kind`) the database cannot be reached, or says no; in one line that
        begins with `what` (was being done).
    :raises CorruptRecord: the file of an sqlite database is damaged.
    """
    place = engine.url.database if engine.dialect.name == dialects.SQLITE else None
    with errors.failures(what, kind, place=place):
        try:
            return _once(engine, work, write, durable)
        except sa.exc.DBAPIError as error:
            if not errors.is_conflict(error):
                raise
        again: tenacity.Retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_conflicts),
            stop=tenacity.stop_after_attempt(_TRIES - 1),
            wait=_CONFLICT_WAIT,
            reraise=True,
        )
        done: _T = again(_once, engine, work, write, durable)
        return done


def turn(
    engine: sa.Engine,
    what: str,
    work: Callable[[sqlite3.Connection], _T],
    *,
    is_statement: bool = False,
) -> _T:
    """Run `work` on the driver's own connection, in a transaction that other threads' turns share.

    For the one transaction that there are many of, on a database that has a writer (`writer_of`).
    Other threads may run `work`, and more than once.  `is_statement`: it executes a single one.

    :raises StorageFailure: as `transact` does.
    """
    writer = engines.writer_of(engine)
    assert writer is not None
    with errors.failures(what, place=engine.url.database):
        return writer.turn(functools.partial(_connected, engine), work, is_statement)


def at_once(
    engine: sa.Engine, what: str, statement: sa.TextClause, values: Mapping[str, Any]
) -> bool:
    """Execute a statement that is a transaction by itself, in one round trip.

    For the one transaction that there are many of, with the engine that `turn_engine` makes.  True:
    it returned the number 1.  False: another one, or it failed, or the connection was lost, and
    then it may have taken place; the caller does the same by `transact` then, which tells why it
    cannot be done.

    :raises StorageFailure: the database cannot be reached.
    """
    with errors.failures(what), _connected(engine) as connection:
        try:
            return bool(connection.execute(statement, values).scalar() == 1)
        except sa.exc.DBAPIError as error:
            LOG.debug("%s in one statement failed: %s", what, error.orig)
            return False


def _once(engine: sa.Engine, work: Callable[[sa.Connection], _T], write: bool, durable: bool) -> _T:
    writer = engines.writer_of(engine) if write else None
    if writer is not None:
        return writer.transact(functools.partial(_connected, engine), work, durable)
    with _connected(engine) as connection:
        if not write and (level := engines.read_level(engine)):
            connection.execution_options(isolation_level=level)
        transaction = connection.begin()
        try:
            if not durable and engine.dialect.name == dialects.POSTGRESQL:
                connection.execute(_NO_SYNC)
            done = work(connection)
            transaction.commit()
        except BaseException:
            _undo(connection, transaction)
            raise
        return done


def _undo(connection: sa.Connection, transaction: sa.RootTransaction) -> None:
    try:
        transaction.rollback()
    except sa.exc.DBAPIError:
        # What went wrong first is what counts; without a connection the server undoes it.
        connection.invalidate()


def _connected(engine: sa.Engine) -> sa.Connection:
    try:
        return engine.connect()
    except sa.exc.DBAPIError as error:
        retries = engines.retries_of(engine)
        if not retries or not errors.is_unreachable(error):
            raise
    again: tenacity.Retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_unreachable),
        stop=tenacity.stop_after_attempt(retries),
        wait=_WAIT,
        reraise=True,
    )
    return again(engine.connect)


def _unreachable(error: BaseException) -> bool:
    return isinstance(error, sa.exc.DBAPIError) and errors.is_unreachable(error)


def _conflicts(error: BaseException) -> bool:
    return isinstance(error, sa.exc.DBAPIError) and errors.is_conflict(error)
