"""Databases of the user, for tasks with a transaction (`Task.transaction`).

::

    from wbengine import databases, task

    databases.register("shop", "postgresql://shop@db.example/shop")

    @task.task(transaction="shop", provides="receipt")
    def charge(connection, order):
        connection.execute(...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._transactions import registered

if TYPE_CHECKING:
    import sqlalchemy as sa

    from wbengine.persistence import base as persistence

__all__ = ["create_table", "register", "sweep"]

_DAY_SECONDS = 86_400.0


def register(name: str, database: str | sa.Engine) -> None:
    """Register a database under a name in this process, without connecting.

    A later call with the same name replaces it. Call this where the modules of the tasks are
    imported, so that child processes of pools register it too.

    :param database: its URL, as for stores of flows, or an engine of SQLAlchemy: SQLite,
        PostgreSQL, MySQL or MariaDB.
    :raises TypeError: if it is neither a URL nor an engine.
    :raises ValueError: if the name or the URL is invalid. The message contains no password.
    :raises ImportError: if the driver is not installed.
    """
    registered.register(name, database)


def create_table(name: str) -> None:
    """Create the table `wbe_steps` in a registered database, unless it exists.

    Otherwise the first task creates it, which requires the right to create tables.

    :raises NotFound: if no database is registered under this name.
    :raises StorageFailure: if it cannot be created.
    """
    registered.get(name).create_table()


def sweep(name: str, backend: persistence.Backend, older_than: float = _DAY_SECONDS) -> int:
    """Delete the rows of flows that a store does not contain any more.

    Rows of flows of other stores are deleted too, so use a database with one store only, or choose
    a time in which all flows of the others end.

    :param backend: the store of the flows.
    :param older_than: seconds since the latest change of a flow's rows. Younger rows stay.
    :returns: the number of deleted rows.
    :raises NotFound: if no database is registered under this name.
    :raises StorageFailure: if the store or the database reports an error.
    """
    return registered.get(name).sweep(backend, older_than)
