"""The brokers of chaos tests: servers behind a proxy, or folders. They can fail, and report their
remaining content.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crashing import workers as folders
from tests.support import brokers, tcp_proxy

#: Beginning of the ids of ledger rows that exclude earlier runs of a resumed flow.
FENCE = "fence-"

KINDS = ("redis", "amqp", "postgresql", "mysql", "filesystem")


@dataclass(frozen=True)
class Left:
    """A remaining object, and whether it expires."""

    what: str
    expires: bool = False


class Medium:
    """A broker. `url` is the address for engines and workers. Folders have no `broker` and no
    `proxy`.
    """

    def __init__(
        self, url: str, broker: brokers.Broker | None = None, proxy: tcp_proxy.Proxy | None = None
    ) -> None:
        self.url = url
        self.broker = broker
        self.proxy = proxy

    def mend(self) -> None:
        """End all faults."""
        if self.broker is not None:
            self.broker.mend()
        if self.proxy is not None:
            self.proxy.accept()
            self.proxy.resume()

    def left(self) -> list[Left]:
        """Return objects that must not remain after all flows ended and all workers stopped."""
        if isinstance(self.broker, brokers.Redis):
            return keys(self.broker)
        if isinstance(self.broker, brokers.Rabbitmq):
            return _queues(self.broker)
        if isinstance(self.broker, brokers.Database):
            return _rows(self.broker)
        folder = Path(self.url.partition("://")[2])
        return [Left(what) for what in [*folders.left_in(folder), *folders.reply_queues(folder)]]


def keys(broker: brokers.Redis) -> list[Left]:
    """Return the remaining keys. Ledger rows must be deleted with their flow, except fences of
    resumed flows, which are swept later.
    """
    left = broker.left()
    has_rows = any(re.search(rf"}}:r:(?!{FENCE})", key) for key in left)
    with broker.client() as client:
        return [Left(key, _expires(client, key, has_rows)) for key in left]


def _expires(client: Any, key: str, has_rows: bool) -> bool:
    if key.endswith("}:rows"):
        return not has_rows
    if "}:r:" in key:
        return f"}}:r:{FENCE}" in key
    return bool(client.ttl(key) > 0)


def _queues(broker: brokers.Rabbitmq) -> list[Left]:
    """Return the remaining queues and exchanges. An exchange does not expire, and cannot be deleted
    while a queue is bound to it.
    """
    queues = [
        Left(f"queue {queue['name']}", "x-expires" in queue["arguments"])
        for queue in broker.queues()
    ]
    others = [what for what in broker.left() if not what.startswith("queue ")]
    return [*queues, *(Left(what, bool(queues)) for what in others)]


def _rows(broker: brokers.Database) -> list[Left]:
    """Return the tables with remaining rows. Messages expire with the queues of their owners."""
    lasting = (
        "SELECT count(*) FROM wbe_messages JOIN wbe_queues q ON q.name = queue WHERE NOT q.owned"
        " AND coalesce(consumer, '') = ''"
    )
    [(messages,)] = broker.ask(lasting)
    [(rows,)] = broker.ask(f"SELECT count(*) FROM wbe_ledger WHERE id NOT LIKE '{FENCE}%'")
    return [
        Left(
            what, not (rows and "wbe_ledger" in what) and not (messages and "wbe_messages" in what)
        )
        for what in broker.left()
    ]


_SERVERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[brokers.Broker]]] = {
    # With this setting, completed writes survive a kill of the server.
    "redis": functools.partial(brokers.redis, appendfsync="always"),
    "amqp": brokers.rabbitmq,
    **{kind: functools.partial(brokers.database, kind) for kind in ("postgresql", "mysql")},
}


@contextlib.contextmanager
def medium(kind: str, folder: Path) -> Iterator[Medium]:
    """Run a private broker that is deleted afterwards."""
    if kind == "filesystem":
        yield Medium(f"filesystem://{folder / 'broker'}")
        return
    with _SERVERS[kind]() as broker, tcp_proxy.forked(broker.port) as proxy:
        url = broker.url().replace(f":{broker.port}/", f":{proxy.port}/")
        yield Medium(url, broker, proxy)
