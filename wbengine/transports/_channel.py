"""Channels of our own kombu transports: declaring, publishing, prefetch, acknowledgement."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from wbengine import exceptions
from wbengine.transports import _envelope, _routing
from wbengine.transports._store import Store, Taken, check_label


class CreditWindow:
    """What was given to a channel and is not settled, by its number, and what may be given besides.

    At most `limit` (0: as much as there is) at a time, less what was asked for and is not there
    yet: by the thread that drains, and by those who order.  `found()` is called when there is room
    again after that thread was told that there is none.  Any thread, unless told otherwise.
    """

    def __init__(self, found: Callable[[], object]) -> None:
        self.limit = 0
        self.held: dict[int, Taken] = {}
        self._found = found
        self._released: set[int] = set()
        self._lock = threading.Lock()
        #: How many were asked for; 0 as soon as they are ready, or not there.
        self.asked = 0
        self._ordered = 0
        self._starved = False

    def ask(self, most: int, ready: int) -> int:
        """How many there is room for, up to `most`, beside `ready` ones; they are `asked` for from
        now on.  Of the thread that drains."""
        if not self.limit:
            return most
        self._starved = True  # before it looks: whoever makes room meanwhile sees one of both
        with self._lock:
            self.asked = 0
            self.asked = room = max(0, min(most, self._left(ready)))
        self._starved = room <= 0
        return room

    def look(self, ready: int) -> bool:
        """Whether there is room; as `ask`, but nothing is asked for."""
        if not self.limit:
            return True
        self._starved = True
        self._starved = starved = self._left(ready) <= 0
        return not starved

    def order(self, most: int, ready: int) -> int:
        """As `ask`, by another thread, until `delivered`; 0 unless the one that drains was told
        that there is none: else it sees to that itself."""
        if not self._starved:
            return 0
        with self._lock:
            room = max(0, min(most, self._left(ready)))
            self._ordered += room
        return room

    def delivered(self, ordered: int, count: int) -> None:
        """Of what was ordered so many came, which are held by now."""
        with self._lock:
            self._ordered -= ordered
        if count < ordered:
            self.made()

    def _left(self, ready: int) -> int:
        held = len(self.held) - len(self._released) + ready
        return self.limit - held - self.asked - self._ordered

    def release(self, numbers: Iterable[int]) -> None:
        """These count no more."""
        self._released |= self.held.keys() & set(numbers)

    def settle(self, numbers: Iterable[int]) -> list[Taken]:
        """These are not held any more; what of them was."""
        found: list[Taken] = []
        room = False
        for number in numbers:
            counted = number not in self._released
            self._released.discard(number)
            taken = self.held.pop(number, None)
            if taken is not None:
                found.append(taken)
                room = room or counted
        if room:
            self.made()
        return found

    def made(self) -> None:
        """There may be more than there was."""
        if self._starved:
            self._starved = False
            self._found()


LOG = logging.getLogger(__name__)


class _Consumer:
    __slots__ = ("callback", "no_ack", "queue", "tag")

    def __init__(
        self, tag: str, queue: str, no_ack: bool, callback: Callable[[Any], object]
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.callback = callback


class AnswerAndTake:
    """What a channel takes while other requests are answered, in the same step: at most `most`
    messages; `told` is how its store says so.

    Made by `Channel.order`, given to `end_many`, which fills in what was `taken`, and ended by
    `deliver`; if nobody knows what was taken, by `Channel.miss`.
    """

    __slots__ = ("channel", "most", "taken", "told")

    def __init__(self, channel: Any, most: int, told: Any) -> None:
        self.channel = channel
        self.most = most
        self.told = told
        self.taken: Sequence[Taken] = ()

    def deliver(self) -> None:
        """Hand out what was taken, in this thread.  What is raised there is logged, and the
        channel's connection is given up: what nobody saw goes back as if it had not been taken."""
        left: Sequence[Any] = ()
        over = False
        try:
            left = self.channel.receive(self)
            while left:
                (consume, message), *left = left
                consume(message)
            over = True
        except Exception:
            LOG.exception("failed to hand out what was taken")
        finally:
            if not over:
                self.channel.miss(self)
                self.channel.put_back([message for _, message in left])


