"""Connections of engines and workers to queues in a database, for tests of its transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support import servers
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _encoding, _ledger, resolve
from wbengine.transports._broker import Delivery, Finish, Frame
from wbengine.transports._sql.sql_broker import SQLBroker
from wbengine.transports._sql.sql_session import Place

DEAD_AFTER_SECONDS = 10.0


class Database:
    """A database with a ledger, and connections of workers and engines to it."""

    def __init__(self, server: servers.Server, url: str) -> None:
        self.server = server
        self.url = url
        self.stack = contextlib.ExitStack()
        ledger = ledgers.choose(None, resolve(url))
        assert ledger is not None
        self.ledger: _ledger.Ledger = ledger
        self.stack.callback(ledger.close)
        self.admin = self.stack.enter_context(contextlib.closing(self.connect(autocommit=True)))

    def connect(self, **options: Any) -> Any:
        """Return a connection of the driver."""
        if self.server.kind == "postgresql":
            import psycopg

            return psycopg.connect(self.url, **options)
        import pymysql

        name = self.url.rpartition("/")[2]
        return pymysql.connect(
            host="127.0.0.1", port=self.server.port, user=servers.USER,
            password=self.server.password, database=name, **options,
        )  # fmt: skip

    def open(self, holder: str = "", url: str = "") -> SQLBroker:
        """Connect as this worker, or as an engine, with the queues `q` and `answers`."""
        target = resolve(url or self.url, None, {"dead_after": DEAD_AFTER_SECONDS})
        target.rows.ledger, target.rows.holder = self.ledger, holder
        if holder:
            self.ledger.renew(holder)
        broker = target.open()
        assert isinstance(broker, SQLBroker)
        self.stack.callback(broker.close)
        for queue in ("q", "answers"):
            broker.declare_queue(queue)
        return broker

    @property
    def place(self) -> Place:
        return Place.parse(self.url)

    def put(self, broker: SQLBroker, *ids: str) -> None:
        """Open rows and publish their requests."""
        for id in ids:
            self.ledger.open(id, 1)
            headers = {"wbe-ledger": self.ledger.digest, "wbe-epoch": 1}
            assert publish(broker, _encoding.label(f"{id}?".encode(), headers, id))

    def ask(self, statement: str, *values: Any) -> list[Any]:
        with contextlib.closing(self.admin.cursor()) as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []

    def messages(self) -> list[tuple[str | None, bool]]:
        """Return of each message the name of its consumer, and whether it is redelivered."""
        rows = self.ask("SELECT consumer, again FROM wbe_messages ORDER BY n")
        return [(consumer or None, bool(again)) for consumer, again in rows]


@contextlib.contextmanager
def new_database(server: servers.Server) -> Iterator[Database]:
    with server.database() as url:
        database = Database(server, url)
        with database.stack:
            yield database


def publish(broker: SQLBroker, data: bytes, queue: str = "q") -> bool:
    return next(iter(broker.publish_many([Frame("", queue, 0, data)])))


def take(broker: SQLBroker) -> list[Delivery]:
    broker.watch("q")
    broker.refresh()
    messages = [message for _, message in broker.take_many([(10, ["q"])])]
    broker.unwatch("q")
    return messages


def finish(message: Delivery) -> Sequence[Finish]:
    return [Finish("a", 1, message, Frame("", "answers", 0, b"done"))]
