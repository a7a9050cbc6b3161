"""An AMQP connection as one thread reads it, and others write on it."""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import kombu

from wbengine.transports import _amqp_frames as frames
from wbengine.transports._amqp_frames import Delivery
from wbengine.transports._amqp_socket import AmqpSocket

LOG = logging.getLogger(__name__)

_BEGIN: Final = struct.Struct(">BH")
_METHOD: Final = struct.Struct(">II")
_RECEIPT: Final = struct.Struct(">QB")


Handle = Callable[[Delivery], None]


class AmqpConnection:
    """An AMQP connection of one thread, which it can wait on, and others can ring and write on.

    The thread calls `wait` and `read` in turn, at least once in a heartbeat: both sides of a
    connection give it up when they hear nothing for two.
    """

    def __init__(self, connection: kombu.Connection) -> None:
        # Taken once: asked for them again, kombu would connect again, without our consumers.
        self._raw = connection.connection
        self._transport = connection.transport
        self._socket: AmqpSocket = self._raw.transport
        self._socket.wake = self.ring
        #: Since when the broker takes messages on this connection: it does not while it is short of
        #: memory or disk (infinity).
        self.takes_since = -math.inf
        self._raw.on_blocked = self._on_blocked
        self._raw.on_unblocked = self._on_unblocked
        self._channels: dict[int, AmqpChannel] = {}
        heartbeat = float(self._raw.heartbeat or 0)
        self._period = heartbeat / 4 if heartbeat else None
        self._due = time.monotonic()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        # Whether the thread waits, was rung, and was rung in a way that wakes it.
        self._sleeps = False
        self._rung = False
        self._belled = False
        self._poll, self._bells = select.poll(), select.poll()
        self._poll.register(self._socket.sock, select.POLLIN)
        self._poll.register(self._ear, select.POLLIN)
        self._bells.register(self._ear, select.POLLIN)
        self._number = self._socket.sock.fileno()
        self._waits_to_write = False

    @property
    def raw(self) -> Any:
        """The connection of py-amqp."""
        return self._raw

    @property
    def is_stuck(self) -> bool:
        """Whether the broker does not read what it is sent, for now."""
        return self._socket.is_stuck

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages, and reads nothing more on this connection once one
        was published on it: an alarm."""
        return self.takes_since == math.inf

    def _on_blocked(self, reason: str) -> None:
        self.takes_since = math.inf
        LOG.warning("the broker takes no messages for now: it is short of memory or disk")

    def _on_unblocked(self) -> None:
        self.takes_since = time.monotonic()
        LOG.warning("the broker takes messages again")

    def channel(self, exchange: str = "") -> AmqpChannel:
        """A new channel, which publishes to an exchange."""
        made = AmqpChannel(self, self._raw.channel(), exchange, self._raw.frame_max)
        self._channels[made.number] = made
        return made

    # Writing; any thread.

    def put(self, data: bytes) -> None:
        """Whole frames, which go out with the next `flush`."""
        self._socket.put(data)

    def flush(self) -> None:
        """Send what was put; that the connection is lost is told by `wait`."""
        self._raw.bytes_sent += 1
        self._socket.flush()

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Write what this thread writes meanwhile in one go."""
        return self._socket.corked()

    def ring(self) -> None:
        """Let `wait` return at once; from any thread."""
        self._rung = True
        if self._sleeps and not self._belled:
            self._belled = True
            with contextlib.suppress(OSError):  # one that is full rings already
                self._bell.send(b"\0")

    # Reading.

    def wait(self, timeout: float | None) -> bool:
        """Wait for the broker or a ring; whether there is something to read.

        Sends the heartbeat that is due.

        :raises Exception: one of kombu's connection errors: the broker is silent for too long.
        """
        if self._socket.is_busy:
            self._socket.proceed(self.takes_since)
        if self._period is not None:
            now = time.monotonic()
            if now >= self._due:
                self._due = now + self._period
                self._transport.heartbeat_check(self._raw)
            left = self._due - now
            timeout = left if timeout is None else min(timeout, left)
        if self._socket.is_stuck != self._waits_to_write:
            self._mind_stuck()
        if self._socket.pending:
            return True
        return self._sleep(self._poll, timeout)

    def hear(self, timeout: float | None) -> bool:
        """`wait`, and `read` what there is; whether there was something."""
        spoke = self.wait(timeout)
        if spoke:
            self.read()
        return spoke

    def wait_for_ring(self, seconds: float) -> None:
        """Wait for a ring only, so long at most, whatever the broker says meanwhile."""
        self._sleep(self._bells, seconds)

    def _sleep(self, poll: select.poll, timeout: float | None) -> bool:
        self._sleeps = True  # first: who rings from now on does so aloud
        try:
            readable = False
            for number, event in poll.poll(0 if self._rung else _milliseconds(timeout)):
                if number != self._number:
                    with contextlib.suppress(OSError):
                        self._ear.recv(4096)
                    self._belled = False
                elif event & ~select.POLLOUT:
                    readable = True
        finally:
            self._sleeps = self._rung = False
        return readable

    def _mind_stuck(self) -> None:
        self._waits_to_write = not self._waits_to_write
        wanted = select.POLLIN | select.POLLOUT if self._waits_to_write else select.POLLIN
        self._poll.modify(self._socket.sock, wanted)

    def read(self) -> None:
        """Take in all that came, and tell whoever it is for.

        :raises Exception: one of kombu's connection errors, or of a channel's.
        """
        source, raw = self._socket, self._raw
        source.fill()
        raw.bytes_recv += 1
        while source.pending:
            data, at = source.got, source.at
            kind, number = _BEGIN.unpack_from(data, at)
            channel = self._channels.get(number) if kind == frames.METHOD else None
            if channel is None or not self._is_known(channel, data, at):
                raw.on_inbound_frame(source.frame())

    def _is_known(self, channel: AmqpChannel, data: bytes, at: int) -> bool:
        """Whether it is one of those that come all the time; if so, it is seen to."""
        size, method = _METHOD.unpack_from(data, at + 3)
        if method == frames.DELIVER:
            found = frames.read(data, at, channel)
            if found is not None:
                self._socket.at = found[1]
                channel.deliver(found[0])
                return True
        elif method == frames.ACK and channel.on_receipt is not None:
            tag, bits = _RECEIPT.unpack_from(data, at + 11)
            self._socket.at = at + 8 + size
            channel.on_receipt(tag, bool(bits & 1))
            return True
        return False

    # The end.

    def drop(self) -> None:
        """End a connection that is of no use, without a word to the broker."""
        self._raw.collect()

    def close(self) -> None:
        """Nobody waits any more.  The connection stays, but for one whose broker would not read a
        word of farewell."""
        if self.is_blocked or self.is_stuck:
            self.drop()
        self._bell.close()
        self._ear.close()


