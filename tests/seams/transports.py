"""Brokers: their addresses, a sender and a receiver, and the content of folders."""

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

import pytest

from wbengine.engines.worker_based import proxy
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _broker as broker
from wbengine.transports import resolve
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._folder import folder_broker
from wbengine.transports._redis import redis_link

__all__ = [
    "FOLDERS",
    "KINDS",
    "LOG",
    "MAX_BATCH_BYTES",
    "Folder",
    "Side",
    "Site",
    "batch_bytes",
    "body",
    "connection",
    "declare",
    "declare_again",
    "lay_out",
    "unlimited_drain_time",
    "no_polling",
    "put_raw",
]

#: wbengine brokers, which all have the same guarantees.
KINDS: Final = ("memory", "filesystem", "redis")
#: Variants of folders, which differ in how they notice messages, and in the folder of a sender.
FOLDERS: Final = ("filesystem-polling", "filesystem-two-folders")

#: Logger of brokers in folders.
LOG: Final = "wbengine.transports._broker"

_numbers = itertools.count()


class OwnConnection:
    """A connection to a wbengine broker that is opened on first use."""

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
    """A consumer of a wbengine broker, which also publishes."""

    def __init__(self, connection: broker.Broker) -> None:
        super().__init__(connection, lambda message: self._handlers[message.queue](message))
        self.broker: Any = connection
        self._handlers: dict[str, Callable[[Any], object]] = {}

    def queue_declare(self, queue: str, exclusive: bool = False, **kwargs: Any) -> None:
        self.broker.declare_queue(queue, owned=exclusive)

    def queue_bind(self, queue: str, exchange: str, routing_key: str = "", **kwargs: Any) -> None:
        self.broker.bind(exchange, routing_key, queue)

    def publish(self, body: Any, exchange: str = "ex", routing_key: str = "k", **more: Any) -> bool:
        message = self.frame(body, exchange, routing_key, **more)
        return bool(next(iter(self.broker.publish_many([message]))))

    def frame(
        self,
        body: Any,
        exchange: str = "ex",
        routing_key: str = "k",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        priority: Any = None,
    ) -> Any:
        envelope = env.Envelope(
            "T", body, routing_key, correlation_id, reply_to, headers or {}, priority or 0
        )
        if isinstance(body, bytes):
            envelope._encoded = body
        message = OutgoingMessage(envelope)
        message.encode(exchange, self.broker.labels)
        return message

    def limit(self, count: int) -> None:
        """Set the maximum number of unsettled messages."""
        self.credit.limit = count
        self.broker.nudge()

    def subscribe(self, queue: str, handle: Callable[[Any], object]) -> None:
        """Consume also from this queue."""
        self._handlers[queue] = handle
        self.consume((queue,), self.credit.limit)

    def stop(self, queue: str) -> None:
        remaining = [each for each in self.queues if each != queue]
        self.cancel()
        self.consume(remaining, self.credit.limit)

    def get(self, queue: str, no_ack: bool = False) -> Any:
        """Get one message, like a consumer with room for one."""
        alone = broker.Consumer(self.broker, _unused)
        alone.consume((queue,), 1)
        self.broker.refresh()
        message = None
        while message is None and (taken := self.broker.take_many([(1, (queue,))])):
            if alone.hold(taken[0][1], [taken[0][1]]):
                message = taken[0][1]
        alone.cancel()
        if message is not None and no_ack:
            message.ack()
        return message


def _unused(message: Any) -> None:
    """Do nothing: the message is fetched, not consumed."""


def declare(channel: OwnChannel, queue: str = "", *keys: str) -> None:
    """Declare the exchange and, if it is named, a queue with these binding keys."""
    channel.broker.declare_exchange("ex")
    if queue:
        channel.queue_declare(queue)
    for key in keys:
        channel.queue_bind(queue, "ex", key)


def body(message: Any) -> Any:
    """Return the decoded body of a message."""
    return json.loads(message.body)


def connection(url: str, **options: Any) -> OwnConnection:
    """Return a connection that is not open yet."""
    return OwnConnection(resolve(url, None, options))


