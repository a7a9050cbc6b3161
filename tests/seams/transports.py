"""Brokers: how each kind is reached, what a sender and a receiver do there, and what lies in a
folder that is one.

What tests say to all of them is what one says to a channel of kombu's; ours are `Broker`s, to which
an `OwnChannel` says it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import kombu
import pytest

from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports import broker, filesystem, resolve

__all__ = [
    "ALL",
    "FOLDERS",
    "KINDS",
    "LOG",
    "REACHED",
    "Folder",
    "Side",
    "Site",
    "body",
    "connection",
    "declare",
    "lay_out",
    "long_turns",
    "producer",
    "put_raw",
]

#: Ours: all promise the same.
KINDS: Final = ("memory", "filesystem", "filesystem-polling", "filesystem-two-folders", "redis")
FOLDERS: Final = ("filesystem", "filesystem-polling")
#: Those of ours, and RabbitMQ, to which kombu's own transport speaks.
ALL: Final = (*KINDS, "rabbitmq")
#: Those that other processes reach by their URL.
REACHED: Final = (*FOLDERS, "redis")

#: What brokers in folders say.
LOG: Final = "wbengine.transports.broker"

_numbers = itertools.count()


class OwnConnection:
    """A connection to a broker of ours, made when it is first used."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._broker: broker.Broker | None = None

    @property
    def broker(self) -> Any:
        if self._broker is None:
            self._broker = self._target.open()
        return self._broker

    def __enter__(self) -> OwnConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def connect(self) -> None:
        _ = self.broker

    @property
    def recoverable_connection_errors(self) -> Any:
        return self.broker.recoverable_connection_errors

    def channel(self) -> OwnChannel:
        return OwnChannel(self.broker)

    def drain_events(self, timeout: float | None = None) -> None:
        self.broker.drain(timeout)

    def wake(self) -> None:
        self.broker.wake()

    def release(self) -> None:
        opened, self._broker = self._broker, None
        if opened is not None:
            opened.release()


class OwnChannel(broker.Consumer):
    """A consumer of ours, and what kombu's producers and entities want of a channel."""

    def __init__(self, connection: broker.Broker) -> None:
        super().__init__(connection, lambda message: self._calls[message.origin.queue](message))
        self.broker: Any = connection
        self._calls: dict[str, Callable[[Any], object]] = {}
        self._names: dict[str, str] = {}
        self._alone: list[broker.Consumer] = []

    def exchange_declare(self, exchange: str, type: str = "topic", **kwargs: Any) -> None:
        assert type == "topic", "ours have no others"
        self.broker.declare_exchange(exchange)

    def queue_declare(self, queue: str, exclusive: bool = False, **kwargs: Any) -> None:
        self.broker.declare_queue(queue, owned=exclusive)

    def queue_bind(self, queue: str, exchange: str, routing_key: str = "", **kwargs: Any) -> None:
        self.broker.bind(exchange, routing_key, queue)

    def queue_unbind(self, queue: str, exchange: str, routing_key: str = "", **kw: Any) -> None:
        self.broker.unbind(exchange, routing_key, queue)

    def queue_delete(self, queue: str, **kwargs: Any) -> int:
        return int(self.broker.delete_queue(queue))

    def queue_purge(self, queue: str) -> int:
        return int(self.broker.purge(queue))

    def publish(self, body: Any, exchange: str = "ex", routing_key: str = "k", **more: Any) -> bool:
        made = self.lay_out(body, exchange, routing_key, **more)
        return bool(next(iter(self.broker.publish_many([made]))))

    def lay_out(
        self,
        body: Any,
        exchange: str = "ex",
        routing_key: str = "k",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        priority: Any = None,
    ) -> Any:
        made = env.Envelope(
            "T", body, routing_key, correlation_id, reply_to, headers or {}, priority or 0
        )
        if isinstance(body, bytes):
            made._encoded = body
        return self.broker.lay_out(made, exchange)

    def basic_qos(self, size: int, prefetch: int, apply_global: bool) -> None:
        self.limit(prefetch)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str
    ) -> None:
        self._calls[queue] = callback
        self._names[consumer_tag] = queue
        self.consume((queue,), self.room.limit)

    def basic_cancel(self, consumer_tag: str) -> None:
        gone = self._names.pop(consumer_tag)
        left = [queue for queue in self.queues if queue != gone]
        self.cancel()
        self.consume(left, self.room.limit)

    def basic_get(self, queue: str, no_ack: bool = False) -> Any:
        """One message, taken as a consumer does that has room for one."""
        alone = broker.Consumer(self.broker, _unused)
        self._alone.append(alone)
        alone.consume((queue,), 1)
        self.broker.refresh()
        found = None
        while found is None and (taken := self.broker.take_many([(1, (queue,))])):
            found = alone.hold(taken[0][1], [taken[0][1]])
        alone.cancel()
        if found is not None and no_ack:
            found.ack()
        return found

    def basic_recover(self, requeue: bool) -> None:
        for each in (self, *self._alone):
            for tag in tuple(each.room.held):
                each.reject(tag, requeue)


