"""Transactions of callers in the database of a backend."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _sql
from wbengine._sql import caller_connections, dialects, local_wakeups
from wbengine.persistence import base
from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.backend import SQLBackend

__all__ = ["joined", "joined_backend"]

_Identity = tuple[Any, ...] | None

#: Queries of values that only connections to the same tables have in common.
_IDENTITIES: Final[Mapping[str, str]] = {
    dialects.SQLITE: "SELECT file FROM pragma_database_list WHERE name = 'main'",
    dialects.MYSQL: "SELECT @@hostname, @@port, DATABASE()",
    dialects.POSTGRESQL: "SELECT system_identifier, current_database(),"
    f" CAST(to_regclass('{tables.JOBS.name}') AS oid) FROM pg_control_system()",
}
_identities: Final = weakref.WeakKeyDictionary[SQLBackend, _Identity]()


@contextlib.contextmanager
def joined(
    backend: SQLBackend, source: Any, what: str, *, waits: bool = True
) -> Iterator[sa.Connection]:
    """Yield the present transaction of a caller, on a connection to the database of a backend.

    If the transaction has a hook, its commit wakes the conductors of this process.

    :param source: see `caller_connections.KINDS`.
    :param what: the activity, with which error messages begin.
    :param waits: whether statements of the `with` block may wait for other transactions; then the
        time is limited, and an error in the block reverts its changes only.
    :raises TypeError: if `source` has another type.
    :raises ValueError: if it is connected to another database, or not in a usable transaction.
    :raises StorageFailure: if the tables do not exist, or the database reports an error.
    """
    backend.check_tables()
    with _sql.convert_errors(what), caller_connections.borrowed(source) as connection:
        _check_same_database(backend, connection)
        limit = caller_connections.limited_waits(connection) if waits else contextlib.nullcontext()
        with limit:
            yield connection
        wakeups, url = local_wakeups.of_process(), backend.options.url
        if wakeups.has_any(url):
            caller_connections.after_commit(source, functools.partial(wakeups.wake, url))


@contextlib.contextmanager
def joined_backend(backend: base.Backend, source: Any, what: str) -> Iterator[base.Backend]:
    """Yield a backend whose calls belong to the transaction of a caller.

    :param source: as in `joined`; None: each call is a transaction, as usual.
    :raises ValueError: if the backend is not a database, or as `joined` does.
    :raises Exception: as `joined`.
    """
    if source is None:
        yield backend
        return
    if not isinstance(backend, SQLBackend):
        raise ValueError(f"connection= requires a store in a database, got {backend!r}")
    with joined(backend, source, what) as transaction:
        yield backend.in_transaction(transaction)


def _check_same_database(backend: SQLBackend, connection: sa.Connection) -> None:
    if caller_connections.dialect_of(connection) == backend.options.dialect:
        identity = _read_identity(connection)
        if identity is not None and identity == _identities.get(backend):
            return
        # The tables may have been replaced since.
        what = "Reading the identity of the database"
        own = _sql.transact(backend.engine, what, _read_identity, write=False)
        _identities[backend] = own
        if identity is not None and identity == own:
            return
    raise ValueError(
        f"connection must be to the database (and schema) of {backend!r}, got another one"
    )


def _read_identity(connection: sa.Connection) -> _Identity:
    dialect = caller_connections.dialect_of(connection)
    values = tuple(connection.execute(sa.text(_IDENTITIES[dialect])).one())
    if dialect != dialects.SQLITE:
        return values
    (path,) = values
    if not path:  # The database is in memory.
        return None
    status = os.stat(path)
    return status.st_dev, status.st_ino
