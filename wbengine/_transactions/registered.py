"""Databases that this process registered for `Task.transaction`.

SQLAlchemy is only imported when a database is registered or used.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names

if TYPE_CHECKING:
    import sqlalchemy as sa

    from wbengine.persistence import base as persistence

__all__ = ["VARIABLE", "Database", "check", "get", "register"]

#: Environment variable with the databases of `wbengine.toml`: `{name: URL}` as JSON.
VARIABLE: Final = "WBENGINE_DATABASES"

_lock: Final = threading.Lock()
_databases: Final[dict[str, Database]] = {}


class Database:
    """A registered database. The first use connects, and creates the table if it is missing.

    :param source: its URL, or an engine of SQLAlchemy.
    :raises ValueError: if the URL is invalid. The message contains no password.
    """

    def __init__(self, name: str, source: str | sa.Engine) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._has_table = False
        self._is_own = isinstance(source, str)
        self._engine: sa.Engine = object_names.load("wbengine._transactions.user_engines:engine")(
            source
        )

    @property
    def engine(self) -> sa.Engine:
        """The engine, with the table for steps.

        :raises StorageFailure: if the table is missing and cannot be created.
        """
        if not self._has_table:
            with self._lock:
                if not self._has_table:
                    self.create_table()
                    self._has_table = True
        return self._engine

    def create_table(self) -> None:
        """Create the table for steps, unless it exists.

        :raises StorageFailure: if it cannot be created.
        """
        object_names.load("wbengine._transactions.step_rows:create")(self._engine, self.name)

    def sweep(self, backend: persistence.Backend, older_than: float) -> int:
        """Delete the rows of flows that a store does not contain; return their number."""
        rows = object_names.load("wbengine._transactions.step_rows")
        count, after = 0, ""
        while flows := rows.flows(self.engine, self.name, older_than, after):
            after = flows[-1]
            with backend.get_connection() as connection:
                found = connection.marks(flows)
            missing = [uuid for uuid in flows if uuid not in found]
            count += rows.delete(self.engine, self.name, missing)
        return count

    def close(self) -> None:
        """Close idle connections, unless the program has made the engine."""
        if self._is_own:
            self._engine.dispose()

    def forget_connections(self) -> None:
        """Forget the connections of the parent process, without closing them."""
        self._lock = threading.Lock()
        self._engine.dispose(close=False)


def register(name: str, source: str | sa.Engine) -> None:
    if not isinstance(name, str) or not object_names.is_label(name):
        raise ValueError(
            f"The name of a database must be 1 to 120 characters of A-Z a-z 0-9 _ . -, got {name!r}"
        )
    database = Database(name, source)
    with _lock:
        former = _databases.get(name)
        _databases[name] = database
    if former is not None:
        former.close()


def get(name: str) -> Database:
    """Return a registered database.

    :raises NotFound: if this process has no database with this name.
    """
    database = _databases.get(name)
    if database is None:
        url = _of_environment().get(name)
        if url is None:
            raise _unknown(name)
        register(name, url)
        database = _databases[name]
    return database


def check(names: Mapping[str, str]) -> None:
    """Check that this process has the databases of tasks.

    :param names: the names, each with the name of a task.
    :raises NotFound: if one is missing.
    """
    for name, task in names.items():
        if name not in _databases and name not in _of_environment():
            raise _unknown(name, task)


def _of_environment() -> Mapping[str, str]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        databases: Any = json.loads(text)
    except ValueError:
        databases = None
    if not isinstance(databases, dict) or not all(isinstance(v, str) for v in databases.values()):
        raise ValueError(f"${VARIABLE} must be a JSON object of names and URLs")
    return databases


def _unknown(name: str, task: str | None = None) -> exceptions.NotFound:
    names = sorted({*_databases, *_of_environment()})
    where = "" if task is None else f" of task {task!r}"
    return exceptions.NotFound(
        f"Database {name!r}{where} is not registered in this process"
        f"{object_names.hint(name, names)}: call wbengine.databases.register in the module of the"
        " task, or add it to [databases] in wbengine.toml"
    )


def _forget_connections() -> None:
    for database in _databases.values():
        database.forget_connections()


os.register_at_fork(after_in_child=_forget_connections)
