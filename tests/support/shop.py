"""A database of a user, and tasks with transactions in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from wbengine import databases, task
from wbengine._sql import connection_options

NAME = "shop"

#: Called by `charge` after its effect, with its connection.
during: list[Callable[[sa.Connection], object]] = []


class Shop:
    """The database: a table of effects, each with the number of an order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = connection_options.parse(url).dialect
        # Forked processes must not inherit connections.
        self.engine = sa.create_engine(connection_options.parse(url).url, poolclass=sa.NullPool)
        with self.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE effects (number INTEGER)"))
        databases.register(NAME, url)

    def close(self) -> None:
        self.engine.dispose()
        databases.register(NAME, "sqlite://")
        during.clear()

    def effects(self) -> list[int]:
        return [row[0] for row in self._rows("SELECT number FROM effects ORDER BY number")]

    def rows(self, action: str = "execute") -> list[int]:
        """Return the execution of each row for steps with this action."""
        statement = f"SELECT execution FROM wbe_steps WHERE action = '{action}' ORDER BY execution"
        return [row[0] for row in self._rows(statement)]

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement))

    def _rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text(statement)))


def add_effect(connection: sa.Connection, number: int) -> None:
    connection.execute(sa.text("INSERT INTO effects VALUES (:number)"), {"number": number})


@task.task(transaction=NAME, provides="receipt")
def charge(connection: sa.Connection, order: int) -> tuple[str, int]:
    add_effect(connection, order)
    for call in during:
        call(connection)
    return "paid", order


@charge.revert
def refund(connection: sa.Connection, order: int, result: Any) -> str:
    assert result == ("paid", order), result
    connection.execute(sa.text("DELETE FROM effects WHERE number = :number"), {"number": order})
    add_effect(connection, -order)
    return "refunded"


class Note(task.Task):
    """A task with a transaction, written as a class."""

    transaction = NAME
    default_provides = "note"

    def execute(self, connection: sa.Connection, order: int) -> str:
        add_effect(connection, order)
        return f"order {order}"

    def revert(self, connection: sa.Connection, order: int, result: Any) -> None:
        add_effect(connection, -order)


class Declined(Exception):
    """The failure of `fail`."""


@task.task
def fail(order: int) -> None:
    raise Declined
