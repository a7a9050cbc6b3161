"""What carries the messages: brokers behind a proxy, or folders; how they are hurt, and what is
left in them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crashing import workers as folders
from tests.support import brokers, tcp_proxy

KINDS = ("redis", "amqp", "filesystem")


@dataclass(frozen=True)
class Left:
    """Something that is left; whether it is gone some day if nobody comes back for it."""

    what: str
    expires: bool = False


class Medium:
    """`url` is what engines and workers are told.  `broker` and `proxy`: None for folders."""

    def __init__(
        self, url: str, broker: brokers.Broker | None = None, proxy: tcp_proxy.Proxy | None = None
    ) -> None:
        self.url = url
        self.broker = broker
        self.proxy = proxy

    def mend(self) -> None:
        """All is well again, whatever was done to it."""
        if self.broker is not None:
            self.broker.mend()
        if self.proxy is not None:
            self.proxy.accept()
            self.proxy.resume()

    def left(self) -> list[Left]:
        """What flows that came to their end must not leave, once all workers have stopped."""
        if isinstance(self.broker, brokers.Redis):
            return keys(self.broker)
        if isinstance(self.broker, brokers.Rabbitmq):
            return _queues(self.broker)
        folder = Path(self.url.partition("://")[2])
        return [Left(what) for what in [*folders.left_in(folder), *folders.reply_queues(folder)]]


def keys(broker: brokers.Redis) -> list[Left]:
    """Rows of the ledger are there for flows alone, so they must not wait until they expire."""
    with broker.client() as client:
        return [
            Left(key, client.ttl(key) > 0 and not re.search(r"}:(r:|rows$)", key))
            for key in broker.left()
        ]


def _queues(broker: brokers.Rabbitmq) -> list[Left]:
    """An exchange cannot expire; one to which something is bound cannot be removed."""
    queues = [
        Left(f"queue {queue['name']}", "x-expires" in queue["arguments"])
        for queue in broker.queues()
    ]
    others = [what for what in broker.left() if not what.startswith("queue ")]
    return [*queues, *(Left(what, bool(queues)) for what in others)]


@contextlib.contextmanager
def redis() -> Iterator[Medium]:
    # What was told to be done is done, whatever becomes of the server.
    with brokers.redis(appendfsync="always") as broker, tcp_proxy.forked(broker.port) as proxy:
        yield Medium(_through(broker, proxy), broker, proxy)


@contextlib.contextmanager
def amqp() -> Iterator[Medium]:
    with brokers.rabbitmq() as broker, tcp_proxy.forked(broker.port) as proxy:
        yield Medium(_through(broker, proxy), broker, proxy)


@contextlib.contextmanager
def filesystem(folder: Path) -> Iterator[Medium]:
    yield Medium(f"filesystem://{folder}")


def medium(kind: str, folder: Path) -> contextlib.AbstractContextManager[Medium]:
    """One that is there for nobody else, and gone afterwards."""
    if kind == "filesystem":
        return filesystem(folder / "broker")
    return redis() if kind == "redis" else amqp()


def _through(broker: brokers.Broker, proxy: tcp_proxy.Proxy) -> str:
    return broker.url().replace(f":{broker.port}/", f":{proxy.port}/")
