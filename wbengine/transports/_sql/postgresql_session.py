"""One connection to PostgreSQL, for the statements of a transport and for notifications."""

from __future__ import annotations

import contextlib
import logging
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg import errors

from wbengine._sql import postgresql_sessions
from wbengine._text import data_formats
from wbengine.transports._sql import postgresql_statements as sql
from wbengine.transports._sql import request_tables
from wbengine.transports._sql.sql_session import Session, Statement

__all__ = ["LOST", "SETTINGS", "PostgreSQLSession"]

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Errors that mean that the connection is lost, so a statement may have been executed.
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)

#: Errors after which the server has rolled back a statement because of another one.
_CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure)
#: Statistics of a queue are often wrong, because its size changes within seconds: then PostgreSQL
#: scans a whole table or index, compiles a statement that takes less than 1 ms, or plans it each
#: time, which takes longer. At higher isolation levels, `SKIP LOCKED` fails if another consumer has
#: taken a message. If a host dies between the statements of a pipeline, the server detects it after
#: 25 s: it applies no timeout of idle transactions, and the transaction holds locks. Keepalives are
#: not sent while the host has not confirmed received results.
SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "'read committed'",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "'25s'",
}
_CREATION_LOCK: Final = 7_760_269_180_343


class PostgreSQLSession(Session):
    """A connection to PostgreSQL. Its statements are SQL for psycopg."""

    error = psycopg.Error
    format_statement = sql.FORMAT

    _on_notification: Callable[[str], object] | None = None

    def _connect(self, engine: sa.Engine) -> None:
        self._connection, self._driver, self.is_polling = postgresql_sessions.connect(engine)

    def _configure(self) -> tuple[int, str] | None:
        if self.is_polling:  # The sessions belong to a pooler.
            return None
        for name, value in SETTINGS.items():
            self.run(f"SET {name} = {value}")
        ((pid, started),) = self.run(
            "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
        return int(pid), str(started)

    def _kill(self, identity: tuple[int, str]) -> bool:
        pid, started = identity
        statement = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid = %(pid)s AND backend_start::text = %(started)s"""
        return bool(self.run(statement, {"pid": pid, "started": started}))

    def _has_tables(self) -> bool:
        return bool(self.run("SELECT to_regclass('wbe_transport')::text")[0][0])

    def _create(self, connection: sa.Connection) -> None:
        connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
        request_tables.create(connection)
        connection.exec_driver_sql(sql.TABLES)
        connection.exec_driver_sql(sql.CREATE_ABOUT, {"format": data_formats.QUEUES.written})

    def _execute_all(self, transactions: Sequence[Sequence[Statement]]) -> list[list[Any]]:
        rows = self._execute_together(transactions[0])
        for statements in transactions[1:]:
            try:
                rows += self._execute_together(statements)
            except psycopg.Error as error:
                if self.is_broken:
                    raise
                # The first transaction is committed, and must not be repeated.
                LOG.debug("%s: a second transaction failed: %s", self.place.shown, error)
                rows += [[] for _ in statements]
        return rows

    def _execute_together(self, statements: Sequence[Statement]) -> list[list[Any]]:
        """Execute a transaction. A pipeline takes longer than a single statement."""
        if len(statements) == 1:
            cursor = self._driver.cursor(binary=True)
            cursor.execute(*statements[0])
            return [_rows(cursor)]
        cursors: list[psycopg.Cursor[Any]] = []
        failures: list[psycopg.Error] = []
        # With a pipeline that an exception leaves, psycopg would log failures that follow from it.
        with _collected(failures), self._driver.pipeline() as pipeline, _collected(failures):
            for statement, values in statements:
                cursors.append(self._driver.cursor(binary=True))
                cursors[-1].execute(statement, values)
            self._flush()
            pipeline.sync()  # Waits for the commit. Results arrive before it.
        if failures:
            raise failures[0]
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
        def work_and_pass() -> T:
            try:
                result = work()
            except psycopg.Error as error:
                if _ends_session(error):
                    self._driver.close()
                raise
            self._pass_notifications()
            return result

        return super()._repeat(work_and_pass)

    def _is_conflict(self, error: BaseException) -> bool:
        return isinstance(error, _CONFLICTS)

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

    def _refusal(self, error: BaseException | None) -> Exception:
        return error if isinstance(error, psycopg.OperationalError) else self._failure(error)


def _ends_session(error: psycopg.Error) -> bool:
    """Return whether the server has ended the session, or did not reply.

    libpq may notice the end of the connection only later. The statement may have been executed.
    """
    return isinstance(error, LOST) and error.diag.severity_nonlocalized != "ERROR"


@contextlib.contextmanager
def _collected(failures: list[psycopg.Error]) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        failures.append(error)


def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
    # `description` would create an object for each column.
    return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []
