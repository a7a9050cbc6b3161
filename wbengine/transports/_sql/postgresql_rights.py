"""The rights of workers in a database with queues: they execute tasks, and read no flows."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from wbengine.transports._sql.postgresql_session import PostgreSQLSession
from wbengine.transports._sql.sql_session import Place

__all__ = ["TABLES", "grant_to_worker"]

_CHANGE: Final = "SELECT, INSERT, UPDATE, DELETE"
#: Rights of workers by table. Engines open the rows of requests, so workers insert none.
TABLES: Final = {
    "wbe_transport": "SELECT, UPDATE",
    "wbe_queues": _CHANGE,
    "wbe_bindings": "SELECT, INSERT, DELETE",
    "wbe_messages": _CHANGE,
    "wbe_consumers": _CHANGE,
    "wbe_waiters": _CHANGE,
    "wbe_ledger": "SELECT, UPDATE, DELETE",
    "wbe_ledger_holders": _CHANGE,
    "wbe_ledger_about": "SELECT, UPDATE",
}


def grant_to_worker(place: Place, role: str) -> None:
    """Create the tables of the queues if necessary, and grant a role the rights of workers.

    :raises TransportFailure: if the role does not exist, or the user must not grant the rights.
    :raises psycopg.OperationalError: if the server cannot be reached.
    """
    name = sql.Identifier(role).as_string()
    session = PostgreSQLSession(place)
    try:
        ((schema,),) = session.run("SELECT quote_ident(current_schema())")
        session.run(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        for table, rights in TABLES.items():
            session.run(f"GRANT {rights} ON {table} TO {name}")
    finally:
        session.close()