def _unused(message: Any) -> None:
    """It is got, not consumed."""


def declare(channel: Any, queue: str = "", *keys: str) -> None:
    """Declare the exchange, and if it is named a queue, bound by these keys."""
    if isinstance(channel, OwnChannel):
        channel.exchange_declare("ex")
        if queue:
            channel.queue_declare(queue)
        for key in keys:
            channel.queue_bind(queue, "ex", key)
        return
    exchange = kombu.Exchange("ex", type="topic")
    exchange(channel).declare()
    if queue:
        bindings = [kombu.binding(exchange, routing_key=key) for key in keys]
        # Ours have priorities without a word.
        kombu.Queue(queue, bindings=bindings, max_priority=9)(channel).declare()


def producer(channel: Any) -> Any:
    """What publishes on a channel."""
    if isinstance(channel, OwnChannel):
        return channel
    return kombu.Producer(channel, auto_declare=False, serializer="json")


def body(message: Any) -> Any:
    """What is in a message."""
    decode = getattr(message, "decode", None)
    return json.loads(message.body) if decode is None else decode()


def connection(url: str, **options: Any) -> Any:
    """A connection that is not made yet."""
    return _connection(resolve(url, None, options))


def _connection(target: Any) -> Any:
    return OwnConnection(target) if target.ours else target.connect()


class Site:
    """A broker, and connections to it that are closed at the end.

    `url` is where that of a server is; others are below `folder`.
    """

    def __init__(self, kind: str, folder: Path, url: str | None = None) -> None:
        self.kind = kind
        self.folder = Folder(folder / "a")
        self._opened: list[Any] = []
        options: dict[str, Any] = {}
        if kind == "memory":
            url = f"memory://site-{next(_numbers)}"
        elif kind == "redis":
            options = {"dead_after": 2.0}
        elif kind == "rabbitmq":
            options = {"confirm_publish": True}
        elif kind == "filesystem-polling":
            options = {"inotify": False}
        elif kind == "filesystem-two-folders":
            options = {"data_folder_in": f"{folder}/a", "data_folder_out": f"{folder}/b"}
        self.url = url or f"filesystem://{folder}/a"
        self._target = resolve(self.url, None, options)
        # Who publishes into b and consumes from a meets who does the reverse.
        back = {"data_folder_in": f"{folder}/b", "data_folder_out": f"{folder}/a"}
        two = kind == "filesystem-two-folders"
        self._peer_target = resolve(self.url, None, back) if two else self._target

    def connection(self, peer: bool = False) -> Any:
        """A connection that is not made yet, and is the caller's; `peer`: of the other side."""
        return _connection(self._peer_target if peer else self._target)

    def connect(self, peer: bool = False) -> Any:
        connection = self.connection(peer)
        self._opened.append(connection)
        connection.connect()
        return connection

    def close(self) -> None:
        for connection in self._opened:
            connection.release()