class AmqpChannel:
    """A channel of an AMQP connection: what is consumed, acknowledged and published on it.

    Its thread consumes; any thread may acknowledge and publish.  Each delivery is acknowledged once
    at most, whoever tries: a broker closes a channel for the second time.
    """

    def __init__(self, connection: AmqpConnection, raw: Any, exchange: str, frame_max: int) -> None:
        self.connection = connection
        #: The same channel, of py-amqp, for what is said seldom; of the connection's thread.
        self.raw = raw
        raw.auto_decode = False  # by whatever codec a message names
        self.number: int = raw.channel_id
        #: Told of what the broker confirmed: `(number, multiple)`; of the connection's thread.
        self.on_receipt: Callable[[int, bool], None] | None = None
        self._frames = frames.Frames(self.number, exchange, frame_max)
        self._handlers: dict[str, Handle] = {}
        # What is not acknowledged, in order.
        self._owed: dict[int, None] = {}

    # Consuming.

    def consume(self, queue: str, tag: str, handle: Handle, *, nowait: bool = False) -> None:
        """Let `handle(delivery)` be called for what comes; while something is being read."""
        self._handlers[tag] = handle
        self.raw.basic_consume(queue, consumer_tag=tag, callback=self._read, nowait=nowait)

    def get(self, queue: str) -> Delivery | None:
        """The next message of a queue, if there is one."""
        raw = self.raw.basic_get(queue)
        if raw is None:
            return None
        found = Delivery.of(raw, self)
        self._owed[found.delivery_tag] = None
        return found

    def _read(self, raw: Any) -> None:
        self.deliver(Delivery.of(raw, self))

    def deliver(self, delivery: Delivery) -> None:
        """It came."""
        self._owed[delivery.delivery_tag] = None
        self._handlers[delivery.consumer_tag](delivery)

    # Acknowledging.

    def claim(self, delivery: Delivery) -> bool:
        """Whether it is the caller's to acknowledge from now on; nobody else's."""
        if self._owed.pop(delivery.delivery_tag, self) is self:
            return False
        delivery.acknowledged = True
        return True

    def receipt(self, delivery: Delivery) -> bytes:
        """What tells the broker that it was taken; by whom claimed it."""
        return self._frames.ack(delivery.delivery_tag)

    def ack(self, delivery: Delivery) -> None:
        if self.claim(delivery):
            self.connection.put(self.receipt(delivery))
            self.connection.flush()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """`ack` each, the oldest with one word; of the connection's thread."""
        taken = {each.delivery_tag: each for each in deliveries}
        front = []
        for tag in self._owed:
            if tag not in taken:
                break
            front.append(taken.pop(tag))
        for each in front:
            self.claim(each)
        if front:
            self.connection.put(self._frames.ack(front[-1].delivery_tag, multiple=True))
        for each in taken.values():
            if self.claim(each):
                self.connection.put(self.receipt(each))
        self.connection.flush()

    def reject(self, delivery: Delivery, requeue: bool) -> None:
        """Of the connection's thread."""
        if self.claim(delivery):
            self.raw.basic_reject(delivery.delivery_tag, requeue=requeue)

    # Publishing.

    def frames(self, key: str, mandatory: bool, head: bytes, body: bytes) -> bytes:
        """What publishes a message.

        :raises Exception: it cannot be written.
        """
        return self._frames.publish(key, mandatory, head, body)


def _milliseconds(timeout: float | None) -> int | None:
    return None if timeout is None else max(0, math.ceil(timeout * 1000))
