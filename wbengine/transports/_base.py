"""What our own kombu transports share: channels, prefetch, acknowledgement, the drain loop.

A transport of ours is a `Store` (where messages, queues and bindings are kept) below the `Channel`
and `Transport` of this module.  Each connection has one store.

Order: consumers are served in the order of `basic_consume`, the first queue is emptied first;
within a queue priority 9 comes first, then first in, first out per publisher.  Threads: one thread
drains a connection.  Publishing, acknowledging, rejecting and `wake()` are allowed from any
thread.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from wbengine.transports import _envelope, _routing
from wbengine.transports._store import Store, Taken, label


class _Consumer:
    __slots__ = ("callback", "no_ack", "queue", "tag")

    def __init__(
        self, tag: str, queue: str, no_ack: bool, callback: Callable[[Any], object]
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.callback = callback


def _not_found(what: str, name: str) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", (50, 10), "", "404")


class Channel(virtual.Channel):  # type: ignore[misc]
    """A kombu channel over a `Store`.

    At most `prefetch_count` messages are delivered and not yet acknowledged (0: no limit).  What is
    not acknowledged when the channel closes goes back to its queue, marked as redelivered.
    `auto_delete` and queue arguments are accepted and have no effect.
    """

    Message = _envelope.Message

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.closed: bool = False
        self._store: Store = connection.store
        self._serving: dict[str, _Consumer] = {}
        self._unacked: dict[int, Taken] = {}
        self._tags = itertools.count(1)
        self._closing = threading.Lock()
        self.prefetch_count = 0

    # -- declaring

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; ChannelError for an unknown kind or one declared as another kind."""
        kind = type or _routing.DIRECT
        name = label("exchange", exchange or f"amq.{kind}")
        there = self._store.exchange_kind(name)
        if there is None and passive:
            raise _not_found("exchange", name)
        if passive or there == kind:
            return
        if kind not in _routing.KINDS:
            raise ChannelError(
                f"COMMAND_INVALID - exchange {name!r}: kind {kind!r} is not one of "
                f"{', '.join(_routing.KINDS)}", (40, 10), "", "503",
            )  # fmt: skip
        if there is not None:
            raise ChannelError(
                f"PRECONDITION_FAILED - exchange {name!r} is {there}, not {kind}",
                (40, 10), "", "406",
            )  # fmt: skip
        self._store.declare_exchange(name, kind)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings; queues stay."""
        self._store.delete_exchange(label("exchange", exchange))

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue; with `passive` only look (ChannelError 404 when it is not there).

        One that is `exclusive` is deleted when this process dies.  It outlives the connection, so
        that a process which connects again finds what came meanwhile.
        """
        name = label("queue", queue or f"amq.gen-{uuid()}")
        if not passive:
            self._store.declare_queue(name)
            if exclusive:
                self._store.own(name)
        elif not self._store.has_queue(name):
            raise _not_found("queue", name)
        return queue_declare_ok_t(name, self._store.size(name), 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue; ChannelError 404 when the exchange or the queue is not there."""
        name = label("exchange", exchange or "amq.direct")
        if self._store.exchange_kind(name) is None:
            if exchange:
                raise _not_found("exchange", name)
            self._store.declare_exchange(name, _routing.DIRECT)
        if not self._store.has_queue(label("queue", queue)):
            raise _not_found("queue", queue)
        self._store.bind(name, routing_key or "", queue)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Undo `queue_bind`."""
        name = label("exchange", exchange or "amq.direct")
        self._store.unbind(name, routing_key or "", label("queue", queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> int:
        """Delete a queue with its messages and bindings; how many messages went.

        `if_unused` sees the consumers of this connection only.
        """
        name = label("queue", queue)
        if if_empty and self._store.size(name):
            return 0
        if if_unused and name in self.connection.consumed():
            return 0
        return self._store.delete_queue(name)

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove the waiting messages; how many."""
        return self._store.purge(label("queue", queue))

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """All (queue, exchange, routing key)."""
        return self._store.bindings()

    def _size(self, queue: str) -> int:
        return self._store.size(label("queue", queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._store.has_queue(label("queue", queue))

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> bool:
        """Publish; False when the message reached no queue (then it is dropped).

        :raises TooLarge: it has more than 64 MiB.
        :raises ValueError: headers are no JSON numbers.
        :raises TypeError: headers are no JSON at all.
        """
        store = self._store
        queues: Sequence[str]
        if exchange:
            queues = store.route(label("exchange", exchange), routing_key or "")
        else:
            queues = (label("queue", routing_key),)
        if not queues:
            return False
        data = _envelope.encode(message, exchange or "", routing_key or "")
        priority = _envelope.priority_of(message)
        routed = False
        for queue in queues:
            routed = store.put(queue, priority, data) or routed
        return routed

    # -- consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Serve `queue` after those asked for before; ChannelError 404 when it is not there."""
        if not self._store.has_queue(label("queue", queue)):
            raise _not_found("queue", queue)
        self._store.watch(queue)
        self._serving[consumer_tag] = _Consumer(consumer_tag, queue, bool(no_ack), callback)
        self._store.nudge()

    def basic_cancel(self, consumer_tag: str, **kwargs: Any) -> None:
        """Stop a consumer; what it got stays unacknowledged."""
        consumer = self._serving.pop(consumer_tag, None)
        if consumer is not None:
            self._store.unwatch(consumer.queue)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """At most `prefetch_count` unacknowledged messages on this channel; 0: no limit."""
        self.prefetch_count = prefetch_count or 0
        self._store.nudge()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message, or None."""
        return self._next(label("queue", queue), no_ack, "")

    def consumed(self) -> list[str]:
        """The queues that this channel consumes, in the order in which they are served."""
        return [consumer.queue for consumer in tuple(self._serving.values())]

    def has_room(self) -> bool:
        """Whether the prefetch limit allows another message."""
        return not self.prefetch_count or len(self._unacked) < self.prefetch_count

    def serve_one(self) -> bool:
        """Deliver the first message any consumer of this channel may have; False: there is none."""
        for consumer in tuple(self._serving.values()):
            if not consumer.no_ack and not self.has_room():
                continue
            message = self._next(consumer.queue, consumer.no_ack, consumer.tag)
            if message is not None:
                consumer.callback(message)
                return True
        return False

    def _next(self, queue: str, no_ack: bool, consumer: str) -> _envelope.Message | None:
        store = self._store
        while True:
            taken = store.take(queue)
            if taken is None:
                return None
            tag = next(self._tags)
            try:
                message = _envelope.Message.from_bytes(taken.data, self, tag, consumer, taken.again)
            except _envelope.BadMessage as exc:
                store.discard(taken, str(exc))
                continue
            taken.data = b""
            if no_ack:
                store.settle(taken)
            else:
                self._unacked[tag] = taken
            return message

    def message_to_python(self, raw_message: Any) -> Any:
        """Messages are delivered ready made."""
        return raw_message

    # -- settling

    def _pop(self, delivery_tag: int, multiple: bool = False) -> list[Taken]:
        tags = [tag for tag in tuple(self._unacked) if tag <= delivery_tag] if multiple else None
        found = [
            taken
            for tag in (tags if tags is not None else (delivery_tag,))
            if (taken := self._unacked.pop(tag, None)) is not None
        ]
        if found and self.prefetch_count:
            self._store.nudge()  # the drainer may wait for room
        return found

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> bool:
        """Acknowledge, from any thread; False when the message was not ours (any more)."""
        found = self._pop(delivery_tag, multiple)
        settled = [self._store.settle(taken) for taken in found]
        return bool(settled) and all(settled)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Give back to the queue, in its old place; or with `requeue=False` throw away."""
        for taken in self._pop(delivery_tag):
            if requeue:
                self._store.give_back(taken)
            else:
                self._store.settle(taken)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back everything that is not acknowledged (`requeue=False` is not supported)."""
        if not requeue:
            raise NotImplementedError("Does not support recover(requeue=False)")
        for tag in tuple(self._unacked):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        """Cancel the consumers and give back what is not acknowledged."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        for tag in tuple(self._serving):
            self.basic_cancel(tag)
        self.basic_recover(requeue=True)
        if self.connection is not None:
            self.connection.close_channel(self)
        self.exchange_types = None


class Transport(virtual.Transport):  # type: ignore[misc]
    """A kombu transport whose connections drain a `Store`."""

    Channel = Channel
    can_parse_url = True
    default_port = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._opened: Store | None = None
        self._woken = False

    def open_store(self) -> Store:
        """Make the store of this connection.

        :raises TransportFailure: it cannot be used.
        """
        raise NotImplementedError

    @property
    def store(self) -> Store:
        """The store of this connection, opened at first use."""
        if self._opened is None:
            self._opened = self.open_store()
        return self._opened

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """There is nothing secret in our URLs."""
        return uri

    def establish_connection(self) -> Transport:
        """Open the store; kombu calls it once per connection."""
        _ = self.store
        return self

    def close_connection(self, connection: Any) -> None:
        """Close all channels (what is not acknowledged goes back), then the store."""
        for channel in (*self._avail_channels, *self.channels):
            channel.close()
        self._avail_channels.clear()
        self.channels.clear()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def consumed(self) -> set[str]:
        """The queues that this connection consumes."""
        return {queue for channel in tuple(self.channels) for queue in channel.consumed()}

    def wake(self) -> None:
        """Make a blocked `drain_events`, or the next one, return at once; from any thread."""
        self._woken = True
        opened = self._opened
        if opened is not None:
            opened.nudge()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver all that is there, up to the prefetch limits; wait for it when there is nothing.

        Returns after at least one delivery.  What comes in while callbacks run is delivered by the
        next call.  A message that cannot be read is put aside, never raised.

        :raises TimeoutError: nothing came in `timeout` seconds (None: wait for ever), or `wake()`
            was called.
        """
        store = self.store
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._deliver_available(store):
                self._woken = False
                return
            if self._woken:
                self._woken = False
                raise TimeoutError("woken")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            store.wait(left)

    def _deliver_available(self, store: Store) -> int:
        most = store.refresh()
        delivered = 0
        for channel in tuple(self.channels):
            while delivered < most and not channel.closed and channel.serve_one():
                delivered += 1
        return delivered
