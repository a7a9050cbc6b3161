"""Checks of a PostgreSQL with queues: rights, settings, tables, long transactions, its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import psycopg

from wbengine import exceptions
from wbengine.diagnosis import _database_advice
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis._database_load import load_problems
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.transports import Target
from wbengine.transports._sql import postgresql_statements, sql_session
from wbengine.transports._sql.postgresql_session import PostgreSQLSession

__all__ = ["check", "fix", "has_worker_role"]

_CHECK: Final = "broker settings"
#: Number of deleted messages from which they are reported.
_MAX_DEAD_MESSAGES: Final = 100_000

_SETTINGS: Final = """
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
  current_setting('max_connections')::integer,
  (SELECT sum(numbackends)::integer FROM pg_stat_database),
  (SELECT max(extract(epoch FROM clock_timestamp() - began))::integer FROM (
    SELECT xact_start FROM pg_stat_activity WHERE datname = current_database()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) t(began)),
  (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'wbe_messages'
    AND pg_table_is_visible(relid)),
  ARRAY(SELECT name FROM unnest(%(indexes)s::text[]) i(name) WHERE NOT EXISTS (
    SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(name) AND indisvalid)),
  (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND query = '<insufficient privilege>'),
  extract(epoch FROM clock_timestamp())::double precision"""


def fix(reason: str, target: Target | None) -> str | None:
    """Return how to reach a database that could not be used, or None: the usual advice applies."""
    return _database_advice.advice(reason)


def has_worker_role(place: Place) -> bool:
    """Return whether the role of the URL can execute requests, but not open their rows."""
    try:
        session = PostgreSQLSession(place.target.place)
    except (psycopg.Error, exceptions.TransportFailure):
        return False
    try:
        ((can_open,),) = session.run("SELECT has_table_privilege('wbe_ledger', 'INSERT')")
        return not can_open
    except (psycopg.Error, exceptions.TransportFailure):
        return False
    finally:
        session.close()


def check(place: Place) -> Iterator[Finding]:
    """Check the settings and the state of the server, and its clock."""
    where: sql_session.Place = place.target.place
    try:
        session = PostgreSQLSession(where)
    except (psycopg.Error, exceptions.TransportFailure) as error:
        yield note(_CHECK, f"cannot read the settings of {where.shown} ({line(error)})")
        return
    try:
        ((read_only,),) = session.run("SHOW transaction_read_only")
        if read_only == "on":
            reason = f"{where.shown} is read-only"
            yield bad("broker", reason, _database_advice.advice(reason) or "")
            return
        before = time.time()
        values = {"indexes": [*postgresql_statements.INDEXES]}
        (row,) = session.run(_SETTINGS, values)
        after = time.time()
    finally:
        session.close()
    *state, hidden, theirs = row
    findings = list(_problems(*state))
    pooled = " through a pooler, where waiting consumers poll" if session.is_polling else ""
    yield from findings or [good(_CHECK, f"{where.shown} stores data durably{pooled}")]
    if hidden:
        yield note(_CHECK, "the transactions of other roles are not visible",
                   "to check them, run: GRANT pg_read_all_stats TO ROLE")  # fmt: skip
    yield from check_clock(
        "broker clock", f"of {where.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _problems(
    fsync: str,
    synchronous_commit: str,
    max_connections: int,
    connections: int,
    transaction_seconds: int | None,
    dead_messages: int | None,
    missing_indexes: list[str],
) -> Iterator[Finding]:
    if fsync == "off" or synchronous_commit == "off":
        name = "fsync" if fsync == "off" else "synchronous_commit"
        yield bad(
            _CHECK,
            f"{name} must be on, got off: a crash of the server loses requests and results",
            f"run: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
        )
    yield from load_problems(
        _CHECK,
        (connections, max_connections),
        transaction_seconds,
        pooler=", or use a pooler such as PgBouncer",
        listing="pg_stat_activity (column xact_start)",
    )
    if dead_messages is not None and dead_messages > _MAX_DEAD_MESSAGES:
        yield bad(
            _CHECK,
            f"the table wbe_messages contains {dead_messages:,} deleted messages",
            "run as its owner: VACUUM wbe_messages, wbe_ledger",
        )
    for name in missing_indexes:
        yield bad(
            _CHECK,
            f"the index {name} is missing or invalid: queues become slow",
            f"run as the owner of the tables: DROP INDEX IF EXISTS {name};"
            f" CREATE INDEX {name} {postgresql_statements.INDEXES[name]}",
        )
