"""Which layout a database has, and how it gets the current one."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import threading
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._crash import crashpoint
from wbengine._sql import dialects
from wbengine.persistence.backends.sql import tables

__all__ = ["HEAD", "REVISIONS", "check", "found", "upgrade"]

#: All that can be upgraded, the oldest first (without alembic, which takes a while to import).
REVISIONS: Final = ("0003", "0004", "0005", "0006", "0007", "0008", "0009")
HEAD: Final = REVISIONS[-1]
#: Those before.
_FORMER: Final = ("0001", "0002")

_CALL: Final = "call upgrade() of a connection, or use backends.backend(), or `wbengine db upgrade`"

#: As alembic makes it.
_VERSIONS: Final = sa.Table(
    tables.VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{tables.VERSION_TABLE}_pkc"),
)

#: So long one process waits for another one that upgrades.
_SECONDS: Final = 300
_LOCK: Final = int.from_bytes(hashlib.sha256(tables.VERSION_TABLE.encode()).digest()[:7], "big")

# What alembic knows of the migration under way is global.
_one_at_a_time: Final = threading.Lock()


def found(connection: sa.Connection) -> str | None:
    """The revision of the layout; None: there is none."""
    if not sa.inspect(connection).has_table(tables.VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(
        sa.text(f"SELECT version_num FROM {tables.VERSION_TABLE}")
    )
    return revision


def check(revision: str | None) -> None:
    """Accept the current layout only.

    :raises StorageFailure: it is another one; the text says which, and what to do.
    """
    if revision == HEAD:
        return
    if revision is None:
        raise exceptions.StorageFailure(f"The database has no tables of wbengine yet: {_CALL}")
    if revision in REVISIONS:
        raise exceptions.StorageFailure(
            f"The layout of the database is of revision {revision}, {HEAD} is wanted: {_CALL}"
        )
    if revision in _FORMER:
        raise exceptions.StorageFailure(
            f"The layout of the database is of revision {revision}, which this version cannot"
            " upgrade: make a new database for it, or export its flows with the version that made"
            " it (`wbengine flow export`) and import them into a new one"
        )
    raise exceptions.StorageFailure(
        f"The layout of the database is of revision {revision}, made by a newer version of"
        f" wbengine; this one knows it up to {HEAD}"
    )


def upgrade(engine: sa.Engine, revision: str = HEAD) -> None:
    """Bring the layout to `revision`; processes that do so at the same time wait for each other.

    Where the database can undo changes of its layout (sqlite, PostgreSQL) all of it happens or
    nothing, else (MySQL) what is missing is made the next time.

    :raises StorageFailure: the layout was made by a newer version, or the database says no.
    """

    def work(connection: sa.Connection) -> None:
        with _locked(connection):
            present = found(connection)
            if present is not None and present not in REVISIONS:
                check(present)
            if present is None:
                _make(connection, revision)
            elif REVISIONS.index(present) < REVISIONS.index(revision):
                _check_leases(connection)
                _migrate(connection, revision)
        crashpoint("sql.before-upgrade-commit")

    with _one_at_a_time:
        _sql.transact(engine, "Upgrading the layout of the database", work)
    crashpoint("sql.after-upgrade-commit")


@contextlib.contextmanager
def _locked(connection: sa.Connection) -> Iterator[None]:
    """Keep other processes from upgrading; sqlite does by itself."""
    dialect = connection.dialect.name
    if dialect == dialects.POSTGRESQL:
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_SECONDS}s'"))
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if dialect != dialects.MYSQL:
        yield
        return
    # Its locks are the whole server's.
    database = connection.scalar(sa.text("SELECT DATABASE()"))
    name = hashlib.sha256(f"{tables.VERSION_TABLE}/{database}".encode()).hexdigest()[:48]
    told = {"name": name, "seconds": _SECONDS}
    if connection.scalar(sa.text("SELECT GET_LOCK(:name, :seconds)"), told) != 1:
        raise exceptions.StorageFailure("Somebody else upgrades the database, and does not end")
    try:
        yield
        # Before the lock is let go: who has it next would read the revision of before.
        connection.execute(sa.text("COMMIT"))
    finally:
        connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), told)


def _check_leases(connection: sa.Connection) -> None:
    """Refuse while engines run flows: those of a version before could not write any more.

    :raises StorageFailure: saying how many.
    """
    now = dialects.now(connection.dialect.name)
    running = connection.scalar(
        sa.text(
            f"SELECT count(*) FROM {tables.FLOWS.name}"
            f" WHERE lease_owner IS NOT NULL AND lease_until > {now}"
        )
    )
    if running:
        raise exceptions.StorageFailure(
            "Engines that could not write to a new layout run flows of this database"
            f" ({running} of them): let them end, or suspend them, and upgrade then"
        )


def _make(connection: sa.Connection, revision: str) -> None:
    """Make the tables, without alembic; or what is missing of them, after who died before the end.

    Revisions change only what is not yet as they want it.
    """
    present = sa.inspect(connection).get_table_names()
    begun = not tables.METADATA.tables.keys().isdisjoint(present)
    tables.METADATA.create_all(connection, checkfirst=begun)
    if begun:
        for table in tables.METADATA.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)
    _VERSIONS.create(connection, checkfirst=begun)
    connection.execute(_VERSIONS.insert(), {"version_num": revision})


def _migrate(connection: sa.Connection, revision: str) -> None:
    from alembic import command, config

    told = config.Config()
    place = importlib.resources.files(__package__) / "migrations"
    told.set_main_option("script_location", str(place).replace("%", "%%"))
    told.set_main_option("path_separator", "os")
    told.attributes["connection"] = connection
    command.upgrade(told, revision)
