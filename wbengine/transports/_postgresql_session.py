"""One connection to PostgreSQL, for the statements of a transport and for notifications."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg import errors

from wbengine import _sql, exceptions
from wbengine._sql import postgresql_sessions, request_tables
from wbengine._text import data_formats
from wbengine.transports import _postgresql_statements as sql

__all__ = ["LOST", "Place", "Session", "Statement"]

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: SQL and its values.
Statement = tuple[str, Mapping[str, Any]]

#: Errors that mean that the connection is lost, so a statement may have been executed.
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)

#: Errors after which the server has rolled back a statement because of another one.
_CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure)
_MAX_ATTEMPTS: Final = 8
#: Statistics of a queue are often wrong, because its size changes within seconds: then PostgreSQL
#: scans the table, compiles a statement that takes less than 1 ms, or plans it each time, which
#: takes longer than its execution. At higher isolation levels, `SKIP LOCKED` fails if another
#: consumer has taken a message.
_SETTINGS: Final = {
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "'read committed'",
}
_CREATION_LOCK: Final = 7_760_269_180_343
#: Time in which a lost session ends in the server.
_END_SECONDS: Final = 5.0

#: Process ids and start times of sessions that were lost during a statement, by place.
_lost_sessions: Final[dict[Place, list[tuple[int, str]]]] = {}


@dataclass(frozen=True)
class Place:
    """A database that contains queues.

    :ivar address: hosts, port and name of the database.
    """

    address: tuple[str, int | None, str]
    options: _sql.DatabaseOptions = field(compare=False, repr=False)

    @classmethod
    def parse(cls, url: str) -> Place:
        """Return the place of a URL.

        :raises ValueError: if it is invalid.
        """
        options = _sql.parse(url)
        return cls(options.address, options)

    def check(self) -> None:
        """Check the options of the URL, without connecting.

        :raises ValueError: if one is unknown or invalid.
        """
        _sql.make_engine(self.options).dispose()

    @property
    def shown(self) -> str:
        """The URL without user, password and options."""
        hosts, port, database = self.address
        return f"postgresql://{hosts}{'' if port == 5432 else f':{port}'}/{database}"


class Session:
    """A connection, for several threads. The tables are created if necessary.

    :raises psycopg.OperationalError: if the server cannot be reached.
    :raises TransportFailure: if it refuses, or if the tables have another format.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._on_notification: Callable[[str], object] | None = None
        options = dataclasses.replace(place.options, max_retries=0, max_pool_size=1)
        engine = _sql.make_engine(options)
        try:
            self._connection, self._driver, self.is_pooled = postgresql_sessions.connect(engine)
        except sa.exc.DBAPIError as error:
            raise _refusal(place, error.orig) from error
        finally:
            engine.dispose()
        try:
            self._identity = self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> tuple[int, str]:
        if not self.is_pooled:
            for name, value in _SETTINGS.items():
                self.run(f"SET {name} = {value}")
        ((pid, started),) = self.run(
            "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
        for session in tuple(_lost_sessions.get(self.place, ())):
            self._end(*session)
            with contextlib.suppress(ValueError):  # Another thread ended it, too.
                _lost_sessions[self.place].remove(session)
        if not self.run("SELECT to_regclass('wbe_transport')::text")[0][0]:
            self._create_tables()
        ((format,),) = self.run(sql.FORMAT)
        data_formats.QUEUES.check(self.place.shown, format, exceptions.TransportFailure)
        return int(pid), str(started)

    def _create_tables(self) -> None:
        lock = sa.text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
        engine = _sql.make_engine(self.place.options)
        try:
            with engine.begin() as connection:
                connection.execute(lock)
                request_tables.create(connection)
                connection.exec_driver_sql(sql.TABLES)
                connection.exec_driver_sql(
                    sql.CREATE_ABOUT, {"format": data_formats.QUEUES.written}
                )
        except sa.exc.DBAPIError as error:
            raise _refusal(self.place, error.orig) from error
        finally:
            engine.dispose()

    def _end(self, pid: int, started: str) -> None:
        """End an earlier session of this process, so that its last statement has no late effect."""
        there = "FROM pg_stat_activity WHERE pid = %(pid)s AND backend_start::text = %(started)s"
        values = {"pid": pid, "started": started}
        ends = time.monotonic() + _END_SECONDS
        while self.run(f"SELECT pg_terminate_backend(pid) {there}", values):
            if time.monotonic() > ends:
                raise exceptions.TransportFailure(
                    f"{self.place.shown}: an earlier session ({pid}) does not end"
                )
            time.sleep(0.01)

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Execute a statement, which is a transaction, and return its rows. Thread-safe.

        :raises TransportFailure: if the server refuses it. Nothing is changed then.
        :raises psycopg.Error: one of `LOST`, if the connection is lost.
        """
        return self._repeat(lambda: self._execute(statement, values))

    def run_all(self, *transactions: Sequence[Statement]) -> list[list[Any]]:
        """Execute transactions in order, in one round trip, and return the rows of each statement.

        If a transaction after the first one fails, the rows of its statements are empty.

        :raises TransportFailure, psycopg.Error: see `run`.
        """
        return self._repeat(lambda: self._execute_all(transactions))

    def _execute(self, statement: str, values: Mapping[str, Any] | None) -> list[Any]:
        cursor = self._driver.cursor(binary=True)
        cursor.execute(statement, values)
        return _rows(cursor)

    def _execute_all(self, transactions: Sequence[Sequence[Statement]]) -> list[list[Any]]:
        cursors: list[psycopg.Cursor[Any]] = []
        try:
            with self._driver.pipeline() as pipeline:
                for statements in transactions:
                    for statement, values in statements:
                        cursors.append(self._driver.cursor(binary=True))
                        cursors[-1].execute(statement, values)
                    self._flush()
                    pipeline.sync()
        except psycopg.Error as error:
            first_cursors = cursors[: len(transactions[0])]
            # If the connection is lost, the results may have arrived before the commit.
            if self.is_broken or any(cursor.pgresult is None for cursor in first_cursors):
                raise
            # The first transaction is committed, and must not be repeated.
            LOG.debug("%s: a second transaction failed: %s", self.place.shown, error)
        return [_rows(cursor) for cursor in cursors]

    def _flush(self) -> None:
        """Send everything. In a pipeline, psycopg waits for results of data that it has not sent.

        :raises psycopg.OperationalError: if the connection is lost.
        """
        poll = select.poll()
        poll.register(self._driver.fileno(), select.POLLIN | select.POLLOUT)
        try:
            while self._driver.pgconn.flush():
                poll.poll()
                self._driver.pgconn.consume_input()
        except psycopg.OperationalError:
            self._driver.close()
            raise

    def _repeat(self, work: Callable[[], T]) -> T:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                with self._lock:
                    result = work()
                    self._pass_notifications()
                    return result
            except psycopg.Error as error:
                if self.is_broken:
                    self._note_loss()
                    raise
                if not isinstance(error, _CONFLICTS) or attempt == _MAX_ATTEMPTS:
                    raise _failure(self.place, error) from error
        raise AssertionError("unreachable")

    def _note_loss(self) -> None:
        if not self.is_pooled and hasattr(self, "_identity"):
            _lost_sessions.setdefault(self.place, []).append(self._identity)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a child process, which must not use the connection of its parent."""
        return os.getpid() != self._pid

    @property
    def is_broken(self) -> bool:
        return bool(self._driver.closed)

    def listen(self, channel: str, on_notification: Callable[[str], object]) -> None:
        """Receive notifications of a channel: `on_notification` is called with their payloads.

        Those that arrive during a statement are passed in its thread.
        """
        self._on_notification = on_notification
        self._driver.add_notify_handler(lambda notification: on_notification(notification.payload))
        self.run(f"LISTEN {channel}")

    def fileno(self) -> int:
        """Return the descriptor that is readable when notifications have arrived."""
        return int(self._driver.fileno())

    def receive(self) -> None:
        """Pass the notifications that have arrived.

        :raises psycopg.OperationalError: if the connection is lost.
        """
        with self._lock:
            try:
                self._driver.pgconn.consume_input()
            except psycopg.OperationalError:
                self._driver.close()
                raise
            self._pass_notifications()

    def _pass_notifications(self) -> None:
        if self._on_notification is not None:
            while (notification := self._driver.pgconn.notifies()) is not None:
                self._on_notification(notification.extra.decode())

    def close(self) -> None:
        """Close the connection. Idempotent. A child process keeps that of its parent open."""
        if self.is_inherited:
            return
        if self.is_broken:  # SQLAlchemy would log the failure of a rollback.
            self._connection.invalidate()
        else:
            self._connection.close()


def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
    return cursor.fetchall() if cursor.description else []


def _refusal(place: Place, error: BaseException | None) -> Exception:
    """Return the error to raise if a connection failed: the original one if that may pass."""
    if isinstance(error, psycopg.OperationalError):
        return error
    return _failure(place, error)


def _failure(place: Place, error: BaseException | None) -> exceptions.TransportFailure:
    line = str(error).strip().partition("\n")[0]
    return exceptions.TransportFailure(f"{place.shown}: {line or type(error).__name__}")