class Site:
    """A broker, and connections to it that are closed at the end.

    `url` is the address of a server; other brokers are in `folder`.
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
        elif kind == "filesystem-polling":
            options = {"inotify": False}
        elif kind == "filesystem-two-folders":
            options = {"data_folder_in": f"{folder}/a", "data_folder_out": f"{folder}/b"}
        self.url = url or f"filesystem://{folder}/a"
        self._target = resolve(self.url, None, options)
        # One side publishes to b and consumes from a, the other side does the reverse.
        back = {"data_folder_in": f"{folder}/b", "data_folder_out": f"{folder}/a"}
        two = kind == "filesystem-two-folders"
        self._peer_target = resolve(self.url, None, back) if two else self._target

    def connection(self, peer: bool = False) -> Any:
        """Return a connection that is not open and that the caller closes; `peer`: of the other
        side.
        """
        return OwnConnection(self._peer_target if peer else self._target)

    def connect(self, peer: bool = False) -> Any:
        connection = self.connection(peer)
        self._opened.append(connection)
        connection.connect()
        return connection

    def close(self) -> None:
        for connection in self._opened:
            connection.release()


class Side:
    """A sender and a receiver at `site` that share an exchange."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sender = site.connect(peer=True)
        self.receiver = site.connect()
        self.out = self.sender.channel()
        self.channel = self.receiver.channel()
        declare(self.channel)
        declare(self.out)
        #: Bodies of received messages, and the messages.
        self.got: list[Any] = []
        self.messages: list[Any] = []

    def queue(self, name: str, *keys: str) -> None:
        """Declare a queue with these binding keys."""
        declare(self.channel, name, *keys)

    def fill(self, count: int) -> None:
        """Declare the queue `q`, and publish this many numbers to it with the key `k`."""
        self.queue("q", "k")
        for number in range(count):
            self.send(number, "k")

    def send(self, body: Any, key: str, exchange: str = "ex", **more: Any) -> Any:
        """Publish a message. Return whether a queue received it."""
        return self.out.publish(body, exchange=exchange, routing_key=key, **more)

    def consume(
        self,
        *names: str,
        on: Callable[[Any], None] | None = None,
        ack: bool = True,
        prefetch: int = 0,
    ) -> None:
        """Consume from these queues, the first one with precedence."""

        def receive(message: Any) -> None:
            self.got.append(body(message))
            self.messages.append(message)
            if ack:
                message.ack()

        self.channel.limit(prefetch)
        for name in names:
            self.channel.subscribe(name, on or receive)

    def drain(self, count: int = 1, timeout: float = 60) -> list[Any]:
        """Receive until `count` messages have arrived."""
        end = time.monotonic() + timeout
        while len(self.got) < count:
            self.receiver.drain_events(timeout=max(0.0, end - time.monotonic()))
        return self.got

    def take(self, queue: str, timeout: float = 60) -> Any:
        """Return one message without acknowledging it."""
        end = time.monotonic() + timeout
        while (message := self.channel.get(queue)) is None:
            assert time.monotonic() < end, f"nothing comes into {queue}"
        return message

    def assert_no_message(self) -> None:
        with pytest.raises(TimeoutError):
            self.receiver.drain_events(timeout=0.05)


def put_raw(connection: Any, queue: str, data: bytes) -> bool:
    """Put bytes into a queue without validation. Return False if the queue does not exist."""
    (put,) = connection.broker.publish_many([broker.Frame("", queue, 0, data)])
    return bool(put)


def lay_out(head: dict[str, Any], body: bytes = b"{}", without: tuple[str, ...] = ()) -> bytes:
    """Return a stored message whose head has these changes and omissions."""
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
    header = {name: value for name, value in whole.items() if name not in without}
    return json.dumps(header).encode() + b"\n" + body


@contextlib.contextmanager
def unlimited_drain_time() -> Iterator[None]:
    """Let consumers receive all messages in one iteration, however long that takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_MAX_DRAIN_SECONDS", 60.0)
        yield


class Folder:
    """A broker folder, accessed through its database file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        if not (self._root / "wbengine.db").exists():
            return []
        opened = sqlite3.connect(self._root / "wbengine.db", timeout=30)
        with contextlib.closing(opened) as connection, connection:
            return connection.execute(statement, values).fetchall()

    @property
    def queues(self) -> list[str]:
        """Return the names of its queues."""
        return [name for (name,) in self._ask("SELECT name FROM queue ORDER BY name")]

    def messages(self, queue: str) -> list[bytes]:
        """Return the data of the messages in a queue, including unacknowledged ones, in order."""
        which = "FROM message WHERE queue = ? ORDER BY place, n"
        rows = self._ask(f"SELECT {folder_broker._DATA} {which}", queue)
        return [data for (data,) in rows]

    def put(self, queue: str, data: bytes) -> None:
        """Put bytes into a queue without validation."""
        self._ask(
            "INSERT INTO message(queue, place, at, data) VALUES (?, 9, ?, ?)",
            queue, time.monotonic(), data,
        )  # fmt: skip

    def leave_unused(self, seconds: float) -> None:
        """Make all queues and messages older, and let the next process that opens it delete stale
        queues.
        """
        self._ask("UPDATE queue SET used = used - ?", seconds)
        self._ask("UPDATE message SET at = at - ?", seconds)
        self._ask("UPDATE about SET queues_swept = queues_swept - 7200")

    def boot(self) -> None:
        """Simulate a reboot of the host since the last use."""
        self._ask("UPDATE about SET boot = 'another'")

    @property
    def rejected(self) -> list[Path]:
        """Return the files of messages that could not be read."""
        return sorted((self._root / "rejected").glob("*"))

    @property
    def holders(self) -> list[str]:
        """Return the entries of the processes that consume messages."""
        return os.listdir(self._root / "holders")

    @property
    def claims(self) -> list[int]:
        """Return the connections that can own messages."""
        return [base for (base,) in self._ask("SELECT base FROM connection")]

    def left(self, ended: bool = True) -> list[str]:
        """Return objects that must not remain after all flows ended.

        :param ended: all workers ended, too.
        """
        texts = [f"message in {queue}" for (queue,) in self._ask("SELECT queue FROM message")]
        texts += [str(path) for path in self.rejected]
        if ended:
            texts += [f"connection {base}" for base in self.claims]
            texts += [f"holder {path.name}" for path in (self._root / "holders").glob("*")]
        return texts


@contextlib.contextmanager
def no_polling() -> Iterator[None]:
    """Let a Redis consumer that misses a wake-up wait for a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_link, "POLL_SECONDS", 60)
        yield


def batch_bytes(process: proxy.Proxy) -> int:
    """Return the size in bytes of the messages that a process has received and not handled yet."""
    receiver: Any = process.consumer._receiver
    if process.target.is_native:
        ready = [taken for each in receiver.link.consumers for taken in each.ready]
        return sum(len(taken.data or b"") + len(taken.body) for taken in ready)
    return int(receiver.link._inbox_bytes) if process.target.amqp else 0


def declare_again(process: proxy.Proxy) -> None:
    """Make a process declare its queues soon, and wait for the broker's answers."""
    receiver: Any = process.consumer._receiver
    process.consumer.call_soon(receiver._declare)
