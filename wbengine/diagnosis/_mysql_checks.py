"""Checks of a MySQL or MariaDB with queues: durability, sizes, connections, and its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pymysql

from wbengine import exceptions
from wbengine.diagnosis import _database_advice
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis._database_load import load_problems
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.transports import Target
from wbengine.transports._sql import mysql_statements, sql_session
from wbengine.transports._sql.mysql_session import MySQLSession

__all__ = ["check", "fix"]

_CHECK: Final = "broker settings"
#: Default of the largest message of engines and workers (option `max_message_size`).
_MESSAGE_BYTES: Final = 16 * 1024 * 1024

_VARIABLES: Final = (
    "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "binlog_format", "max_connections",
)  # fmt: skip
#: Accounts without the right PROCESS see neither.
_CONNECTIONS: Final = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"
_TRANSACTION: Final = """
SELECT max(timestampdiff(SECOND, trx_started, now())) FROM information_schema.innodb_trx"""


def fix(reason: str, target: Target | None) -> str | None:
    """Return how to reach a database that could not be used, or None: the usual advice applies."""
    if "(using password" in reason or "Unknown database" in reason:
        return _database_advice.advice(reason)
    if "denied" in reason:
        return "grant the account all rights on the database: GRANT ALL ON DATABASE.* TO USER"
    if "read-only" in reason or "read_only" in reason:
        return "use the primary server: a replica cannot store requests"
    if "or later" in reason:
        return "upgrade the server, or use a Redis, RabbitMQ or PostgreSQL as broker (--url)"
    return None


def check(place: Place) -> Iterator[Finding]:
    """Check the settings and the state of the server, and its clock."""
    where: sql_session.Place = place.target.place
    try:
        session = MySQLSession(where)
    except (pymysql.Error, exceptions.TransportFailure) as error:
        yield note(_CHECK, f"cannot read the settings of {where.shown} ({line(error)})")
        return
    try:
        before = time.time()
        ((theirs,),) = session.run(f"SELECT {mysql_statements.NOW}")
        after = time.time()
        variables = dict(
            session.run("SHOW GLOBAL VARIABLES WHERE variable_name IN %(names)s",
                        {"names": _VARIABLES})
        )  # fmt: skip
        ((_, connections),) = session.run(_CONNECTIONS)
        transaction_seconds = _transaction_seconds(session)
    finally:
        session.close()
    findings = [
        *_durability_problems(variables),
        *_size_problems(session.max_message_bytes),
        *load_problems(
            _CHECK,
            (int(connections), int(variables["max_connections"])),
            transaction_seconds,
            pooler="",
            listing="information_schema.innodb_trx (column trx_started)",
        ),
    ]
    yield from findings or [
        good(_CHECK, f"{where.shown} stores data durably; waiting consumers poll")
    ]
    yield from check_clock(
        "broker clock", f"of {where.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _transaction_seconds(session: MySQLSession) -> int | None:
    try:
        ((seconds,),) = session.run(_TRANSACTION)
    except exceptions.TransportFailure:  # The account has no right to see it.
        return None
    return None if seconds is None else int(seconds)


def _durability_problems(variables: dict[str, str]) -> Iterator[Finding]:
    flush = variables["innodb_flush_log_at_trx_commit"]
    if flush != "1":
        yield bad(
            _CHECK,
            f"innodb_flush_log_at_trx_commit must be 1, got {flush}: a crash of the server loses"
            " requests and results",
            "run: SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the configuration",
        )
    if variables["log_bin"] != "ON":
        return
    if variables["sync_binlog"] != "1":
        yield note(
            _CHECK,
            f"sync_binlog is {variables['sync_binlog']}: after a power failure, replicas may lack"
            " requests and results",
            "run: SET GLOBAL sync_binlog = 1, and set it in the configuration",
        )
    if variables.get("binlog_format") == "STATEMENT":
        yield bad(
            _CHECK,
            "binlog_format must be ROW or MIXED, got STATEMENT: the server cannot change queues",
            "run: SET GLOBAL binlog_format = 'ROW', and set it in the configuration",
        )


def _size_problems(max_message_bytes: int) -> Iterator[Finding]:
    if max_message_bytes < _MESSAGE_BYTES:
        yield note(
            _CHECK,
            f"a message may have at most {max_message_bytes:,} bytes, half of max_allowed_packet",
            "for larger inputs and results: SET GLOBAL max_allowed_packet = 67108864, and set it in"
            " the configuration",
        )
