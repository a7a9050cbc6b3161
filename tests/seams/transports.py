"""Brokers: how each kind is reached, what a sender and a receiver do there, and what lies in a
folder that is one.

All of it goes through kombu's public interface, as everything does that is given a transport.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import kombu
import pytest

from wbengine.transports import _base, resolve

__all__ = [
    "ALL",
    "FOLDERS",
    "KINDS",
    "LOG",
    "REACHED",
    "Folder",
    "Side",
    "Site",
    "lay_out",
    "long_turns",
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
LOG: Final = "wbengine.transports.filesystem"

_numbers = itertools.count()


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
        return (self._peer_target if peer else self._target).connect()

    def connect(self, peer: bool = False) -> Any:
        connection = self.connection(peer)
        self._opened.append(connection)
        connection.connect()
        return connection

    def close(self) -> None:
        for connection in self._opened:
            connection.release()


class Side:
    """A sender and a receiver that meet at `site`, over an exchange of a kind."""

    def __init__(self, site: Site, kind: str = "topic") -> None:
        self.site = site
        self.sender = site.connect(peer=True)
        self.receiver = site.connect()
        self.out = self.sender.channel()
        self.channel = self.receiver.channel()
        self.exchange = kombu.Exchange("ex", type=kind)
        self.exchange(self.channel).declare()
        self.exchange(self.out).declare()
        #: What came, and with what.
        self.got: list[Any] = []
        self.messages: list[Any] = []

    def queue(self, name: str, *keys: str) -> None:
        """Declare it, bound by these keys."""
        bindings = [kombu.binding(self.exchange, routing_key=key) for key in keys]
        # Ours have priorities without a word.
        most = 9 if self.site.kind == "rabbitmq" else None
        kombu.Queue(name, bindings=bindings, max_priority=most)(self.channel).declare()

    def send(self, body: Any, key: str, exchange: str = "ex", **more: Any) -> Any:
        """Ours say whether it came into any queue."""
        producer = kombu.Producer(self.out, auto_declare=False, serializer="json")
        return producer.publish(body, exchange=exchange, routing_key=key, **more)

    def consume(
        self,
        *names: str,
        on: Callable[[Any], None] | None = None,
        ack: bool = True,
        prefetch: int = 0,
    ) -> None:
        """Begin to take from these queues, the first one first."""

        def receive(message: Any) -> None:
            self.got.append(message.decode())
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
    transport = connection.transport
    assert isinstance(transport, _base.Transport)
    return transport.store.put(queue, 0, data)


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
        patch.setattr(_base, "_TURN", 60.0)
        yield


class Folder:
    """A folder that is a broker, as one sees it who looks into it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def queue(self, name: str) -> Path:
        """Where the messages of a queue are."""
        return self._root / "queues" / name

    def message(self, queue: str, number: int = 0) -> Path:
        """Where a message would be that was put there `number` nanoseconds from now."""
        return self.queue(queue) / f"9{time.time_ns() + number:020d}.0123456789ab"

    def leave_unused(self, seconds: float) -> None:
        """Nobody used its queues for so long; who opens it next looks which of them are stale."""
        times = [(path, seconds) for path in (self._root / "queues").iterdir()]
        for path, age in [*times, (self._root / "swept", 2 * 3600.0)]:
            then = path.stat().st_mtime - age
            os.utime(path, (then, then))

    @property
    def rejected(self) -> list[Path]:
        """What was put aside, as nobody could read it."""
        return sorted((self._root / "rejected").iterdir())

    @property
    def unfinished(self) -> list[str]:
        """Messages that are being written."""
        return os.listdir(self._root / "temp")

    @property
    def spares(self) -> Path:
        """Where files are that will be messages again."""
        return self._root / "spare"

    @property
    def files_at_hand(self) -> list[Path]:
        return [path for name in ("spare", "temp") for path in (self._root / name).iterdir()]

    @property
    def holders(self) -> list[str]:
        """Those who take messages."""
        return os.listdir(self._root / "holders")

    @property
    def claims(self) -> list[str]:
        """Those of whom there is something that they hold, or held."""
        return os.listdir(self._root / "claims")
