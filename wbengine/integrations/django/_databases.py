"""Stores in databases of Django. Their settings are read when they are used."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa
from django import db
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from wbengine.persistence import backends
from wbengine.persistence import base as persistence

__all__ = ["backend", "url_of"]

#: OPTIONS of Django that configure its own sessions, and have no meaning for others.
_SESSION_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "postgresql": frozenset({
        "cursor_factory", "isolation_level", "pool", "server_side_binding",
    }),
    "mysql": frozenset({"charset", "init_command", "isolation_level"}),
    "sqlite": frozenset({
        "cached_statements", "check_same_thread", "detect_types", "factory", "init_command",
        "isolation_level", "timeout", "transaction_mode", "uri",
    }),
}  # fmt: skip


def backend(alias: str = "default") -> persistence.Backend:
    """Return the store in a database of `DATABASES`, for `backend=` of `wbengine.engines`.

    Its settings are read at each call, so in tests it is the database of the tests. Missing tables
    are created. The process keeps the store, but no open connections to the database.

    The error for other settings is Django's `ImproperlyConfigured`.

    :raises StorageFailure: if the database is unavailable.
    """
    return _opened(url_of(alias))


def url_of(alias: str) -> str:
    """Return the URL of a database, which contains its password.

    The error for settings without an equivalent is Django's `ImproperlyConfigured`.
    """
    try:
        connection = db.connections[alias]
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(f"DATABASES must contain {alias!r}") from error
    if connection.vendor not in _SESSION_OPTIONS:
        raise _rejected(alias, f"ENGINE must be a PostgreSQL, MySQL or SQLite, got {connection}")
    url = (_file if connection.vendor == "sqlite" else _server)(alias, connection)
    text = url.render_as_string(hide_password=False)
    try:
        _check_options(text)
        return text
    except (ValueError, ImportError) as error:
        raise _rejected(alias, str(error)) from error


@functools.cache
def _opened(url: str) -> persistence.Backend:
    # Django cannot delete the database of its tests while other connections to it are open.
    store = backends.fetch(url, max_pool_size=0)
    with contextlib.closing(store.get_connection()) as connection:
        connection.upgrade()
    return store


@functools.cache
def _check_options(url: str) -> None:
    backends.fetch(url).close()


def _file(alias: str, connection: BaseDatabaseWrapper) -> sa.URL:
    name = str(connection.settings_dict["NAME"])
    if name == ":memory:" or name.startswith("file:"):
        raise _rejected(
            alias,
            f"a SQLite database must be a file, got {name!r}; for tests, set"
            ' "TEST": {"NAME": "test.sqlite3"}',
        )
    _options(alias, connection)
    return sa.URL.create("sqlite", database=name)


def _server(alias: str, connection: BaseDatabaseWrapper) -> sa.URL:
    settings = connection.settings_dict
    if not settings["NAME"]:
        raise _rejected(alias, "NAME must be set")
    options, host, port = _options(alias, connection), settings["HOST"] or None, settings["PORT"]
    if host is not None and (host.startswith("/") or "," in host):
        options["unix_socket" if connection.vendor == "mysql" else "host"] = host
        host = None
    if port and not str(port).isdecimal():
        options["port"], port = str(port), None
    return sa.URL.create(
        connection.vendor,
        settings["USER"] or None,
        settings["PASSWORD"] or None,
        host,
        int(port) if port else None,
        settings["NAME"],
        options,
    )


def _options(alias: str, connection: BaseDatabaseWrapper) -> dict[str, str]:
    """Return the options of the driver, without those that configure sessions of Django."""
    options = dict(connection.settings_dict["OPTIONS"])
    for name in _SESSION_OPTIONS[connection.vendor]:
        options.pop(name, None)
    files = options.pop("ssl", {}) if connection.vendor == "mysql" else {}
    if isinstance(files, Mapping):
        options |= {f"ssl_{name}": value for name, value in files.items()}
    unknown = [name for name, value in options.items() if not isinstance(value, str | int)]
    if unknown or (options and connection.vendor == "sqlite"):
        raise _rejected(
            alias, f"OPTIONS must be known to wbengine, got {', '.join(unknown or options)}"
        )
    return {
        name: str(int(value) if isinstance(value, bool) else value)
        for name, value in options.items()
    }


def _rejected(alias: str, reason: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"DATABASES[{alias!r}] cannot contain flows: {reason}")
