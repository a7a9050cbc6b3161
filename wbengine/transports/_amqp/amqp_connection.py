"""An AMQP connection for one reading thread and any number of writing threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import kombu

from wbengine.transports._amqp import amqp_frames as frames
from wbengine.transports._amqp.amqp_frames import Delivery
from wbengine.transports._amqp.amqp_socket import AmqpSocket

LOG = logging.getLogger(__name__)

_BEGIN: Final = struct.Struct(">BH")
_METHOD: Final = struct.Struct(">II")
_RECEIPT: Final = struct.Struct(">QB")

Handle = Callable[[Delivery], None]


class _Callbacks(dict[str, Any]):
    """One callback for all consumers. Cancelled ones may still receive messages."""

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def __setitem__(self, tag: str, callback: Any) -> None:
        """Do nothing: the number of tags is unlimited."""

    def __missing__(self, tag: str) -> Callable[[Any], None]:
        return self._callback


C = TypeVar("C", bound="AmqpChannel")


class AmqpConnection:
    """An AMQP connection that one thread reads; other threads can wake it and write.

    The thread must call `wait` and `read` at least once per heartbeat: both peers close the
    connection after two missing heartbeats.
    """

    def __init__(self, connection: kombu.Connection) -> None:
        #: The connection of py-amqp. If it is accessed later through kombu, kombu may reconnect
        #: without the consumers of this connection.
        self.raw = connection.connection
        self._transport = connection.transport
        self._socket: AmqpSocket = self.raw.transport
        self._socket.wake = self.wake_up
        #: Time since which the broker accepts messages; infinity during a memory or disk alarm.
        self.accepting_since = -math.inf
        self.raw.on_blocked = self._on_blocked
        self.raw.on_unblocked = self._on_unblocked
        self._channels: dict[int, AmqpChannel] = {}
        heartbeat = float(self.raw.heartbeat or 0)
        self._period = heartbeat / 4 if heartbeat else None
        self._heartbeat_due = time.monotonic()
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._wake_reader.setblocking(False)
        # Whether the thread waits, whether it was woken, and whether a wake-up byte was written.
        self._is_waiting = False
        self._wake_requested = False
        self._wake_byte_sent = False
        self._poll, self._wake_poll = select.poll(), select.poll()
        self._poll.register(self._socket.sock, select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)
        self._wake_poll.register(self._wake_reader, select.POLLIN)
        self._fileno = self._socket.sock.fileno()
        self._polls_for_write = False

    @property
    def is_stuck(self) -> bool:
        """Whether the broker currently reads no data."""
        return self._socket.is_stuck

    @property
    def is_blocked(self) -> bool:
        """Whether the broker accepts no messages because of a memory or disk alarm.

        After the first published message it reads nothing more from this connection.
        """
        return self.accepting_since == math.inf

    def _on_blocked(self, reason: str) -> None:
        self.accepting_since = math.inf
        LOG.warning("the broker accepts no messages now: it is short of memory or disk")

    def _on_unblocked(self) -> None:
        self.accepting_since = time.monotonic()
        LOG.warning("the broker accepts messages again")

    def channel(self, exchange: str, kind: Callable[..., C]) -> C:
        """Return a new channel of a kind, for publishing to an exchange."""
        channel = kind(self, self.raw.channel(), exchange)
        self._channels[channel.number] = channel
        return channel

    # Writing; in any thread.

    def put(self, data: bytes) -> None:
        """Append complete frames. The next `flush` sends them."""
        self._socket.put(data)

    def flush(self) -> None:
        """Send the appended frames. `wait` reports a lost connection."""
        self.raw.bytes_sent += 1
        self._socket.flush()

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._socket.corked()

    def wake_up(self) -> None:
        """Make `wait` return at once; thread-safe."""
        self._wake_requested = True
        if self._is_waiting and not self._wake_byte_sent:
            self._wake_byte_sent = True
            # A full buffer is also a wake-up.
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"\0")

    def wait(self, timeout: float | None) -> bool:
        """Wait for data or a wake-up; send a heartbeat if due. Return whether there is data.

        :raises Exception: a connection error of kombu, if the broker is silent for too long.
        """
        if self._socket.is_busy:
            self._socket.proceed(self.accepting_since)
        if self._period is not None:
            now = time.monotonic()
            if now >= self._heartbeat_due:
                self._heartbeat_due = now + self._period
                self._transport.heartbeat_check(self.raw)
            remaining = self._heartbeat_due - now
            timeout = remaining if timeout is None else min(timeout, remaining)
        if self._socket.is_stuck != self._polls_for_write:
            self._update_poll_events()
        if self._socket.pending:
            return True
        return self._poll_for(self._poll, timeout)

    def receive(self, timeout: float | None) -> bool:
        """`wait`, then `read` the available data; return whether there was any."""
        has_data = self.wait(timeout)
        if has_data:
            self.read()
        return has_data

    def wait_for_wake_up(self, seconds: float) -> None:
        """Wait at most this time for a wake-up, without reading."""
        self._poll_for(self._wake_poll, seconds)

    def _poll_for(self, poll: select.poll, timeout: float | None) -> bool:
        self._is_waiting = True  # Set first, so that a concurrent wake-up writes a byte.
        try:
            readable = False
            for number, event in poll.poll(0 if self._wake_requested else _milliseconds(timeout)):
                if number != self._fileno:
                    with contextlib.suppress(OSError):
                        self._wake_reader.recv(4096)
                    self._wake_byte_sent = False
                elif event & ~select.POLLOUT:
                    readable = True
        finally:
            self._is_waiting = self._wake_requested = False
        return readable

    def _update_poll_events(self) -> None:
        self._polls_for_write = not self._polls_for_write
        events = select.POLLIN | select.POLLOUT if self._polls_for_write else select.POLLIN
        self._poll.modify(self._socket.sock, events)

    def read(self) -> None:
        """Read and dispatch all available frames.

        :raises Exception: a connection or channel error of kombu.
        """
        source, raw = self._socket, self.raw
        source.fill()
        raw.bytes_recv += 1
        while source.pending:
            data, at = source.received, source.at
            kind, number = _BEGIN.unpack_from(data, at)
            channel = self._channels.get(number) if kind == frames.METHOD else None
            if channel is None or not self._read_frequent(channel, data, at):
                raw.on_inbound_frame(source.frame())

    def _read_frequent(self, channel: AmqpChannel, data: bytes, at: int) -> bool:
        size, method = _METHOD.unpack_from(data, at + 3)
        if method == frames.DELIVER:
            frame = frames.read(data, at, channel)
            if frame is not None:
                self._socket.at = frame[1]
                channel.deliver(frame[0])
                return True
        elif method == frames.ACK and channel.on_receipt is not None:
            tag, bits = _RECEIPT.unpack_from(data, at + 11)
            self._socket.at = at + 8 + size
            channel.on_receipt(tag, bool(bits & 1))
            return True
        return False

    def drop(self) -> None:
        """Close a broken connection without sending a close to the broker."""
        self.raw.collect()

    def close(self) -> None:
        """Close the connection; `drop` it if the broker would not read a close."""
        if self.is_blocked or self.is_stuck:
            self.drop()
        self._wake_writer.close()
        self._wake_reader.close()


class AmqpChannel:
    """A channel of an AMQP connection for consuming, acknowledging and publishing.

    The connection's thread consumes; any thread may acknowledge and publish. A second
    acknowledgement of a delivery would make the broker close the channel, so it is prevented.
    """

    def __init__(self, connection: AmqpConnection, raw: Any, exchange: str) -> None:
        self.connection = connection
        #: The channel of py-amqp, for rare methods. Use it only in the connection's thread.
        self.raw = raw
        raw.auto_decode = False  # Otherwise, the message would select the codec.
        raw.callbacks = _Callbacks(self._on_raw_delivery)
        self.number: int = raw.channel_id
        #: Called in the connection's thread with each confirm of the broker: `(number, multiple)`.
        self.on_receipt: Callable[[int, bool], None] | None = None
        self.encoder = frames.Frames(self.number, exchange, connection.raw.frame_max)
        self._handle_delivery: Handle
        # Unacknowledged deliveries, in order.
        self._unacknowledged: dict[int, None] = {}
        # Held from a claim until its frame is appended, so that no frame with `multiple` overtakes.
        self._settling = threading.Lock()

    def start(self, queue: str, tag: str, handle: Handle, *, nowait: bool = False) -> None:
        """Start a consumer of the broker, with an unused tag. All have the same `handle`."""
        self._handle_delivery = handle
        self.raw.basic_consume(queue, consumer_tag=tag, nowait=nowait)

    def get(self, queue: str) -> Delivery | None:
        raw = self.raw.basic_get(queue)
        if raw is None:
            return None
        delivery = Delivery.of(raw, self)
        self._unacknowledged[delivery.delivery_tag] = None
        return delivery

    def _on_raw_delivery(self, raw: Any) -> None:
        self.deliver(Delivery.of(raw, self))

    def deliver(self, delivery: Delivery) -> None:
        self._unacknowledged[delivery.delivery_tag] = None
        self._handle_delivery(delivery)

    def claim(self, delivery: Delivery) -> bool:
        """Reserve the acknowledgement of a delivery; return False if it is reserved already."""
        if self._unacknowledged.pop(delivery.delivery_tag, self) is self:
            return False
        delivery.acknowledged = True
        return True

    def receipt(self, delivery: Delivery) -> bytes:
        """Return the frame that acknowledges a claimed delivery."""
        return self.encoder.ack(delivery.delivery_tag)

    def ack(self, delivery: Delivery) -> None:
        with self._settling:
            if self.claim(delivery):
                self.connection.put(self.receipt(delivery))
        self.connection.flush()

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        """`ack` deliveries, with one frame where possible.

        Do not claim deliveries of this channel at the same time.
        """
        unclaimed = {each.delivery_tag: each for each in deliveries}
        with self._settling:
            front = []
            # A copy, because the connection's thread adds deliveries; they may be many.
            for tag in tuple(itertools.islice(self._unacknowledged, len(unclaimed))):
                if tag not in unclaimed:
                    break
                front.append(unclaimed.pop(tag))
            for each in front:
                self.claim(each)
            if front:
                self.connection.put(self.encoder.ack(front[-1].delivery_tag, multiple=True))
            for each in unclaimed.values():
                if self.claim(each):
                    self.connection.put(self.receipt(each))
        self.connection.flush()

    def reject(self, delivery: Delivery, requeue: bool) -> None:
        """Reject a delivery. Only for the connection's thread."""
        with self._settling:
            if self.claim(delivery):
                self.raw.basic_reject(delivery.delivery_tag, requeue=requeue)


def _milliseconds(timeout: float | None) -> int | None:
    return None if timeout is None else max(0, math.ceil(timeout * 1000))
