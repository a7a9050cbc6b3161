"""The layout of a database and its upgrade."""

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

__all__ = ["HEAD", "REVISIONS", "check_revision", "current_revision", "upgrade"]

#: Revisions that can be upgraded, oldest first. The list avoids the slow import of alembic.
REVISIONS: Final = ("0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010")
HEAD: Final = REVISIONS[-1]
#: Older revisions, which cannot be upgraded.
_UNSUPPORTED_REVISIONS: Final = ("0001", "0002")

_UPGRADE_HINT: Final = (
    "call upgrade() of a connection, or use backends.backend(), or `wbengine db upgrade`"
)

#: Alembic's version table, defined as Alembic defines it.
_VERSIONS: Final = sa.Table(
    tables.VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{tables.VERSION_TABLE}_pkc"),
)

#: Maximum time to wait for another process that upgrades the database.
_LOCK_TIMEOUT_SECONDS: Final = 300
_LOCK_KEY: Final = int.from_bytes(hashlib.sha256(tables.VERSION_TABLE.encode()).digest()[:7], "big")

# Alembic stores the current migration in global variables.
_upgrade_lock: Final = threading.Lock()


def current_revision(connection: sa.Connection) -> str | None:
    """Return the revision of the layout, or None if there are no tables."""
    if not sa.inspect(connection).has_table(tables.VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(
        sa.text(f"SELECT version_num FROM {tables.VERSION_TABLE}")
    )
    return revision


def check_revision(revision: str) -> None:
    """Check that the layout is the current one.

    :raises StorageFailure: for any other layout; the message contains its revision and a hint.
    """
    if revision == HEAD:
        return
    if revision in REVISIONS:
        raise exceptions.StorageFailure(
            f"The layout of the database must have revision {HEAD}, got {revision}: {_UPGRADE_HINT}"
        )
    if revision in _UNSUPPORTED_REVISIONS:
        raise exceptions.StorageFailure(
            f"The layout of the database has revision {revision}, which this version"
            " cannot upgrade: export its flows with the version of wbengine that created"
            " it (`wbengine flow export`) and import them into a new database"
        )
    raise exceptions.StorageFailure(
        f"The layout of the database has revision {revision}, from a newer version of"
        f" wbengine; this version supports revisions up to {HEAD}"
    )


def upgrade(engine: sa.Engine, revision: str = HEAD) -> None:
    """Upgrade the layout to `revision`. Concurrent upgrades wait for each other.

    If the database can roll back layout changes (SQLite, PostgreSQL), the upgrade is atomic. On
    MySQL, the next upgrade completes an interrupted one.

    :raises StorageFailure: if the layout belongs to a newer version, or the database fails.
    """

    def work(connection: sa.Connection) -> None:
        with _locked(connection):
            present = current_revision(connection)
            if present is not None and present not in REVISIONS:
                check_revision(present)
            if present is None:
                _create_tables(connection, revision)
            elif REVISIONS.index(present) < REVISIONS.index(revision):
                _check_leases(connection)
                _migrate(connection, revision)
        crashpoint("sql.before-upgrade-commit")

    with _upgrade_lock:
        _sql.transact(engine, "Upgrading the layout of the database", work)
    crashpoint("sql.after-upgrade-commit")


@contextlib.contextmanager
def _locked(connection: sa.Connection) -> Iterator[None]:
    """Exclude upgrades by other processes. SQLite needs no lock: it locks the whole database."""
    dialect = connection.dialect.name
    if dialect == dialects.POSTGRESQL:
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_SECONDS}s'"))
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    if dialect != dialects.MYSQL:
        yield
        return
    # All databases of a MySQL server share its named locks.
    database = connection.scalar(sa.text("SELECT DATABASE()"))
    name = hashlib.sha256(f"{tables.VERSION_TABLE}/{database}".encode()).hexdigest()[:48]
    parameters = {"name": name, "seconds": _LOCK_TIMEOUT_SECONDS}
    if connection.scalar(sa.text("SELECT GET_LOCK(:name, :seconds)"), parameters) != 1:
        raise exceptions.StorageFailure(
            "Another process is upgrading the database and did not end within"
            f" {_LOCK_TIMEOUT_SECONDS} s"
        )
    try:
        yield
        # Commit before the release: otherwise the next owner of the lock reads the old revision.
        connection.execute(sa.text("COMMIT"))
    finally:
        connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), parameters)


def _check_leases(connection: sa.Connection) -> None:
    """Reject the upgrade while engines run flows: they cannot write the new layout."""
    now = dialects.now(connection.dialect.name)
    running = connection.scalar(
        sa.text(
            f"SELECT count(*) FROM {tables.FLOWS.name}"
            f" WHERE lease_owner IS NOT NULL AND lease_until > {now}"
        )
    )
    if running:
        raise exceptions.StorageFailure(
            f"{running} flows of this database are run by engines that cannot write the"
            " new layout: wait until they end, or suspend them, and upgrade then"
        )


def _create_tables(connection: sa.Connection, revision: str) -> None:
    """Create the tables without alembic. After an interrupted creation, add the missing tables.

    Later migrations skip changes that these tables already contain.
    """
    present = sa.inspect(connection).get_table_names()
    is_incomplete = not tables.METADATA.tables.keys().isdisjoint(present)
    tables.METADATA.create_all(connection, checkfirst=is_incomplete)
    if is_incomplete:
        for table in tables.METADATA.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)
    _VERSIONS.create(connection, checkfirst=is_incomplete)
    connection.execute(_VERSIONS.insert(), {"version_num": revision})


def _migrate(connection: sa.Connection, revision: str) -> None:
    from alembic import command, config

    settings = config.Config()
    folder = importlib.resources.files(__package__) / "migrations"
    settings.set_main_option("script_location", str(folder).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    command.upgrade(settings, revision)
