"""One connection to MySQL or MariaDB, for the statements of a transport."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pymysql
import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._text import data_formats
from wbengine.transports._sql import mysql_statements as sql
from wbengine.transports._sql import request_tables
from wbengine.transports._sql.sql_kind import code_of
from wbengine.transports._sql.sql_session import Session, Statement

__all__ = ["LOST", "MySQLSession", "check_version"]

#: Errors that mean that the connection is lost, so a transaction may have been committed.
LOST: Final = (pymysql.OperationalError, pymysql.InterfaceError)
#: Codes of errors after which the server closes the connection: it stops, or the session was killed
#: or idle for too long.
_LOST_CODES: Final = (1053, 1927, 2006, 2013, 3169, 4031)
#: Codes of errors after which the server has rolled back a transaction because of another one.
_CONFLICTS: Final = (1020, 1213)

#: A server of a lost host does not answer. Statements wait for locks for a shorter time.
_READ_SECONDS: Final = 60
_LOCK_SECONDS: Final = 10
#: Idle connections are kept for as long as the server permits.
_IDLE_SECONDS: Final = 28_800

#: The first versions with SKIP LOCKED.
_MIN_MARIADB: Final = (10, 6)
_MIN_MYSQL: Final = (8, 0)


class MySQLSession(Session):
    """A connection to MySQL. Its statements are SQL, or functions (see `mysql_statements`).

    The session holds a lock of the server with a name of its own. As long as the lock is in use,
    the session exists. Numbers of connections are used again after a restart of the server.
    """

    error = pymysql.Error
    format_statement = sql.FORMAT

    #: Maximum size of an encoded message; 0: not yet known.
    max_message_bytes = 0

    def _make_engine(self, options: _sql.DatabaseOptions) -> sa.Engine:
        timeouts = {"read_timeout": _READ_SECONDS, "write_timeout": _READ_SECONDS}
        given = options.engine_args.get("connect_args", {})
        arguments = {
            **{name: timeouts[name] for name in timeouts.keys() - options.url.query.keys()},
            **given,
        }
        engine_args = {
            **options.engine_args, "isolation_level": "READ COMMITTED", "connect_args": arguments,
        }  # fmt: skip
        return _sql.make_engine(dataclasses.replace(options, engine_args=engine_args))

    def _connect(self, engine: sa.Engine) -> None:
        self._connection = engine.connect()
        self._connection.detach()
        self._driver = self._connection.connection.dbapi_connection

    def _configure(self) -> tuple[int, str]:
        ((version,),) = self.run("SELECT version()")
        check_version(self.place.shown, version)
        self.run(
            f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS},"
            f" SESSION wait_timeout = {_IDLE_SECONDS}"
        )
        lock = f"wbe-{uuid.uuid4().hex}"
        ((id, max_packet, _),) = self.run(
            "SELECT connection_id(), @@max_allowed_packet, get_lock(%(lock)s, 0)", {"lock": lock}
        )
        # The driver writes each byte as two digits.
        self.max_message_bytes = max_packet // 2 - 4096
        return int(id), lock

    def _kill(self, identity: tuple[int, str]) -> bool:
        ((id,),) = self.run("SELECT is_used_lock(%(lock)s)", {"lock": identity[1]})
        if id is None:
            return False
        with contextlib.suppress(exceptions.TransportFailure):  # It has just ended.
            self.run(f"KILL {id}")
        return True

    def _has_tables(self) -> bool:
        # The row is inserted last.
        tables = (
            "SELECT 1 FROM information_schema.tables"
            " WHERE table_schema = database() AND table_name = 'wbe_transport'"
        )
        return bool(self.run(tables) and self.run(self.format_statement))

    def _create(self, connection: sa.Connection) -> None:
        request_tables.create(connection)
        for table in sql.TABLES:
            connection.exec_driver_sql(table)
        connection.exec_driver_sql(sql.CREATE_ABOUT, {"format": data_formats.QUEUES.written})

    def _execute_all(self, transactions: Sequence[Sequence[Statement]]) -> list[list[Any]]:
        return [rows for statements in transactions for rows in self._transact(statements)]

    def _transact(self, statements: Sequence[Statement]) -> list[list[Any]]:
        try:
            transaction = sql.Transaction(self._driver, self.max_message_bytes)
            results = [
                transaction.rows(statement, values)
                if isinstance(statement, str)
                else statement(transaction, values)
                for statement, values in statements
            ]
            self._driver.commit()
        except BaseException as error:
            self._roll_back(error)
            raise
        return results

    def _roll_back(self, error: BaseException) -> None:
        with contextlib.suppress(pymysql.Error):
            # An interrupt may have left a part of a reply unread.
            if code_of(error) in _LOST_CODES or not isinstance(error, pymysql.Error):
                self._driver.close()
            elif not self.is_broken:
                self._driver.rollback()

    def _is_conflict(self, error: BaseException) -> bool:
        return code_of(error) in _CONFLICTS

    @property
    def is_broken(self) -> bool:
        return not self._driver.open

    def close(self) -> None:
        # The driver does not notice that the server has closed the connection.
        if not (self.is_inherited or self.is_broken):
            self._driver.close()
        super().close()

    def _refusal(self, error: BaseException | None) -> Exception:
        return error if isinstance(error, pymysql.OperationalError) else self._failure(error)

    def _text(self, error: BaseException | None) -> str:
        arguments = () if error is None else error.args
        return f"{arguments[1]} ({arguments[0]})" if len(arguments) == 2 else str(error)


def check_version(place: str, version: str) -> None:
    """Check that a server can skip locked rows.

    :raises TransportFailure: if its version is too old.
    """
    name, least = ("MariaDB", _MIN_MARIADB) if "MariaDB" in version else ("MySQL", _MIN_MYSQL)
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < least:
        raise exceptions.TransportFailure(
            f"{place}: {name} must be version {least[0]}.{least[1]} or later, got {version}"
        )
