"""The layout of a database, its upgrade, and the releases that can use it.

Each layout has a revision. The database also stores `oldest`: a release that supports the revision
`oldest` can use the tables, even if it does not support their revision. Therefore engines of the
previous release continue after an upgrade that only adds tables and columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import threading
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import sqlalchemy as sa

import wbengine
from wbengine import _sql, exceptions
from wbengine._concurrency.crash_points import crashpoint
from wbengine._sql import dialects
from wbengine.persistence.backends._sql import tables

__all__ = ["HEAD", "REVISIONS", "UPGRADE_HINT", "Layout", "stored_layout", "upgrade"]

#: Known revisions in order. Each value is the oldest revision whose releases can use the tables;
#: the values never decrease. The mapping avoids the slow import of alembic.
REVISIONS: Final[Mapping[str, str]] = {
    "0001": "0001", "0002": "0001", "0003": "0001", "0004": "0001",
    "0005": "0001",
    "0006": "0001",
    "0007": "0001",
    "0008": "0001",
    "0009": "0001",
    "0010": "0001",
    "0011": "0001",
    "0012": "0001",
}  # fmt: skip
HEAD: Final = list(REVISIONS)[-1]

_MIGRATIONS: Final = importlib.resources.files(__package__) / "migrations"

UPGRADE_HINT: Final = (
    "call upgrade() of a connection, or use backends.backend(), or `wbengine db upgrade`"
)

#: Alembic's version table, defined as Alembic defines it, with an additional column.
_VERSIONS: Final = sa.Table(
    tables.VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.Column("oldest", sa.String(32)),
    sa.PrimaryKeyConstraint("version_num", name=f"{tables.VERSION_TABLE}_pkc"),
)

#: Maximum time to wait for another process that upgrades the database.
_LOCK_TIMEOUT_SECONDS: Final = 300
_LOCK_KEY: Final = int.from_bytes(hashlib.sha256(tables.VERSION_TABLE.encode()).digest()[:7], "big")

# Alembic stores the current migration in global variables.
_upgrade_lock: Final = threading.Lock()


class Layout(NamedTuple):
    """The layout of a database."""

    revision: str
    oldest: str | None

    @property
    def is_known(self) -> bool:
        return self.revision in REVISIONS

    @property
    def is_usable(self) -> bool:
        """Return True if this release can use the tables without an upgrade."""
        return self.revision == HEAD if self.is_known else self.oldest in REVISIONS

    def check(self) -> None:
        """Check that this release can use the tables.

        :raises StorageFailure: if it cannot; the message contains the revision and a hint.
        """
        if self.is_usable:
            return
        if self.is_known:
            raise exceptions.StorageFailure(
                f"The layout of the database must have revision {HEAD}, got {self.revision}:"
                f" {UPGRADE_HINT}"
            )
        raise exceptions.StorageFailure(
            f"The layout of the database has revision {self.revision}, and wbengine"
            f" {wbengine.__version__} supports revisions up to {HEAD}: use a newer version of"
            " wbengine"
        )


def stored_layout(connection: sa.Connection) -> Layout | None:
    """Return the layout of the database, or None if it stores no revision."""
    if not sa.inspect(connection).has_table(tables.VERSION_TABLE):
        return None
    # Alembic creates the table without the column `oldest`.
    row = connection.execute(sa.text(f"SELECT * FROM {tables.VERSION_TABLE}")).mappings().first()
    return None if row is None else Layout(row["version_num"], row.get("oldest"))


def upgrade(engine: sa.Engine) -> Layout:
    """Upgrade the layout to `HEAD`, and return it. Concurrent upgrades wait for each other.

    A newer layout that this release can use stays unchanged.

    If the database can roll back layout changes (SQLite, PostgreSQL), the upgrade is atomic. On
    MySQL, the next upgrade completes an interrupted one.

    :raises StorageFailure: if this release cannot use the layout, if engines that cannot use the
        new layout run flows, if another process upgrades for more than 300 seconds, or if the
        database fails.
    """

    def work(connection: sa.Connection) -> Layout:
        with _locked(connection):
            present = stored_layout(connection)
            if present is None:
                _create_tables(connection)
            elif not present.is_known:
                present.check()
                return present
            elif present.revision != HEAD:
                _migrate(connection, present.revision)
        crashpoint("sql.before-upgrade-commit")
        return Layout(HEAD, REVISIONS[HEAD])

    with _upgrade_lock:
        upgraded = _sql.transact(engine, "Upgrading the layout of the database", work)
    crashpoint("sql.after-upgrade-commit")
    return upgraded


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
        # Commit before RELEASE_LOCK: otherwise the next owner of the lock reads the old revision.
        connection.execute(sa.text("COMMIT"))
    finally:
        connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), parameters)


def _check_leases(connection: sa.Connection) -> None:
    """Reject the upgrade while engines run flows: they cannot use the new layout."""
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


def _create_tables(connection: sa.Connection) -> None:
    """Create the tables without alembic. After an interrupted creation, add the missing tables."""
    present = sa.inspect(connection).get_table_names()
    is_incomplete = not tables.METADATA.tables.keys().isdisjoint(present)
    tables.METADATA.create_all(connection, checkfirst=is_incomplete)
    if is_incomplete:
        for table in tables.METADATA.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)
    _VERSIONS.create(connection, checkfirst=is_incomplete)
    versions = {"version_num": HEAD, "oldest": REVISIONS[HEAD]}
    connection.execute(_VERSIONS.insert(), versions)


def _migrate(connection: sa.Connection, present: str) -> None:
    from alembic import command, config

    known = list(REVISIONS)
    oldest = REVISIONS[HEAD]
    if known.index(present) < known.index(oldest):
        _check_leases(connection)
    # MySQL commits each step. The new revision must never be stored with the old `oldest`.
    connection.execute(_VERSIONS.update(), {"oldest": oldest})
    settings = config.Config()
    settings.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    settings.attributes["connection"] = connection
    command.upgrade(settings, HEAD)