class Side:
    """A sender and a receiver that meet at `site`, over an exchange."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sender = site.connect(peer=True)
        self.receiver = site.connect()
        self.out = self.sender.channel()
        self.channel = self.receiver.channel()
        declare(self.channel)
        declare(self.out)
        #: What came, and with what.
        self.got: list[Any] = []
        self.messages: list[Any] = []

    def queue(self, name: str, *keys: str) -> None:
        """Declare it, bound by these keys."""
        declare(self.channel, name, *keys)

    def send(self, body: Any, key: str, exchange: str = "ex", **more: Any) -> Any:
        """Ours say whether it came into any queue."""
        return producer(self.out).publish(body, exchange=exchange, routing_key=key, **more)

    def consume(
        self,
        *names: str,
        on: Callable[[Any], None] | None = None,
        ack: bool = True,
        prefetch: int = 0,
    ) -> None:
        """Begin to take from these queues, the first one first."""

        def receive(message: Any) -> None:
            self.got.append(body(message))
            self.messages.append(message)
            if ack:
                message.ack()

        self.channel.basic_qos(0, prefetch, False)
        for name in names:
            consume(self.channel, name, on or receive, f"c-{name}")

    def drain(self, count: int = 1, timeout: float = 60) -> list[Any]:
        """Until so many messages came."""
        end = time.monotonic() + timeout
        while len(self.got) < count:
            self.receiver.drain_events(timeout=max(0.0, end - time.monotonic()))
        return self.got

    def take(self, queue: str, timeout: float = 60) -> Any:
        """One message, which is not acknowledged yet."""
        end = time.monotonic() + timeout
        while (message := self.channel.basic_get(queue)) is None:
            assert time.monotonic() < end, f"nothing comes into {queue}"
        return _read(self.channel, message)

    def nothing_comes(self) -> None:
        with pytest.raises(TimeoutError):
            self.receiver.drain_events(timeout=0.05)


def consume(channel: Any, queue: str, call: Callable[[Any], None], tag: str) -> None:
    """Begin to take from a queue."""
    channel.basic_consume(
        queue=queue,
        no_ack=False,
        callback=lambda message: call(_read(channel, message)),
        consumer_tag=tag,
    )


def _read(channel: Any, message: Any) -> Any:
    """A message as kombu has it; ours are so from the beginning."""
    read = getattr(channel, "message_to_python", None)
    return message if read is None else read(message)


def put_raw(connection: Any, queue: str, data: bytes) -> bool:
    """Put bytes into a queue of ours past all that would refuse them; False: there is none."""
    (put,) = connection.broker.publish_many([("", queue, 0, data, b"")])
    return bool(put)


def lay_out(head: dict[str, Any], body: bytes = b"{}", without: tuple[str, ...] = ()) -> bytes:
    """A message as ours keep it, with some of its head changed, or left out."""
    whole = {
        "v": 1,
        "exchange": "ex",
        "routing_key": "k",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {},
        "headers": {},
        "size": len(body),
        **head,
    }
    kept = {name: value for name, value in whole.items() if name not in without}
    return json.dumps(kept).encode() + b"\n" + body


@contextlib.contextmanager
def long_turns() -> Iterator[None]:
    """Whoever drains takes all there is, however long that takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_TURN", 60.0)
        yield


class Folder:
    """A folder that is a broker, as one sees it who looks into its file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        if not (self._root / "wbengine.db").exists():
            return []
        opened = sqlite3.connect(self._root / "wbengine.db", 30)
        with contextlib.closing(opened) as connection, connection:
            return connection.execute(statement, values).fetchall()

    @property
    def queues(self) -> list[str]:
        """Its queues."""
        return [name for (name,) in self._ask("SELECT name FROM queue ORDER BY name")]

    def messages(self, queue: str) -> list[bytes]:
        """What is in a queue, or was taken out and is not settled, in its order."""
        which = "FROM message WHERE queue = ? ORDER BY place, n"
        found = self._ask(f"SELECT {filesystem._DATA} {which}", queue)
        return [data for (data,) in found]

    def put(self, queue: str, data: bytes) -> None:
        """Put bytes into a queue past all that would refuse them."""
        self._ask(
            "INSERT INTO message(queue, place, at, data) VALUES (?, 9, ?, ?)",
            queue, time.monotonic(), data,
        )  # fmt: skip

    def leave_unused(self, seconds: float) -> None:
        """Nobody used its queues for so long; who opens it next looks which of them are stale."""
        self._ask("UPDATE queue SET used = used - ?", seconds)
        self._ask("UPDATE message SET at = at - ?", seconds)
        self._ask("UPDATE about SET queues_swept = queues_swept - 7200")

    def boot(self) -> None:
        """The host was booted since it was used last."""
        self._ask("UPDATE about SET boot = 'another'")

    @property
    def rejected(self) -> list[Path]:
        """What was put aside, as nobody could read it."""
        return sorted((self._root / "rejected").glob("*"))

    @property
    def holders(self) -> list[str]:
        """Those who take messages."""
        return os.listdir(self._root / "holders")

    @property
    def claims(self) -> list[int]:
        """Those of whom there may be something that they hold."""
        return [base for (base,) in self._ask("SELECT base FROM connection")]

    def left(self, ended: bool = True) -> list[str]:
        """What flows that came to their end must not leave; `ended`: nor workers that did."""
        found = [f"message in {queue}" for (queue,) in self._ask("SELECT queue FROM message")]
        found += [str(path) for path in self.rejected]
        if ended:
            found += [f"connection {base}" for base in self.claims]
            found += [f"holder {path.name}" for path in (self._root / "holders").glob("*")]
        return found