def _unused(message: Any) -> None:
    """Nobody is called for what was asked for."""


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
        #: The queues of those that acknowledge, and of those that do not, the first one first.
        self.limited: list[str] = []
        self.free: list[str] = []
        self._by_queue: dict[str, _Consumer] = {}
        #: Taken, and not delivered yet.
        self.ready: deque[Taken] = deque()
        #: What is held of what those were given that acknowledge, and what more they may be given.
        self.room = CreditWindow(self._store.nudge)
        self._tags = itertools.count(1)
        self._closing = threading.Lock()

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
        name = check_label("exchange", exchange or f"amq.{kind}")
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
        self._store.delete_exchange(check_label("exchange", exchange))

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
        name = check_label("queue", queue or f"amq.gen-{uuid()}")
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
        name = check_label("exchange", exchange or "amq.direct")
        if self._store.exchange_kind(name) is None:
            if exchange:
                raise _not_found("exchange", name)
            self._store.declare_exchange(name, _routing.DIRECT)
        if not self._store.has_queue(check_label("queue", queue)):
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
        name = check_label("exchange", exchange or "amq.direct")
        self._store.unbind(name, routing_key or "", check_label("queue", queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> int:
        """Delete a queue with its messages and bindings; how many messages went.

        `if_unused` sees the consumers of this connection only.
        """
        name = check_label("queue", queue)
        if if_empty and self._store.size(name):
            return 0
        if if_unused and name in self.connection.consumed():
            return 0
        return self._store.delete_queue(name)

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Remove the waiting messages; how many."""
        return self._store.purge(check_label("queue", queue))

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """All (queue, exchange, routing key)."""
        return self._store.bindings()

    def _size(self, queue: str) -> int:
        return self._store.size(check_label("queue", queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._store.has_queue(check_label("queue", queue))

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> bool:
        """Publish; False when the message reached no queue (then it is dropped).

        :raises TooLarge: it has more than 64 MiB.
        :raises ValueError: headers are no JSON numbers.
        :raises TypeError: headers are no JSON at all.
        """
        return self._store.publish(*self.lay_out(message, exchange, routing_key))

    def lay_out(
        self, message: dict[str, Any], exchange: str, routing_key: str
    ) -> tuple[str, str, int, bytes]:
        """What `publish_many` takes, of a prepared message; raises what `basic_publish` does."""
        name = check_label("exchange", exchange) if exchange else ""
        key = routing_key or ""
        if not exchange:
            check_label("queue", key)
        data = _envelope.encode(message, name, key)
        if self._store.labels:
            id = message["properties"].get("correlation_id")
            data = self._labelled(data, message["headers"], id)
        return name, key, _envelope.priority_of(message), data

    def lay_out_sealed(
        self, message: _envelope.Sealed, exchange: str
    ) -> tuple[str, str, int, bytes]:
        """As `lay_out`, of a message to an exchange whose parts are encoded."""
        data = _envelope.seal(message, check_label("exchange", exchange))
        if self._store.labels:
            data = self._labelled(data, message.headers, message.correlation_id)
        return exchange, message.routing_key, message.priority, data

    def _labelled(self, data: bytes, headers: dict[str, Any] | None, id: Any) -> bytes:
        row = _envelope.row_of(headers, id)
        return data if row is None else self._store.label(data, row)

    def publish_many(self, laid_out: Sequence[tuple[str, str, int, bytes]]) -> Iterator[bool]:
        """`basic_publish` all that was laid out, in order; what it would return, as it is done."""
        return self._store.publish_many(laid_out)

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int, bytes], Any, tuple[str, str, int, bytes]]],
        order: AnswerAndTake | None = None,
    ) -> Sequence[int]:
        """Store results, publish answers that were laid out, and acknowledge the requests, which
        were claimed as they were taken, on whatever channel: see `Store.end_many`."""
        told = [(row, message.origin, laid_out) for row, message, laid_out in ended]
        if order is None:
            return self._store.end_many(told)[0]
        try:
            counts, order.taken = self._store.end_many(told, order.told)
        except exceptions.TransportFailure:  # nothing was done
            order.deliver()
            raise
        except BaseException:
            order.channel.miss(order)
            raise
        return counts

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
        if not self._store.has_queue(check_label("queue", queue)):
            raise _not_found("queue", queue)
        self._store.watch(queue)
        self._serving[consumer_tag] = _Consumer(consumer_tag, queue, bool(no_ack), callback)
        self._arrange()
        self._store.nudge()

    def basic_cancel(self, consumer_tag: str, **kwargs: Any) -> None:
        """Stop a consumer; what it got stays unacknowledged, what it did not get goes back."""
        consumer = self._serving.pop(consumer_tag, None)
        if consumer is not None:
            self._arrange()
            self._store.unwatch(consumer.queue)

    def _arrange(self) -> None:
        serving = tuple(self._serving.values())
        self.limited = [consumer.queue for consumer in serving if not consumer.no_ack]
        self.free = [consumer.queue for consumer in serving if consumer.no_ack]
        self._by_queue = {consumer.queue: consumer for consumer in reversed(serving)}

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """At most `prefetch_count` unacknowledged messages on this channel; 0: no limit."""
        self.room.limit = prefetch_count or 0
        self._store.nudge()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message, or None."""
        who = _Consumer("", check_label("queue", queue), no_ack, _unused)
        while (taken := self._store.take(who.queue)) is not None:
            message = self._message(taken, who)
            if message is not None:
                return message
        return None

    def consumed(self) -> list[str]:
        """The queues that this channel consumes, in the order in which they are served."""
        return [consumer.queue for consumer in tuple(self._serving.values())]

    def order(self, done: Iterable[_envelope.Message]) -> AnswerAndTake | None:
        """An order for all there is room for when `done` need none any more, from any thread.

        It is to be given to `end_many`, of whatever channel of the same transport, and delivered
        then.  None: there is no room, or the drainer takes what comes.
        """
        self.room.release([message.delivery_tag for message in done])
        with self._closing:  # who closes wants to know of all orders
            if self.closed or not self.limited:
                return None
            most = self.room.order(self._store.batch, len(self.ready))
            told = self._store.order(most, self.limited) if most else None
        if told is not None:
            return AnswerAndTake(self, most, told)
        self.room.delivered(most, 0)
        return None

    def receive(
        self, order: AnswerAndTake
    ) -> list[tuple[Callable[[Any], object], _envelope.Message]]:
        """What an order took, and who is to have it; that is known here from now on."""
        found: list[tuple[Callable[[Any], object], _envelope.Message]] = []
        with self._closing:
            if self.closed:
                return []  # what nobody heard of goes back, unseen
            left = list(order.taken)
            try:
                while left:
                    consumer = self._by_queue.get(left[0].queue)
                    message = self._message(left[0], consumer)
                    if consumer is not None and message is not None:
                        found.append((consumer.callback, message))
                    del left[0]
            finally:
                self._store.heard(order.told, left)
            self.room.delivered(order.most, len(found))
        return found

    def put_back(self, messages: Iterable[_envelope.Message]) -> None:
        """Nobody saw these."""
        for taken in self.forget_many(messages):
            self._store.give_back(taken, delivered=False)

    def miss(self, order: AnswerAndTake) -> None:
        """Nobody knows what became of an order."""
        self._store.missed(order.told)

    def deliver(self) -> int:
        """Hand out what is `ready`; how many."""
        count = 0
        while self.ready:
            taken = self.ready[0]
            consumer = None if self.closed else self._by_queue.get(taken.queue)
            message = self._message(taken, consumer)
            self.ready.popleft()  # not before it is held: orders of others count it
            if consumer is not None and message is not None:
                count += 1
                consumer.callback(message)
        return count

    def _message(self, taken: Taken, consumer: _Consumer | None) -> _envelope.Message | None:
        """What is for a consumer, if it can be read; if there is none, it goes back."""
        if consumer is None:
            self._store.give_back(taken, delivered=False)
            return None
        tag = next(self._tags)
        try:
            message = _envelope.Message.from_bytes(taken.data, self, tag, consumer.tag, taken.again)
        except _envelope.BadMessage as exc:
            self._store.discard(taken, str(exc))
            if self.connection.on_discard is not None:
                self.connection.on_discard()
            return None
        message.claim, message.taken, message.origin = taken.claim, taken.at, taken
        taken.data = b""
        if consumer.no_ack:
            self._store.settle(taken)
        else:
            self.room.held[tag] = taken
        return message

    def message_to_python(self, raw_message: Any) -> Any:
        """Messages are delivered ready made."""
        return raw_message

    # -- settling

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> bool:
        """Acknowledge, from any thread; False when the message was not ours (any more)."""
        tags = [delivery_tag]
        if multiple:
            tags = [tag for tag in tuple(self.room.held) if tag <= delivery_tag]
        found = self.room.settle(tags)
        return bool(found) and self._store.settle_many(found)

    def ack_many(self, messages: Iterable[_envelope.Message]) -> None:
        """Acknowledge messages of this channel, from any thread; those that are not held any more
        are passed over."""
        found = self.forget_many(messages)
        if found:
            self._store.settle_many(found)

    def forget_many(self, messages: Iterable[_envelope.Message]) -> list[Taken]:
        """They are acknowledged, as far as this channel is concerned: what of them it held."""
        tags = []
        for message in messages:
            message._state = "ACK"
            tags.append(message.delivery_tag)
        return self.room.settle(tags)

    def release_many(self, messages: Iterable[_envelope.Message]) -> None:
        """From now on these do not count against `prefetch_count`; from any thread."""
        self.room.release([message.delivery_tag for message in messages])
        self.room.made()

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Give back to the queue, in its old place; or with `requeue=False` throw away."""
        for taken in self.room.settle([delivery_tag]):
            if requeue:
                self._store.give_back(taken)
            else:
                self._store.settle(taken)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back everything that is not acknowledged (`requeue=False` is not supported)."""
        if not requeue:
            raise NotImplementedError("Does not support recover(requeue=False)")
        for tag in tuple(self.room.held):
            self.basic_reject(tag, requeue=True)

    def close(self) -> None:
        """Cancel the consumers and give back what is not acknowledged."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        for tag in tuple(self._serving):
            self.basic_cancel(tag)
        self.deliver()
        self.basic_recover(requeue=True)
        if self.connection is not None:
            self.connection.close_channel(self)
        self.exchange_types = None
