"""Programs that submit flows in transactions of their own connections."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import django
import django.conf
import django.db
import psycopg
import psycopg.rows
import pytest
import sqlalchemy as sa
from django.db.backends.base import base as django_base
from sqlalchemy import orm

from wbengine import engines
from wbengine.jobs import backends as boards
from wbengine.persistence import base
from wbengine.persistence.backends import _sql as sql

#: Kinds of connections by the kind of their database.
KINDS = {
    "sqlite": ("connection", "session", "driver", "django"),
    "postgresql": ("connection", "session", "driver", "django"),
    "mysql": ("connection",),
}
ALL_KINDS = [f"{database} {kind}" for database, kinds in KINDS.items() for kind in kinds]
CREATE_TABLE = "CREATE TABLE orders (mark VARCHAR(99))"
#: Alias of the database in Django.
ALIAS = "caller"
GREETING = "tests.support.conducted:greeting"
_DRIVERS = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


def on(*kinds: str) -> pytest.MarkDecorator:
    """Return the mark of tests with callers of these kinds of databases and connections."""
    return pytest.mark.parametrize("place", kinds, indirect=True)


class Place:
    """A store in a database of which callers have connections."""

    def __init__(self, url: str, store: base.Backend) -> None:
        assert isinstance(store, sql.SQLBackend)
        self.url, self.store = url, store

    def submit(self, connection: Any, name: str = "Ada", **options: Any) -> engines.FlowHandle:
        inputs = {"name": name}
        return engines.submit(
            GREETING, backend=self.store, inputs=inputs, connection=connection, **options
        )

    def flows(self) -> set[str]:
        with contextlib.closing(self.store.get_connection()) as connection:
            return {row.uuid for row in connection.list_flows().flows}

    def jobs(self) -> set[str]:
        with boards.backend("b", "sql", persistence=self.store) as board:
            return {job.uuid for job in board.iterjobs()}


class Caller:
    """A connection of a caller, and its own table `orders`."""

    def __init__(self, connection: Any) -> None:
        #: Argument of submissions.
        self.connection = connection

    def add(self, mark: str) -> None:
        self.execute(f"INSERT INTO orders VALUES ('{mark}')")

    def orders(self) -> list[str]:
        return sorted(row[0] for row in self.execute("SELECT mark FROM orders"))

    def execute(self, statement: str) -> list[Any]:
        if isinstance(self.connection, django_base.BaseDatabaseWrapper):
            with self.connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        is_driver = not isinstance(self.connection, sa.Connection | orm.Session)
        result: Any = self.connection.execute(statement if is_driver else sa.text(statement))
        if not statement.startswith("SELECT"):
            return []
        return [tuple(row.values()) if isinstance(row, dict) else row for row in result]

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


@contextlib.contextmanager
def caller(kind: str, url: str) -> Iterator[Caller]:
    """Open a connection of a kind: 'connection', 'session' or 'driver', and create the table."""
    with opened(kind, url) as connection:
        new_caller = Caller(connection)
        new_caller.execute(CREATE_TABLE)
        new_caller.commit()
        yield new_caller


@contextlib.contextmanager
def opened(kind: str, url: str, **options: Any) -> Iterator[Any]:
    parsed = sa.make_url(url)
    if kind == "django":
        with _django(parsed) as connection:
            connection.set_autocommit(False)
            yield connection
        return
    if kind == "driver":
        with contextlib.closing(_driver(parsed, **options)) as driver:
            yield driver
        return
    name = _DRIVERS.get(parsed.drivername, parsed.drivername)
    engine = sa.create_engine(parsed.set(drivername=name), **options)
    try:
        if kind == "connection":
            with engine.connect() as connection:
                yield connection
        else:
            with orm.Session(engine) as session:
                yield session
    finally:
        engine.dispose()


@contextlib.contextmanager
def _django(url: sa.URL) -> Iterator[Any]:
    """Add a database to Django as `ALIAS`, and yield its connection."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(LOGGING_CONFIG=None)
    if not django.apps.apps.ready:  # Another test may only have configured the settings.
        django.setup()
    connections = django.db.connections
    is_sqlite = url.drivername == "sqlite"
    database = {
        "ENGINE": f"django.db.backends.{'sqlite3' if is_sqlite else 'postgresql'}",
        "NAME": url.database, "HOST": url.host or "", "PORT": url.port or "",
        "USER": url.username or "", "PASSWORD": url.password or "",
    }  # fmt: skip
    configured = connections.configure_settings({"default": {}, ALIAS: database})
    connections.settings[ALIAS] = configured[ALIAS]
    connection = connections[ALIAS]
    try:
        yield connection
    finally:
        connection.close()
        del connections[ALIAS], connections.settings[ALIAS]


def _driver(url: sa.URL, **options: Any) -> Any:
    """Return a connection of the driver whose rows are not tuples."""
    if url.drivername == "sqlite":
        driver = sqlite3.connect(str(url.database), **options)
        driver.row_factory = lambda cursor, row: dict(enumerate(row))
        return driver
    text = url.render_as_string(hide_password=False)
    return psycopg.connect(text, row_factory=psycopg.rows.dict_row, **options)
